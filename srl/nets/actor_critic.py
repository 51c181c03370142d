"""A policy and a value function over the same observations.

Axes: `K` rows in time, `N` sequences (lanes, when acting: then `K` is 1), `M` = `K·N` rows.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from srl.core.compute import Compute
from srl.core.env import AgentSpec, Box, Observation
from srl.core.errors import ConfigError
from srl.core.names import load_object
from srl.nets.compiled import compiled
from srl.nets.encoder import Encoder, EncoderOptions, make_encoder
from srl.nets.heads import ValueHead, make_policy_head
from srl.nets.memory import MemoryOptions, make_memory
from srl.nets.mlp import Activation, Mlp
from srl.nets.normaliser import Normaliser
from srl.nets.precision import layer_precision
from srl.ops.distributions import Distribution
from srl.ops.normalise import moments_of, rescale_output


class Network(Protocol):
    """What a user's network must be: a `torch.nn.Module` made of the observations it will see.

    It is called with them by name, each `[M, *seen_shape]`, and returns features
    `[M, num_features]`. Where actions are masked the mask is not among them.
    """

    num_features: int

    def __init__(self, observations: Sequence[Observation]) -> None: ...

    def __call__(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Features of the observations."""
        ...


class ActorCritic(nn.Module):
    """One body for the actor, one for the critic; encoder and memory before them are shared."""

    def __init__(
        self,
        agent: AgentSpec,
        *,
        network: str | None,
        encoder: EncoderOptions,
        hidden: tuple[int, ...],
        activation: Activation,
        std: float,
        memory: MemoryOptions | None,
        central: bool,
        normalise_observations: bool,
        normalise_returns: bool,
        compute: Compute,
    ) -> None:
        super().__init__()
        self._precision = layer_precision(compute)
        mask = agent.action_mask
        seen = tuple(o for o in agent.observations if o is not mask)
        self.mask_name = None if mask is None else _checked_mask(agent, mask)
        encode = partial(make_encoder, options=encoder, normalise=normalise_observations)
        self.encoder = encode(seen) if network is None else make_network(network, seen)
        num_features = self.encoder.num_features
        self.memory = None if memory is None else make_memory(memory, num_features)
        num_features = num_features if self.memory is None else self.memory.num_features
        shared = agent.central if central else ()
        self.central = encode(shared) if shared else None
        extra = 0 if self.central is None else self.central.num_features
        self.actor = Mlp(num_features, hidden, activation)
        self.critic = Mlp(num_features + extra, hidden, activation)
        self.policy_head = make_policy_head(self.actor.num_features, agent.action, std)
        self.value_head = ValueHead(self.critic.num_features)
        self.returns = Normaliser(()) if normalise_returns else None
        self._encode: Callable[[Mapping[str, Tensor]], Tensor] = self.encoder.forward

    def compile(self) -> None:
        """Compile the encoder, where the time goes; shapes must then stay the same."""
        self._encode = compiled(self.encoder.forward)

    def forward(
        self,
        obs: Mapping[str, Tensor],
        first: Tensor,
        state: Mapping[str, Tensor],
        burn_in: int = 0,
    ) -> tuple[Distribution, Tensor, dict[str, Tensor]]:
        """Act on, or judge, `K` rows of `N` sequences.

        Args:
            obs: each `[M, *shape]`, rows of time outermost.
            first: `[K, N]` bool: an episode begins.
            state: of the memory before row 0, each `[N, *shape]`; empty where there is none.
            burn_in: rows, of the `K`, that only bring the memory up to date.

        Returns:
            Of the other rows: the distribution of the actions, and values `[M]` in the units of
            `normalise_value`; the state after the last row.
        """
        acting, value, after = self.bodies(obs, first, state, burn_in)
        return self.head(acting, obs), value, after

    def bodies(
        self,
        obs: Mapping[str, Tensor],
        first: Tensor,
        state: Mapping[str, Tensor],
        burn_in: int = 0,
        *,
        detach_value: bool = False,
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Like `forward`, but the actor's features `[M, D]` instead of the distribution.

        With `detach_value` no gradient of the values flows into what actor and critic share.
        """
        features, after = self._features(obs, first, state, burn_in)
        with self._precision:
            acting = self.actor(features)
        judged = features.detach() if detach_value else features
        return acting.float(), self._value(obs, judged, burn_in * first.shape[1]), after

    def head(self, acting: Tensor, obs: Mapping[str, Tensor]) -> Distribution:
        """The distribution of the actions by the actor's features; `obs` may begin with a burn-in."""
        if self.mask_name is None:
            return self.policy_head(acting, None)
        allowed = obs[self.mask_name]
        return self.policy_head(acting, allowed[len(allowed) - len(acting) :])

    def value(
        self, obs: Mapping[str, Tensor], first: Tensor, state: Mapping[str, Tensor]
    ) -> Tensor:
        """Values `[M]` in units of reward."""
        features, _ = self._features(obs, first, state, 0)
        return self.denormalise_value(self._value(obs, features, 0))

    def _features(
        self, obs: Mapping[str, Tensor], first: Tensor, state: Mapping[str, Tensor], burn_in: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        with self._precision:
            features = self._encode(obs)
        if self.memory is None:
            return features, {}
        rows = features.float().reshape(*first.shape, -1)
        if burn_in:
            with torch.no_grad():
                _, state = self.memory(rows[:burn_in], first[:burn_in], state)
        remembered, after = self.memory(rows[burn_in:], first[burn_in:], state)
        return remembered.flatten(0, 1), after

    def _value(self, obs: Mapping[str, Tensor], features: Tensor, start: int) -> Tensor:
        with self._precision:
            if self.central is not None:
                features = torch.cat([features, self.central(obs)[start:]], -1)
            judging = self.critic(features)
        return self.value_head(judging.float())

    def normalise_value(self, value: Tensor) -> Tensor:
        """From units of reward to what the critic predicts."""
        return value if self.returns is None else self.returns.normalise(value)

    def denormalise_value(self, value: Tensor) -> Tensor:
        """From what the critic predicts to units of reward."""
        return value if self.returns is None else self.returns.denormalise(value)

    def normalised(self) -> tuple[str, ...]:
        """Observations whose rows `update_normalisers` counts in."""
        return tuple(name for part in self._encoders() for name in part.normalised())

    def _encoders(self) -> list[Encoder]:
        return [x for x in (self.encoder, self.central) if isinstance(x, Encoder)]

    @torch.no_grad()
    def update_normalisers(
        self, obs: Mapping[str, Tensor], returns: Tensor, sum_: Callable[[Tensor], None]
    ) -> None:
        """Count in this rank's rows `[M, ...]`; values, in units of reward, stay what they are.

        `sum_` replaces a tensor by its sum over all ranks.
        """
        for part in self._encoders():
            part.count_in(obs, sum_)
        if self.returns is None:
            return
        old = self.returns.mean.clone(), self.returns.std
        self.returns.update(moments_of(returns, sum_))
        layer, new = self.value_head.value, (self.returns.mean, self.returns.std)
        weight, bias = rescale_output(layer.weight, layer.bias, old, new)
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)


def _checked_mask(agent: AgentSpec, mask: Observation) -> str:
    if isinstance(agent.action, Box):
        raise ConfigError(f"{mask.name!r} masks actions that are real numbers: it cannot")
    return mask.name


def make_network(name: str, observations: Sequence[Observation]) -> Any:
    """A user's `Network`, by its name; raises ConfigError where it is none."""
    made = load_object(name)
    try:
        network = made(observations)
    except Exception as error:
        raise ConfigError(f"algorithm.network {name!r} cannot be made: {error}") from error
    if not isinstance(network, nn.Module) or not isinstance(
        getattr(network, "num_features", None), int
    ):
        raise ConfigError(
            f"algorithm.network {name!r} must make a torch.nn.Module of the observations, with the "
            "attribute num_features: the size of the features it returns"
        )
    _try(name, network, observations)
    return network


@torch.no_grad()
def _try(name: str, network: Any, observations: Sequence[Observation]) -> None:
    """Show it two rows of zeros: a wrong shape is named here, not in the layer that trips over it."""
    zeros = {o.name: torch.from_numpy(np.zeros((2, *o.seen_shape), o.dtype)) for o in observations}
    network.eval()
    try:
        features = network(zeros)
    except Exception as error:
        raise ConfigError(
            f"algorithm.network {name!r} fails when it is called with two rows of "
            f"{list(zeros)}: {type(error).__name__}: {error}"
        ) from error
    network.train()
    wanted = (2, network.num_features)
    if not isinstance(features, Tensor) or features.shape != wanted:
        found = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ConfigError(
            f"algorithm.network {name!r} must return features [rows, num_features], here "
            f"{list(wanted)} for two rows, and returns {found}"
        )
