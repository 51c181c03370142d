"""The policy worker: answers the action requests of many actors in one batch."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from srl.core.algorithm import ActsAhead, Done, Pending, Policy
from srl.core.arrays import Arrays
from srl.core.block import Stack
from srl.core.errors import StreamError
from srl.core.streams import InferenceServer, ParameterSubscriber, Request
from srl.core.telemetry import Telemetry


class Gather(Protocol):
    """Copies the rows of requests into one batch: the only read of an observation for inference."""

    def __call__(self, requests: Sequence[Request]) -> Arrays:
        """What the policy is shown, each `[N, *shape]`; valid until the next call."""
        ...


class HostGather:
    """Into memory of the host."""

    def __init__(self) -> None:
        self._staging: Arrays = {}

    def __call__(self, requests: Sequence[Request]) -> Arrays:
        """Copy every row once."""
        return {name: self.field(requests, name) for name in requests[0].inputs}

    def field(self, requests: Sequence[Request], name: str) -> np.ndarray:
        """One field of all requests."""
        example = requests[0].inputs[name]
        total = sum(len(request.inputs[name]) for request in requests)
        target = self._staging.get(name)
        if target is None or len(target) < total:
            target = np.empty((2 * total, *example.shape[1:]), example.dtype)
            self._staging[name] = target
        start = 0
        for request in requests:
            rows = request.inputs[name]
            stop = start + len(rows)
            if isinstance(rows, Stack):
                rows.write(target[start:stop])
            else:
                np.copyto(target[start:stop], rows)
            start = stop
        return target[:total]


class PolicyWorker:
    """One policy behind one inference stream.

    reads: rows, by requests; parameters
    writes: answers
    waits for: requests
    unblocked by: actors
    """

    waiting = "wait_for_requests"

    def __init__(
        self,
        name: str,
        policy: Policy,
        server: InferenceServer,
        parameters: ParameterSubscriber,
        gather: Gather | None = None,
        *,
        patience_seconds: float = 0.0,
    ) -> None:
        """Answer by `policy`; where it acts ahead, the next batch is begun before one is answered.

        A request for a version that is not here waits for it at most `patience_seconds`: from another host,
        parameters may come later than leave to use them.
        """
        self.name = name
        self.telemetry = Telemetry()
        self._policy = policy
        self._server = server
        self._parameters = parameters
        self._version = -1
        self._gather = gather or HostGather()
        self._patience = patience_seconds
        self._early: list[Request] = []
        """Requests for a version that is not here yet."""
        self._since: dict[int, float] = {}
        """Which of them (by `id`) came when."""
        self._under_way: deque[_UnderWay] = deque()
        self._ahead, self._act = 0, partial(_act, policy)
        if isinstance(policy, ActsAhead):  # asked once: a protocol takes long to tell
            self._ahead, self._act = policy.ahead, policy.begin

    def open(self) -> None:
        """Nothing to prepare: the first parameters come with the first request."""

    def step(self) -> bool:
        """Answer everything that has arrived, in one batch: the longer it waits, the larger."""
        requests = self._server.recv()
        if self._early or (requests and self._patience):
            requests = self._ripe([*self._early, *requests])
        if requests:
            self._begin(requests)
        if not self._under_way:
            return False
        if len(self._under_way) > self._ahead or self._under_way[0].pending.is_ready():
            self._finish(self._under_way.popleft())
        return True

    def pollables(self) -> Sequence[Any]:
        """The request socket, and what tells of parameters."""
        return (*self._server.pollables(), *self._parameters.pollables())

    def close(self) -> None:
        """Leave both streams."""
        self._server.close()
        self._parameters.close()

    def save(self) -> Arrays:
        """The policy's random generators."""
        return self._policy.save()

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned."""
        self._policy.load(state)

    def _ripe(self, requests: Sequence[Request]) -> list[Request]:
        """Those that can be answered; others are kept, for a while."""
        version, now = self._parameters.latest(), time.monotonic()
        self._early = [r for r in requests if r.min_version > version]
        self._since = {id(r): self._since.get(id(r), now) for r in self._early}
        if self._early and now - min(self._since.values()) > self._patience:
            wanted = max(r.min_version for r in self._early)
            raise StreamError(
                f"version {wanted} was asked for, but for {self._patience:.0f} s only {version} is here: "
                "is the trainer's host cut off?"
            )
        return [r for r in requests if r.min_version <= version]

    def _refresh(self, min_version: int) -> None:
        if self._parameters.latest() != self._version:
            self._version, weights = self._parameters.fetch()
            self._policy.load_weights(weights)
            self.telemetry.counters["fetches"] += 1
        if self._version < min_version:
            raise StreamError(
                f"version {min_version} was asked for, but only {self._version} is published"
            )

    def _begin(self, requests: Sequence[Request]) -> None:
        with self.telemetry.time("fetch"):
            self._refresh(max(request.min_version for request in requests))
        with self.telemetry.time("gather"):
            inputs = self._gather(requests)
        with self.telemetry.time("forward"):
            pending = self._act(inputs)
        self._under_way.append(_UnderWay(requests, pending, self._version))
        self.telemetry.counters["batches"] += 1
        self.telemetry.counters["requests"] += len(requests)

    def _finish(self, batch: "_UnderWay") -> None:
        with self.telemetry.time("forward"):
            outputs = batch.pending.outputs()
        with self.telemetry.time("reply"):
            start = 0
            for request in batch.requests:
                stop = start + len(next(iter(request.inputs.values())))
                answer = {name: array[start:stop] for name, array in outputs.items()}
                self._server.reply(request, answer, batch.version)
                start = stop


class _UnderWay(NamedTuple):
    """A batch that a policy was shown."""

    requests: Sequence[Request]
    pending: Pending
    version: int


def _act(policy: Policy, inputs: Arrays) -> Pending:
    return Done(policy.act(inputs))
