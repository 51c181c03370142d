"""What the policies of all algorithms are: a network, its generator, and how both are kept.

Axes: `N` lanes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from srl.core.algorithm import Arrays, Pending, Records
from srl.core.compute import Compute
from srl.core.env import AgentSpec
from srl.nets.acting import begin_acting
from srl.nets.tensors import array_of, load_arrays

NetworkT = TypeVar("NetworkT", bound=nn.Module)
Tensors = dict[str, Tensor]


class NetworkPolicy(ABC, Generic[NetworkT]):
    """A network and the generator it samples with; an algorithm says what its answers mean."""

    def __init__(
        self,
        make_network: Callable[[], NetworkT],
        agent: AgentSpec,
        records: Records,
        *,
        seed: int,
        compute: Compute,
    ) -> None:
        """Make the network; equal seeds give equal weights and equal samples."""
        self.records = records
        self.device = torch.device(compute.device)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.network = make_network().to(self.device)
        self.observation_names = agent.observation_names
        self.tensors: Tensors = self.network.state_dict(keep_vars=True)
        self.action = agent.action
        # on the CPU whatever the device: equal seeds sample alike, and checkpoints change device
        self.generator = torch.Generator().manual_seed(seed)
        self.ahead = int(self.device.type == "cuda")
        self._begin = begin_acting(self._sample, self.device)
        self._begin_greedy = begin_acting(self._take_best, self.device)

    @abstractmethod
    def _draw(self, num_lanes: int) -> Tensors:
        """What `_sample` needs of the generator for N lanes, each `[N, ...]`."""

    @abstractmethod
    def _sample(self, inputs: Tensors) -> Tensors:
        """All outputs and the next state for N lanes, by their inputs and what was drawn."""

    @abstractmethod
    def _take_best(self, inputs: Tensors) -> Tensors:
        """Like `_sample`, but the best actions, and nothing was drawn."""

    def act(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Sample actions for N lanes."""
        return self.begin(inputs).outputs()

    def begin(self, inputs: Mapping[str, np.ndarray]) -> Pending:
        """Begin to sample actions for N lanes: a GPU computes while its host does other things."""
        return self._begin({**inputs, **self._draw(len(inputs["first"]))})

    def act_greedy(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Take the best actions for N lanes."""
        return self._begin_greedy(inputs).outputs()

    def observed(self, inputs: Tensors) -> tuple[Tensors, Tensor, Tensors]:
        """One row of N lanes: observations, `first` as `[1, N]`, and the state of the memory."""
        obs, state = (
            {name: inputs[name] for name in names}
            for names in (self.observation_names, self.records.state.names)
        )
        return obs, inputs["first"].unsqueeze(0), state

    def weights(self) -> Arrays:
        """Parameters and normalisers: views of those in use where they are on the CPU."""
        return {name: array_of(tensor) for name, tensor in self.tensors.items()}

    def load_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Take over weights; raises CheckpointError naming a tensor that does not fit."""
        load_arrays(self.tensors, weights)

    def save(self) -> Arrays:
        """State of the sampling generator."""
        return {"generator": array_of(self.generator.get_state())}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned."""
        self.generator.set_state(torch.tensor(state["generator"]))
