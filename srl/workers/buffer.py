"""The buffer: keeps what actors send, and draws from it for a trainer, in a process of its own.

It stands on a sample stream in a trainer's place. Several of a policy share its actors, and every draw.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from srl.core.arrays import Arrays
from srl.core.streams import Grant, SampleConsumer, SampleProducer
from srl.core.telemetry import Telemetry
from srl.learning.drawing import SLOTS, write_news
from srl.learning.guard import Guard
from srl.learning.keeping import Keeping
from srl.learning.replay.replay import Replay
from srl.learning.staging import Batch


class Buffer:
    """A replay buffer between two sample streams.

    reads: blocks of actors; priorities of a trainer
    writes: draws
    waits for: blocks, until enough are there; leave to draw
    unblocked by: actors that deliver blocks; a trainer that has learned a draw
    """

    waiting = "wait_for_leave"

    def __init__(
        self,
        name: str,
        replay: Replay,
        blocks: SampleConsumer,
        draws: SampleProducer,
        priorities: SampleConsumer | None,
        *,
        life: int,
        guard: Guard,
    ) -> None:
        """Keep `blocks` that pass the `guard`, and draw from them.

        `priorities` are of draws of this `life` or an earlier one.
        """
        self.name = name
        self.telemetry = Telemetry()
        self.version = 0
        """The last one that the trainer was known to have."""
        self._replay = replay
        self._keeping = Keeping(blocks, replay, self.telemetry, guard)
        self._draws = draws
        self._priorities = priorities
        self._life = life
        self._came = Batch({})
        """What came since the draw before."""
        self._grant: Grant | None = None
        self._has_leave = False
        """There was leave to draw: the trainer is there, and so is its first version."""
        self._told = 0
        """Times that priorities came, or may yet come."""

    def open(self) -> None:
        """There is nothing to prepare."""

    def step(self) -> bool:
        """Keep what came, draw if that is allowed, let actors go on."""
        moved = self._keeping.keep(self._came, self.version)
        moved |= self._heed()
        self._draws.poll()
        if self._grant is None:
            self._grant = self._draws.acquire()
        if self._grant is not None:
            self._has_leave = True
            self.version = max(self.version, self._grant.min_version)
            moved |= self._draw(self._grant)
        if self._has_leave:
            self._keeping.deal(self.version)
        self.waiting = "wait_for_leave" if self._grant is None else "wait_for_blocks"
        return moved

    def pollables(self) -> Sequence[Any]:
        """Readable when blocks, leave or priorities arrive."""
        told = () if self._priorities is None else self._priorities.pollables()
        return [*self._keeping.pollables(), *self._draws.pollables(), *told]

    def close(self) -> None:
        """Leave the streams."""
        self._keeping.close()
        self._draws.close()
        if self._priorities is not None:
            self._priorities.close()

    def save(self) -> Arrays:
        """All that is kept."""
        return self._keeping.save(with_blocks=False)

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned; what actors send next comes after a gap."""
        self._keeping.load(state, with_blocks=False)

    def retire(self, actor: int) -> None:
        """Expect nothing more of an actor."""
        self._keeping.retire(actor)

    def enlist(self, actor: int) -> None:
        """Have an actor take part that was not there before."""
        self._keeping.enlist(actor)

    def _heed(self) -> bool:
        """Take in priorities; those of an earlier life's draws are of rows that are not here."""
        if self._priorities is None:
            return False
        deliveries = self._priorities.recv(SLOTS)
        for delivery in deliveries:
            block = delivery.block
            if block["life"][0] == self._life:
                self._replay.update(block["item"].copy(), block["priority"].copy())
            self._priorities.take(delivery, dropped=False)
        if deliveries or not self._told:
            self._told += len(deliveries) or SLOTS
            limits = dict.fromkeys(self._priorities.assigned(), self._told)
            self._priorities.grant(limits, min_version=0)
        return bool(deliveries)

    def _draw(self, grant: Grant) -> bool:
        fields = grant.block.fields
        with self.telemetry.time("draw"):
            if not self._replay.draw(
                {name: fields[name] for name in self._replay.layout.spec.names}
            ):
                return False
        write_news(fields["news"], self._life, self._came)
        self._came = Batch({})
        self._draws.send(grant)
        self._grant = None
        self.telemetry.counters["draws"] += 1
        self.telemetry.counters["rows_kept"] = self._replay.size
        return True
