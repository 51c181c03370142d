"""Sample stream within one process: a function call, in a fixed order."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from srl.core.arrays import Arrays
from srl.core.streams import Delivery, Grant
from srl.transport.blocks import BlockArena


class InlineSamples:
    """The stream itself; `producer` and `consumer` are its ends."""

    def __init__(self, blocks: BlockArena) -> None:
        num_producers = blocks.table.num_producers
        self.blocks = blocks
        self.queue: deque[Delivery] = deque()
        self.limits = np.zeros(num_producers, np.int64)
        self.started = np.zeros(num_producers, np.int64)
        self.abandoned = np.zeros(num_producers, np.int64)
        self.min_version = 0

    def producer(self, index: int) -> "InlineProducer":
        """The end of actor `index`."""
        return InlineProducer(self, index)

    def consumer(self) -> "InlineConsumer":
        """The trainer's end."""
        return InlineConsumer(self)

    def save(self) -> Arrays:
        """Every block, full, queued or being filled, and the credit."""
        queue = [(d.producer, d.slot) for d in self.queue]
        return {
            "arena": self.blocks.buffer.copy(),
            "queue": np.array(queue, np.int64).reshape(-1, 2),
            "limits": self.limits.copy(),
            "started": self.started.copy(),
            "abandoned": self.abandoned.copy(),
            "min_version": np.array(self.min_version),
        }

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned."""
        np.copyto(self.blocks.buffer, state["arena"])
        self.queue = deque(
            Delivery(int(p), int(s), self.blocks.block(int(p), int(s))) for p, s in state["queue"]
        )
        np.copyto(self.limits, state["limits"])
        np.copyto(self.started, state["started"])
        np.copyto(self.abandoned, state["abandoned"])
        self.min_version = int(state["min_version"])


class InlineProducer:
    """An actor's end."""

    def __init__(self, stream: InlineSamples, index: int) -> None:
        self._stream = stream
        self._index = index
        self._filling: set[int] = set()

    def acquire(self) -> Grant | None:
        """A block to fill, or None."""
        stream, me = self._stream, self._index
        if stream.started[me] >= stream.limits[me]:
            return None
        for slot in range(stream.blocks.table.num_slots):
            if slot not in self._filling and stream.blocks.table.is_free(me, slot):
                stream.started[me] += 1
                return self.resume(slot, stream.min_version)
        return None

    def resume(self, slot: int, min_version: int) -> Grant:
        """Go on filling a slot that a checkpoint brought back."""
        self._filling.add(slot)
        return Grant(slot, self._stream.blocks.block(self._index, slot), min_version)

    def send(self, grant: Grant) -> None:
        """Hand the block over."""
        self._filling.remove(grant.slot)
        self._stream.blocks.table.publish(self._index, grant.slot)
        self._stream.queue.append(Delivery(self._index, grant.slot, grant.block))

    def abandon(self, grant: Grant) -> None:
        """Give the block back unsent."""
        self._filling.remove(grant.slot)
        self._stream.abandoned[self._index] += 1

    def poll(self) -> None:
        """Credit needs no message here."""

    def pollables(self) -> Sequence[Any]:
        """Nothing to wait on."""
        return ()

    def close(self) -> None:
        """Nothing to free."""


class InlineConsumer:
    """The trainer's end."""

    def __init__(self, stream: InlineSamples) -> None:
        self._stream = stream

    def recv(self, limit: int) -> list[Delivery]:
        """Blocks in the order they were sent."""
        queue = self._stream.queue
        return [queue.popleft() for _ in range(min(limit, len(queue)))]

    def take(self, delivery: Delivery, *, dropped: bool) -> None:
        """Free the block's slot."""
        self._stream.blocks.table.take(delivery.producer, delivery.slot, dropped=dropped)

    def count_consumed(self, num_blocks: int) -> None:
        """Blocks taken earlier are a learner's now."""
        self._stream.blocks.table.count_consumed(num_blocks)

    def abandoned(self) -> int:
        """Blocks granted that will never come."""
        return int(self._stream.abandoned.sum())

    def grant(self, limits: Mapping[int, int], min_version: int) -> None:
        """Set each producer's credit."""
        for producer, limit in limits.items():
            self._stream.limits[producer] = max(self._stream.limits[producer], limit)
        self._stream.min_version = min_version

    def assigned(self) -> Sequence[int]:
        """All producers: there is one consumer in one process."""
        return range(self._stream.blocks.table.num_producers)

    def producers(self) -> Sequence[int]:
        """All of them: nobody joins later in one process."""
        return range(self._stream.blocks.table.num_producers)

    def pollables(self) -> Sequence[Any]:
        """Nothing to wait on."""
        return ()

    def close(self) -> None:
        """Nothing to free."""
