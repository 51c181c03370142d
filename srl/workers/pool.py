"""A pool: several policies behind one, each lane answered by the one that its `policy_id` names."""

from collections.abc import Mapping, Sequence

import numpy as np

from srl.core.algorithm import Policy, Records
from srl.core.arrays import Arrays, subset
from srl.core.spec import Field, Spec


class Pool:
    """Batches by id: one call of a member for all of its lanes.

    Members may be of different algorithms, with memories of their own; nobody learns from what
    they do, so only their actions are recorded.
    """

    def __init__(self, members: Sequence[Policy]) -> None:
        self._members = members
        states = [
            Field(f"{i}.{f.name}", f.shape, f.dtype, f.per)
            for i, member in enumerate(members)
            for f in member.records.state
        ]
        outputs = Spec((members[0].records.outputs["action"],))
        self.records = Records(outputs, Spec(tuple(states)), members=len(members))

    def act(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Sample actions for `N` lanes, each by its member."""
        return self._answer(inputs, greedy=False)

    def act_greedy(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Like `act`, but the most likely action."""
        return self._answer(inputs, greedy=True)

    def weights(self) -> Arrays:
        """Those of all members, under their numbers."""
        return {f"{i}.{k}": v for i, m in enumerate(self._members) for k, v in m.weights().items()}

    def load_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Take over the weights of all members."""
        for i, member in enumerate(self._members):
            member.load_weights(subset(weights, f"{i}."))

    def save(self) -> Arrays:
        """State of all members beside their weights."""
        return {f"{i}.{k}": v for i, m in enumerate(self._members) for k, v in m.save().items()}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned."""
        for i, member in enumerate(self._members):
            member.load(subset(state, f"{i}."))

    def _answer(self, inputs: Mapping[str, np.ndarray], *, greedy: bool) -> Arrays:
        ids, states = inputs["policy_id"], self.records.state.names
        seen = {k: v for k, v in inputs.items() if k != "policy_id" and k not in states}
        action = self.records.outputs["action"]
        outputs = {name: inputs[name].copy() for name in states}
        outputs["action"] = np.zeros((len(ids), *action.shape), action.dtype)
        for i, member in enumerate(self._members):
            lanes = np.flatnonzero(ids == i)
            if not len(lanes):
                continue
            own = {name: array[lanes] for name, array in seen.items()}
            memory = {f.name: inputs[f"{i}.{f.name}"][lanes] for f in member.records.state}
            answers = (member.act_greedy if greedy else member.act)(own | memory)
            outputs["action"][lanes] = answers["action"]
            for name in memory:
                outputs[f"{i}.{name}"][lanes] = answers[name]
        return outputs
