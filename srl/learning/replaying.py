"""Draws batches from a replay buffer in the trainer's process, in the place of `Staging`.

A batch is drawn between two updates as soon as the rate of the buffer allows it. What the learner says about
its windows goes back as priorities.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from srl.core.arrays import Arrays
from srl.core.streams import SampleConsumer
from srl.core.telemetry import Telemetry
from srl.learning.guard import Guard
from srl.learning.keeping import Keeping
from srl.learning.replay.replay import Replay
from srl.learning.staging import Batch, HostMemory, allocate


class Replaying:
    """Owns the consumer's end of the sample stream, and a replay buffer."""

    def __init__(self, consumer: SampleConsumer, replay: Replay, guard: Guard) -> None:
        """Keep the blocks of `consumer` in `replay`, if they pass the `guard`."""
        self.telemetry = Telemetry()
        self.layout = replay.layout
        """Of what the learner is given."""
        self.replay = replay
        self._keeping = Keeping(consumer, replay, self.telemetry, guard)
        self._version = 0
        self._batch = Batch(allocate(self.layout, HostMemory()))
        """What was drawn, and what has come since the draw before."""
        self._is_full = False

    def rebase(self, version: int) -> None:
        """Go on from a recovered version; the buffer stays what it is."""
        self._version = version

    def retire(self, producer: int) -> None:
        """Grant nothing more to a producer that will not come back, and withdraw what it had."""
        self._keeping.retire(producer)

    def enlist(self, producer: int) -> None:
        """Grant to a producer that has come only now."""
        self._keeping.enlist(producer)

    def pump(self) -> None:
        """Keep what has arrived; draw a batch if there is none; then deal grants."""
        self._keeping.keep(self._batch, self._version)
        if not self._is_full:
            with self.telemetry.time("draw"):
                self._is_full = self.replay.draw(self._batch.arrays)
        self._keeping.deal(self._version)

    def pollables(self) -> Sequence[Any]:
        """Readable when blocks arrive."""
        return self._keeping.pollables()

    def front(self) -> Batch | None:
        """The batch that `pop` will return, or None; it stays where it is."""
        return self._batch if self._is_full else None

    def pop(self) -> Batch | None:
        """The batch that was drawn, or None."""
        return self.front()

    def learned(self, batch: Batch, version: int, priorities: np.ndarray | None = None) -> None:
        """The batch's memory is free again; take its priorities, and deal grants."""
        if priorities is not None:
            self.replay.update(batch.arrays["item"], priorities)
        self._batch, self._is_full = Batch(batch.arrays), False
        self._version = version
        self._keeping.deal(version)

    def close(self) -> None:
        """Leave the sample stream."""
        self._keeping.close()

    def save(self, *, with_blocks: bool) -> Arrays:
        """The buffer; with the blocks that are under way, what was drawn, too."""
        state, batch = self._keeping.save(with_blocks=with_blocks), self._batch
        if with_blocks:
            state["batch"] = np.array([batch.env_steps, self._is_full], np.int64)
            state["oldest_rows"] = np.array(batch.oldest_rows, np.int64)
            if self._is_full:
                state |= {f"drawn.{k}": v.copy() for k, v in batch.arrays.items()}
        return state

    def load(self, state: Mapping[str, np.ndarray], version: int, *, with_blocks: bool) -> None:
        """Take over what `save` returned."""
        self.rebase(version)
        if not state:
            return  # of another, or from before there was a buffer: it fills anew
        with_blocks = (
            with_blocks and "batch" in state
        )  # rows alone come from a run of another shape
        self._keeping.load(state, with_blocks=with_blocks)
        if not with_blocks:
            return
        batch = self._batch
        batch.env_steps, is_full = (int(n) for n in state["batch"])
        batch.oldest_rows = [int(n) for n in state["oldest_rows"]]
        batch.num_blocks = len(batch.oldest_rows)
        self._is_full = bool(is_full)
        if self._is_full:
            for name, array in batch.arrays.items():
                np.copyto(array, state[f"drawn.{name}"])
