"""Values of actions, or their distributions, over observations.

Axes: `K` rows in time, `N` sequences (lanes, when acting: then `K` is 1), `M` = `K·N` rows, `A` actions,
`n` numbers for each: 1, or the atoms or quantiles of a distribution.
"""

import math
from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor, nn

from srl.core.compute import Compute
from srl.core.env import AgentSpec, Discrete
from srl.nets.actor_critic import make_network
from srl.nets.encoder import EncoderOptions, make_encoder
from srl.nets.memory import MemoryOptions, make_memory
from srl.nets.mlp import Activation, Linear
from srl.nets.noisy import NoisyLinear
from srl.nets.precision import layer_precision

_LOWEST = torch.finfo(torch.float32).min


class Stream(nn.Module):
    """Hidden layers and an output; with a `noise` scale, all of them noisy."""

    def __init__(
        self,
        num_inputs: int,
        hidden: tuple[int, ...],
        num_outputs: int,
        activation: Activation,
        noise: float | None,
    ) -> None:
        super().__init__()
        sizes = (num_inputs, *hidden, num_outputs)
        gains = [math.sqrt(2)] * len(hidden) + [1.0]
        self.layers = nn.ModuleList(
            Linear(i, o, gain) if noise is None else NoisyLinear(i, o, noise)
            for (i, o), gain in zip(pairwise(sizes), gains, strict=True)
        )
        self._activation = {"tanh": torch.tanh, "relu": torch.relu}[activation]
        self.noise_sizes = [x.num_noise for x in self.layers if isinstance(x, NoisyLinear)]

    def forward(self, x: Tensor, noise: Tensor | None) -> Tensor:
        """`[M, D]` to `[M, num_outputs]`, by `noise`, `[M, sum(noise_sizes)]`; None: without any."""
        parts = None if noise is None else iter(noise.split(self.noise_sizes, -1))
        last = len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            if isinstance(layer, NoisyLinear):
                x = layer(x, None if parts is None else next(parts))
            else:
                x = layer(x)
            x = self._activation(x) if number < last else x
        return x


class QNetwork(nn.Module):
    """An encoder, perhaps a memory, and streams for the value of the state and of each action."""

    epsilon: Tensor

    def __init__(
        self,
        agent: AgentSpec,
        *,
        network: str | None,
        encoder: EncoderOptions,
        hidden: tuple[int, ...],
        activation: Activation,
        memory: MemoryOptions | None,
        dueling: bool,
        noise: float | None,
        numbers: int,
        epsilon: float,
        compute: Compute,
    ) -> None:
        super().__init__()
        assert isinstance(agent.action, Discrete), "values are of choices"
        self._precision = layer_precision(compute)
        mask = agent.action_mask
        self.mask_name = None if mask is None else mask.name
        seen = tuple(o for o in agent.observations if o is not mask)
        self.encoder = (
            make_encoder(seen, encoder, normalise=False)
            if network is None
            else make_network(network, seen)
        )
        size = self.encoder.num_features
        self.memory = None if memory is None else make_memory(memory, size)
        size = size if self.memory is None else self.memory.num_features
        self.num_actions, self._numbers = agent.action.n, numbers
        streams = [Stream(size, hidden, self.num_actions * numbers, activation, noise)]
        if dueling:
            streams.append(Stream(size, hidden, numbers, activation, noise))
        self.streams = nn.ModuleList(streams)
        self._noise_sizes = [sum(stream.noise_sizes) for stream in streams]
        self.num_noise = sum(self._noise_sizes)
        """Normal numbers that a row needs."""
        self.register_buffer("epsilon", torch.tensor(epsilon))
        """Share of actions that are taken at random: part of the weights, for actors have it from here."""

    def forward(
        self,
        obs: Mapping[str, Tensor],
        first: Tensor,
        state: Mapping[str, Tensor],
        burn_in: int = 0,
        noise: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Judge `K` rows of `N` sequences.

        Args:
            obs: each `[M, *shape]`, rows of time outermost.
            first: `[K, N]` bool: an episode begins.
            state: of the memory before row 0, each `[N, *shape]`; empty where there is none.
            burn_in: rows, of the `K`, that only bring the memory up to date.
            noise: `[M, num_noise]`, of the other rows; None: without any.

        Returns:
            Of the other rows, `[M, A, n]`; and the state after the last row.
        """
        with self._precision:
            features = self.encoder(obs)
        after: dict[str, Tensor] = {}
        if self.memory is not None:
            rows = features.float().reshape(*first.shape, -1)
            if burn_in:
                with torch.no_grad():
                    _, state = self.memory(rows[:burn_in], first[:burn_in], state)
            remembered, after = self.memory(rows[burn_in:], first[burn_in:], state)
            features = remembered.flatten(0, 1)
        parts = [None] * len(self.streams) if noise is None else noise.split(self._noise_sizes, -1)
        with self._precision:
            outputs = [stream(features, x) for stream, x in zip(self.streams, parts, strict=True)]
        values = outputs[0].float().reshape(-1, self.num_actions, self._numbers)
        if len(outputs) > 1:
            values = values - values.mean(1, keepdim=True) + outputs[1].float().unsqueeze(1)
        return values, after

    def best(self, values: Tensor, obs: Mapping[str, Tensor]) -> Tensor:
        """`[M]`: of expected values, `[M, A]`, the actions with the highest that are allowed."""
        if self.mask_name is not None:
            values = values.masked_fill(~obs[self.mask_name].bool(), _LOWEST)
        return values.argmax(-1)
