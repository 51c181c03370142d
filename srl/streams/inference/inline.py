"""Inference within the actor's own process: the policy is called where the request is posted."""

import time
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
        self,
        policy: Policy,
        parameters: ParameterSubscriber,
        inputs: tuple[str, ...],
        *,
        patience_seconds: float = 0.0,
    ) -> None:
        """Act by `policy`, on `inputs`.

        A row that demands a version that is not here waits for it at most `patience_seconds`: from
        another host, parameters may come later than leave to use them.
        """
        self._patience = patience_seconds
        self._early: dict[int, tuple[Grant, int, float]] = {}
        """Group to a row that waits, and since when."""
        self._policy = policy
        self._parameters = parameters
        self._inputs = inputs
        self._version = -1
        self._answered: list[int] = []

    def post(self, group: int, grant: Grant, row: int) -> None:
        """Answer at once, if the version is here."""
        if self._patience and self._parameters.latest() < grant.min_version:
            self._early[group] = grant, row, time.monotonic()
            return
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
        if self._early:
            self._try_again()
        answered, self._answered = self._answered, []
        return answered

    def _try_again(self) -> None:
        now = time.monotonic()
        for group, (grant, row, since) in [*self._early.items()]:
            if self._parameters.latest() >= grant.min_version:
                del self._early[group]
                self.post(group, grant, row)
            elif now - since > self._patience:
                raise StreamError(
                    f"version {grant.min_version} was granted, but for {self._patience:.0f} s only "
                    f"{self._parameters.latest()} is here: is the trainer's host cut off?"
                )

    def save(self) -> Arrays:
        """The policy's random generators, and who was answered and has not stepped yet."""
        return self._policy.save() | {"answered": np.array(self._answered, np.int64)}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned."""
        self._answered = [int(group) for group in state["answered"]]
        self._policy.load({k: v for k, v in state.items() if k != "answered"})

    def pollables(self) -> Sequence[Any]:
        """What tells of parameters."""
        return self._parameters.pollables()

    def close(self) -> None:
        """Leave the parameter stream."""
        self._parameters.close()
