"""A batch of blocks as tensors, read in chunks: rows of one lane that are learned together.

Rows are counted flat, time outermost: row `t` of lane `b` is `t·B + b`. Axes: `R` rows of a batch in
time, of which `T` are learned from after a burn-in; `B` lanes; `K` rows of a chunk; `Q` chunks; `m` of
them; `n` rows.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from srl.core.algorithm import Records
from srl.core.env import AgentSpec
from srl.nets.tensors import tensor_of

Arrays = Mapping[str, np.ndarray]


class Chunks:
    """Every observation once, as it was recorded; stacks are rebuilt when they are read."""

    def __init__(
        self, batch: Arrays, agent: AgentSpec, records: Records, device: torch.device
    ) -> None:
        num_rows, self.num_lanes = batch["first"].shape
        self.burn_in, self.length = records.burn_in, records.chunk
        self.num_learned = num_rows - 1 - self.burn_in
        per_lane = self.num_learned // self.length
        self.num_chunks = per_lane * self.num_lanes
        self.device = device
        lanes = torch.arange(self.num_lanes, device=device)
        jumps = torch.arange(per_lane, device=device) * (self.length * self.num_lanes)
        self._starts = (jumps[:, None] + lanes).reshape(-1)
        """`[Q]`: the row at which the burn-in of each chunk begins."""
        self._obs = {name: self._flat(batch[name]) for name in agent.observation_names}
        self._stacks = {o.name: o.stack for o in agent.observations if o.stack > 1}
        self._shared = frozenset(o.name for o in agent.central)
        self._agents = self.num_lanes
        for name in self._shared:
            self._agents = self.num_lanes // batch[name].shape[1]
        self._first = self._flat(batch["first"])
        self._states = {name: self._flat(batch[name][:per_lane]) for name in records.state.names}
        self._steps = tensor_of(_steps(batch), device).reshape(-1) if self._stacks else self._first

    def learned(self, array: np.ndarray) -> np.ndarray:
        """The rows of a recorded field that are learned from, `[T, B, ...]`."""
        return array[self.burn_in : self.burn_in + self.num_learned]

    def having(self, mask: np.ndarray) -> Tensor:
        """`[m]` chunks with a row where `mask`, `[T, B]`, holds."""
        chunks = mask.reshape(-1, self.length, self.num_lanes).any(axis=1)
        return tensor_of(np.flatnonzero(chunks), self.device)

    def rows(self, chunks: Tensor) -> Tensor:
        """Learned rows of `chunks`, `[m]`, counted among those of `learned`: `[K·m]`."""
        return self._rows(chunks, self.length)

    def read(self, chunks: Tensor) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]:
        """What a network is shown of `chunks`, `[m]`, burn-in first.

        Returns:
            Observations, each `[(burn_in + K)·m, *shape]`; `first`, `[burn_in + K, m]`; and the
            states before them, each `[m, *shape]`.
        """
        length = self.burn_in + self.length
        rows = self._rows(chunks, length)
        first = self._first.index_select(0, rows).reshape(length, len(chunks))
        states = {name: x.index_select(0, chunks) for name, x in self._states.items()}
        return self.observe(rows, self._obs), first, states

    def observe(self, rows: Tensor, names: Iterable[str]) -> dict[str, Tensor]:
        """The named observations of `rows`, `[n]`, each `[n, *shape]`."""
        return {name: self._observe(name, rows) for name in names}

    def last(self, states: Arrays) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]:
        """What a network is shown of the row after the last learned one, and its states, `[B]`."""
        count = (self.burn_in + self.num_learned) * self.num_lanes
        rows = torch.arange(count, count + self.num_lanes, device=self.device)
        first = self._first[count:].unsqueeze(0)
        latest = {name: tensor_of(states[name][-1], self.device) for name in self._states}
        return self.observe(rows, self._obs), first, latest

    def _rows(self, chunks: Tensor, length: int) -> Tensor:
        starts = self._starts.index_select(0, chunks)
        if length == 1:
            return starts
        steps = torch.arange(length, device=self.device) * self.num_lanes
        return (steps[:, None] + starts).reshape(-1)

    def _observe(self, name: str, rows: Tensor) -> Tensor:
        stored = self._obs[name]
        if name in self._shared:
            envs = self.num_lanes // self._agents
            time, lane = rows // self.num_lanes, rows % self.num_lanes
            return stored.index_select(0, time * envs + lane // self._agents)
        stack = self._stacks.get(name, 1)
        if stack == 1:
            return stored.index_select(0, rows)
        # row t is stored stack - 1 places further down: t to t + stack - 1 are its stack
        offsets = torch.arange(stack, device=self.device)
        wanted = rows[:, None] + offsets * self.num_lanes
        stacked = stored.index_select(0, wanted.reshape(-1)).reshape(
            *wanted.shape, *stored.shape[1:]
        )
        before = offsets < stack - 1 - self._steps.index_select(0, rows)[:, None]
        if self.device.type == "cpu":  # these are few, and a pass over all would take long
            stacked.flatten(0, 1).index_fill_(0, before.reshape(-1).nonzero().squeeze(1), 0)
            return stacked
        return stacked.masked_fill_(before.reshape(*before.shape, *[1] * (stored.ndim - 1)), 0)

    def _flat(self, array: np.ndarray) -> Tensor:
        return tensor_of(array.reshape(-1, *array.shape[2:]), self.device)


def _steps(batch: Arrays) -> np.ndarray:
    """`[R, B] int64`: number of each row in its episode."""
    first = batch["first"].copy()
    first[0] = False  # row 0 is numbered by the head
    numbers = np.arange(len(first))[:, None]
    began = np.maximum.accumulate(np.where(first, numbers, 0), axis=0)
    return np.where(began > 0, numbers - began, batch["step"] + numbers)
