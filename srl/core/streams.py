"""The three edges of the dataflow, as the workers see them.

Nothing here blocks: `poll` and `recv` return what has arrived. A worker waits in one place, on
the `pollables` of all of its streams together. Every endpoint's `close` may be called twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from srl.core.arrays import Arrays
from srl.core.block import Block, Stack


class Endpoint(Protocol):
    """What every end of every stream has."""

    def pollables(self) -> Sequence[Any]:
        """Sockets or descriptors that become readable when there is something to do."""
        ...

    def close(self) -> None:
        """Leave the stream and free what this end owns."""
        ...


class Grant(NamedTuple):
    """Leave to fill one block."""

    slot: int
    block: Block
    min_version: int
    """The lowest version of the policy that its rows may have."""


class SampleProducer(Endpoint, Protocol):
    """An actor's end of a sample stream."""

    def acquire(self) -> Grant | None:
        """A block to fill, or None while there is no credit or no free slot."""
        ...

    def send(self, grant: Grant) -> None:
        """Hand the filled block over; its memory must not be written afterwards."""
        ...

    def abandon(self, grant: Grant) -> None:
        """Give a block back unsent; its credit is free for others."""
        ...

    def resume(self, slot: int, min_version: int) -> Grant:
        """Go on filling a slot that a checkpoint brought back.

        Raises StreamError where the stream's blocks are not part of checkpoints.
        """
        ...

    def poll(self) -> None:
        """Take in credit that has arrived; raises StreamError where the Specs do not agree."""
        ...


class Delivery(NamedTuple):
    """A block that arrived."""

    producer: int
    slot: int
    block: Block


class SampleConsumer(Endpoint, Protocol):
    """A trainer's (or buffer's) end of a sample stream."""

    def recv(self, limit: int) -> list[Delivery]:
        """At most `limit` blocks that have arrived, in order a producer; each is returned once."""
        ...

    def take(self, delivery: Delivery, *, dropped: bool) -> None:
        """Say that the block was copied out (or is not wanted); its memory is free again."""
        ...

    def count_consumed(self, num_blocks: int) -> None:
        """Say that blocks taken earlier were handed to a learner."""
        ...

    def abandoned(self) -> int:
        """Blocks that were granted and that producers said they will never send, in all."""
        ...

    def grant(self, limits: Mapping[int, int], min_version: int) -> None:
        """Tell each producer how many blocks it may ever have started (never less than before)."""
        ...

    def assigned(self) -> Sequence[int]:
        """Producers whose blocks come here and nowhere else, joined or not."""
        ...

    def producers(self) -> Sequence[int]:
        """Producers that have joined."""
        ...


class InferenceClient(Endpoint, Protocol):
    """An actor's end of an inference stream: one request at a time for each group."""

    def post(self, group: int, grant: Grant, row: int) -> None:
        """Ask for the actions of row `row`, whose observation is written."""
        ...

    def poll(self) -> Sequence[int]:
        """Groups whose row has just been completed: outputs and version are written into it.

        Raises StreamError where no policy worker answered within the time-out.
        """
        ...

    def save(self) -> Arrays:
        """State of a policy that lives here (random generators); empty where none does."""
        ...

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """One group's question."""

    client: int
    group: int
    sequence: int
    min_version: int
    inputs: Mapping[str, np.ndarray | Stack]
    """Views of the row, each `[L, *shape]`: read in place, never written."""
    reply_to: Any


class InferenceServer(Endpoint, Protocol):
    """A policy worker's end of an inference stream."""

    def recv(self) -> list[Request]:
        """Requests that have arrived."""
        ...

    def reply(self, request: Request, outputs: Mapping[str, np.ndarray], version: int) -> None:
        """Answer one request with `[L, *shape]` arrays; a client that is gone is ignored."""
        ...


class ParameterPublisher(Endpoint, Protocol):
    """A trainer's end of a parameter stream."""

    def publish(self, weights: Mapping[str, np.ndarray], version: int) -> None:
        """Make `version` the latest; readers see all of it or none of it."""
        ...


class ParameterSubscriber(Endpoint, Protocol):
    """A policy's end of a parameter stream."""

    def latest(self) -> int:
        """The latest published version; -1 before the first. Costs a memory read."""
        ...

    def fetch(self) -> tuple[int, Arrays]:
        """The latest version and its weights (valid until the next fetch).

        Raises StreamError before the first version.
        """
        ...
