"""Inference within the actor's own process: the policy is called where the request is posted."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from srl.core.algorithm import Policy
from srl.core.arrays import Arrays
from srl.core.errors import StreamError
from srl.core.streams import Grant, ParameterSubscriber


class InlineInference:
    """The client's end, holding the policy; there is no other end.

    reads: the row's observation, parameters when a newer version is there
    writes: the row's outputs and version, the latest state
    """

    def __init__(
        self, policy: Policy, parameters: ParameterSubscriber, inputs: tuple[str, ...]
    ) -> None:
        self._policy = policy
        self._parameters = parameters
        self._inputs = inputs
        self._version = -1
        self._answered: list[int] = []

    def post(self, group: int, grant: Grant, row: int) -> None:
        """Answer at once."""
        if self._parameters.latest() != self._version:
            self._version, weights = self._parameters.fetch()
            self._policy.load_weights(weights)
        if self._version < grant.min_version:
            raise StreamError(
                f"version {grant.min_version} was granted, but only {self._version} is published"
            )
        grant.block.answer(self._policy.act(grant.block.inputs(self._inputs, row)), row)
        grant.block["version"][row] = self._version
        self._answered.append(group)

    def poll(self) -> Sequence[int]:
        """Groups answered since the last call."""
        answered, self._answered = self._answered, []
        return answered

    def save(self) -> Arrays:
        """The policy's random generators, and who was answered and has not stepped yet."""
        return self._policy.save() | {"answered": np.array(self._answered, np.int64)}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned."""
        self._answered = [int(group) for group in state["answered"]]
        self._policy.load({k: v for k, v in state.items() if k != "answered"})

    def pollables(self) -> Sequence[Any]:
        """Nothing to wait on."""
        return ()

    def close(self) -> None:
        """Leave the parameter stream."""
        self._parameters.close()
