"""Batches that buffer workers draw for a trainer, in the place of `Staging`.

A buffer sends draws over a stream like the actors' (a draw is a block whose lanes are windows), one ahead of what is
learned. A batch is one draw of each. What the learner says about its windows goes back over another such
stream, as priorities.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from srl.core.arrays import Arrays
from srl.core.block import Layout
from srl.core.spec import Field, Spec
from srl.core.streams import Delivery, SampleConsumer, SampleProducer
from srl.core.telemetry import Telemetry
from srl.learning.staging import Batch, HostMemory, Memory, allocate, copy_columns

AHEAD = 2
"""Draws of a buffer that may be under way: the one to be learned, and the next."""
SLOTS = AHEAD + 1
"""Of both streams: one may be written while the others wait."""
_LIFE, _BLOCKS, _ENV_STEPS, _OLDEST_SUM, _OLDEST = range(5)
_NEWS = Spec((Field("news", (5,), "int64", "head"),))
"""The same for every window: which life of the buffer drew it, the blocks that came since its draw before,
their env steps, and of their lowest versions the sum and the least."""
_PRIORITIES = Spec(
    (
        Field("item", (), "int64", "head"),
        Field("life", (), "int64", "head"),
        Field("priority", (), "float32", "head"),
    )
)


def draw_layout(windows: Layout) -> Layout:
    """Layout of what a buffer sends that draws `windows`."""
    spec = windows.spec + _NEWS
    return Layout(spec, windows.rows, windows.lanes, windows.envs, windows.chunk)


def priority_layout(windows: Layout) -> Layout:
    """Layout of what comes back for them."""
    return Layout(_PRIORITIES, 1, windows.lanes, windows.lanes)


def write_news(news: np.ndarray, life: int, came: Batch) -> None:
    """Say what came since the draw before."""
    oldest = came.oldest_rows
    news[:] = life, came.num_blocks, came.env_steps, sum(oldest), min(oldest, default=0)


def read_news(news: np.ndarray, batch: Batch) -> None:
    """Add what came to a batch: as many blocks, whose lowest versions have that sum and that least."""
    _, blocks, env_steps, total, least = (int(n) for n in news[0])
    batch.num_blocks += blocks
    batch.env_steps += env_steps
    if blocks:
        each, rest = divmod(total - least, max(1, blocks - 1))
        others = [each + (i < rest) for i in range(blocks - 1)]
        batch.oldest_rows += [least, *others]


class Drawing:
    """Owns the trainer's ends of the streams from and to its buffers."""

    def __init__(
        self,
        draws: SampleConsumer,
        priorities: Mapping[int, SampleProducer],
        windows: Layout,
        *,
        memory: Memory | None = None,
    ) -> None:
        """Batches of one draw of `windows` by each buffer; `priorities`, where they are told: by buffer."""
        self.telemetry = Telemetry()
        self.layout = windows
        """Of one draw."""
        self._draws = draws
        self._priorities = priorities
        self._places = {buffer: place for place, buffer in enumerate(draws.assigned())}
        """Buffer to its columns of the batch."""
        self._memory = memory or HostMemory()
        self._batch = Batch(allocate(windows, self._memory, blocks=len(self._places)))
        self._waiting: dict[int, deque[Delivery]] = {buffer: deque() for buffer in self._places}
        """Buffer to draws of it for batches to come."""
        self._drawn: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        """Buffer whose draw is in the batch, to its windows and the lives that drew them."""
        self._version = 0
        self._learned = 0
        """Batches, since these ends were made."""
        self._dealt: tuple[int, int] | None = None

    def rebase(self, version: int) -> None:
        """Go on from a recovered version."""
        self._version = version

    def retire(self, producer: int) -> None:
        """Actors are the buffers' to grant to."""

    def enlist(self, producer: int) -> None:
        """Actors are the buffers' to grant to."""

    def pump(self) -> None:
        """Copy draws into the batch, one of each buffer; then let more come."""
        for delivery in self._draws.recv(AHEAD * len(self._places)):
            self._waiting[delivery.producer].append(delivery)
        for buffer, waiting in self._waiting.items():
            if waiting and buffer not in self._drawn:
                self._take(buffer, waiting.popleft())
        for end in self._priorities.values():
            end.poll()
        self._deal()

    def pollables(self) -> Sequence[Any]:
        """Readable when draws arrive."""
        ends = [end.pollables() for end in (self._draws, *self._priorities.values())]
        return [pollable for found in ends for pollable in found]

    def front(self) -> Batch | None:
        """The batch that `pop` will return, or None; it stays where it is."""
        return self._batch if len(self._drawn) == len(self._places) else None

    def pop(self) -> Batch | None:
        """The batch, or None; its draws now count as consumed."""
        batch = self.front()
        if batch is not None:
            self._draws.count_consumed(len(self._places))
        return batch

    def learned(self, batch: Batch, version: int, priorities: np.ndarray | None = None) -> None:
        """The batch's memory is free again; tell its priorities, and let more come."""
        if priorities is not None and self._priorities:
            for buffer, place in self._places.items():
                columns = slice(place * self.layout.lanes, (place + 1) * self.layout.lanes)
                self._tell(buffer, priorities[columns])
        self._batch, self._drawn = Batch(batch.arrays), {}
        self._version = version
        self._learned += 1
        self._deal()

    def close(self) -> None:
        """Leave the streams."""
        for end in (self._draws, *self._priorities.values()):
            end.close()

    def save(self, *, with_blocks: bool) -> Arrays:
        """Nothing: what there is to replay is the buffers' to save, and draws end with the run."""
        return {}

    def load(self, state: Mapping[str, np.ndarray], version: int, *, with_blocks: bool) -> None:
        """Go on from a version; a buffer that was the trainer's own is not taken over."""
        self.rebase(version)

    def _take(self, buffer: int, delivery: Delivery) -> None:
        block = delivery.block
        with self.telemetry.time("stage"):
            copy_columns(self._memory, self.layout, block, self._batch.arrays, self._places[buffer])
        read_news(block["news"], self._batch)
        self._drawn[buffer] = block["item"].copy(), block["news"][:, _LIFE].copy()
        self._draws.take(delivery, dropped=False)

    def _tell(self, buffer: int, priorities: np.ndarray) -> None:
        """Send the priorities of a draw; nobody waits for a buffer that does not listen."""
        grant = self._priorities[buffer].acquire()
        if grant is None:
            self.telemetry.counters["priorities_not_told"] += 1
            return
        items, lives = self._drawn[buffer]
        for name, array in (("item", items), ("life", lives), ("priority", priorities)):
            np.copyto(grant.block[name], array)
        self._priorities[buffer].send(grant)

    def _deal(self) -> None:
        limit = self._learned + AHEAD
        if (limit, self._version) != self._dealt:
            self._dealt = limit, self._version
            self._draws.grant(dict.fromkeys(self._places, limit), self._version)
