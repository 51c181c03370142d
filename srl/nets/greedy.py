"""The best actions of a policy as one module: what is exported, to act without SRL.

Axes: `N` lanes; every input and output has it first, and any number of them can be shown.
"""

from typing import Any

import torch
from torch import Tensor, nn

from srl.core.env import ActionSpace, AgentSpec, Box, Discrete, MultiDiscrete, Observation
from srl.core.errors import ConfigError
from srl.nets.conv import ConvNet
from srl.nets.policy import NetworkPolicy, Tensors

Rows = dict[str, tuple[tuple[int, ...], str]]
"""Name to shape and dtype, of one lane."""
_SHOWN = 3
"""Lanes it is traced with: not 0 or 1, which torch takes for constants."""


class Greedy(nn.Module):
    """From what an env shows to what it takes, as its own spaces have it."""

    inputs: Rows
    """Observations; with a memory also `first`, which says that an episode begins, and its state."""
    outputs: Rows
    """The action; with a memory also the state to show next."""

    def __init__(self, policy: NetworkPolicy[Any], agent: AgentSpec) -> None:
        super().__init__()
        self.network = policy.network
        self._policy = policy
        self._agent = agent
        self._state = policy.records.state
        for part in self.network.modules():
            if isinstance(part, ConvNet):
                part.folds = False
        seen = {o.name: (o.seen_shape, o.dtype) for o in agent.observations}
        state = {field.name: (field.shape, field.dtype) for field in self._state.fields}
        first: Rows = {"first": ((), "bool")} if state else {}
        self.inputs = seen | first | state
        self.outputs = {"action": _row_of(agent.action)}
        self.outputs |= {f"next_{name}": row for name, row in state.items()}

    def forward(self, inputs: Tensors) -> Tensors:
        """Every input `[N, *shape]`; the actions and the next state of N lanes."""
        num_lanes = next(iter(inputs.values())).shape[0]
        shown = {o.name: _counted_from_zero(inputs[o.name], o) for o in self._agent.observations}
        # what only critics see, and `first` where nothing is remembered: any value does
        shown |= {o.name: _zeros(num_lanes, o.seen_shape, o.dtype) for o in self._agent.central}
        shown["first"] = inputs.get("first", torch.zeros(num_lanes, dtype=torch.bool))
        shown |= {name: inputs[name] for name in self._state.names}
        answer = self._policy._take_best(shown)
        after = {f"next_{name}": answer[name] for name in self._state.names}
        return {"action": _as_taken(answer["action"], self._agent), **after}

    def example(self) -> Tensors:
        """Inputs of the right shapes, all of them zeros."""
        return {name: _zeros(_SHOWN, *row) for name, row in self.inputs.items()}


def _zeros(num_lanes: int, shape: tuple[int, ...], dtype: str) -> Tensor:
    return torch.zeros(num_lanes, *shape, dtype=getattr(torch, dtype))


def _row_of(action: ActionSpace) -> tuple[tuple[int, ...], str]:
    """An action as the env takes it."""
    field = action.field
    shape = action.shape if isinstance(action, MultiDiscrete) and action.shape else field.shape
    return shape, field.dtype


def _counted_from_zero(x: Tensor, seen: Observation) -> Tensor:
    """An observation as it lies in a row; the env may count categories from elsewhere."""
    if not seen.start:
        return x
    return x - torch.tensor(seen.start, dtype=x.dtype).reshape(seen.shape)


def _as_taken(action: Tensor, agent: AgentSpec) -> Tensor:
    """The policy's actions `[N, ...]` as the env takes them: what env adapters do."""
    space = agent.action
    if isinstance(space, Discrete):
        return action + space.start
    if isinstance(space, Box):
        low, high = (torch.tensor(x).reshape(space.shape) for x in (space.low, space.high))
        return action.clamp(low, high)
    start = torch.tensor(space.start or (0,) * len(space.nvec))
    return (action + start).reshape(-1, *_row_of(space)[0])


def trace(greedy: Greedy) -> torch.export.ExportedProgram:
    """The module as a graph for any number of lanes; raises ConfigError where torch cannot."""
    lanes = torch.export.Dim("N")
    shapes = {name: {0: lanes} for name in greedy.inputs}
    try:
        # strict: the other way takes every len(x) in a network for a constant
        with torch.no_grad():
            return torch.export.export(
                greedy, (greedy.example(),), dynamic_shapes=(shapes,), strict=True
            )
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"torch cannot follow what {type(greedy.network).__name__} does, and so not export it: "
            f"{type(error).__name__}: {reason}"
        ) from error
