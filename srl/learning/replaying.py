"""Draws batches from a replay buffer in the trainer's process, in the place of `Staging`.

Blocks are kept as they come, and count as consumed then; a batch is drawn between two updates as soon as the
rate of the buffer allows it. What the learner says about its windows goes back as priorities.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from srl.core.arrays import Arrays, subset
from srl.core.block import Layout
from srl.core.streams import Delivery, SampleConsumer
from srl.core.telemetry import Telemetry
from srl.learning.replay.replay import Replay
from srl.learning.staging import Batch, HostMemory, allocate
from srl.learning.staleness import Dealer

_MOST_AT_ONCE = 64
"""Blocks that are kept before the learner is looked at again."""


class Replaying:
    """Owns the consumer's end of the sample stream, and a replay buffer."""

    def __init__(self, consumer: SampleConsumer, replay: Replay, *, block: Layout) -> None:
        self.telemetry = Telemetry()
        self.layout = replay.layout
        """Of what the learner is given."""
        self.replay = replay
        self._consumer = consumer
        self._places = {producer: i for i, producer in enumerate(consumer.assigned())}
        """Producer to its place among those that are dealt grants."""
        self._dealer = Dealer(num_producers=len(self._places))
        self._block = block
        self._block_rows = (block.rows - 1) * block.lanes
        self._abandoned = 0
        self._version = 0
        self._base_blocks = 0
        """Blocks that came before those the dealer counts."""
        self._dealt: tuple[int, int] | None = None
        self._batch = Batch(allocate(self.layout, HostMemory()))
        self._is_full = False

    def rebase(self, version: int) -> None:
        """Go on from a recovered version; the buffer stays what it is."""
        self._version = version
        self._dealt = None

    def retire(self, producer: int) -> None:
        """Grant nothing more to a producer that will not come back, and withdraw what it had."""
        if producer in self._places:
            self._dealer.retire(self._places[producer])

    def enlist(self, producer: int) -> None:
        """Grant to a producer that has come only now."""
        if producer in self._places:
            self._dealer.enlist(self._places[producer])

    def pump(self) -> None:
        """Keep what has arrived; draw a batch if there is none; then deal grants."""
        for delivery in self._consumer.recv(_MOST_AT_ONCE):
            self._keep(delivery)
        if not self._is_full:
            with self.telemetry.time("draw"):
                self._is_full = self.replay.draw(self._batch.arrays)
        self._deal()

    def pollables(self) -> Sequence[Any]:
        """Readable when blocks arrive."""
        return self._consumer.pollables()

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
        self._deal()

    def close(self) -> None:
        """Leave the sample stream."""
        self._consumer.close()

    def save(self, *, with_blocks: bool) -> Arrays:
        """The buffer, and with the blocks that are under way all that was granted for them."""
        state = {f"replay.{k}": v for k, v in self.replay.save().items()}
        if not with_blocks:
            return state
        dealer, batch = self._dealer, self._batch
        state["limits"] = np.array(dealer.limits, np.int64)
        state["delivered"] = np.array(dealer.delivered, np.int64)
        state["numbers"] = np.array(
            [dealer.withdrawn, self._abandoned, self._base_blocks, batch.env_steps, self._is_full]
        )
        state["oldest_rows"] = np.array(batch.oldest_rows, np.int64)
        if self._is_full:
            state |= {f"drawn.{k}": v.copy() for k, v in batch.arrays.items()}
        return state

    def load(self, state: Mapping[str, np.ndarray], version: int, *, with_blocks: bool) -> None:
        """Take over what `save` returned."""
        self.rebase(version)
        if not state:
            return  # of another, or from before there was a buffer: it fills anew
        self.replay.load(subset(state, "replay."), continues=with_blocks)
        self._base_blocks = self.replay.limiter.inserted // self._block_rows
        if not with_blocks:
            return
        dealer, batch = self._dealer, self._batch
        dealer.limits = [int(n) for n in state["limits"]]
        dealer.delivered = [int(n) for n in state["delivered"]]
        dealer.withdrawn, self._abandoned, self._base_blocks, batch.env_steps, is_full = (
            int(n) for n in state["numbers"]
        )
        batch.oldest_rows = [int(n) for n in state["oldest_rows"]]
        batch.num_blocks = len(batch.oldest_rows)
        self._is_full = bool(is_full)
        if self._is_full:
            for name, array in batch.arrays.items():
                np.copyto(array, state[f"drawn.{name}"])

    def _keep(self, delivery: Delivery) -> None:
        block = delivery.block
        self._dealer.deliver(self._places[delivery.producer])
        valid = block["valid"][:-1]
        versions = block["version"][:-1][valid]
        with self.telemetry.time("keep"):
            self.replay.insert(block)
        self._consumer.take(delivery, dropped=False)
        self._consumer.count_consumed(1)
        of_envs = valid.reshape(len(valid), self._block.envs, -1).any(axis=2)
        batch = self._batch
        batch.num_blocks += 1
        batch.env_steps += int(np.count_nonzero(of_envs))
        batch.oldest_rows.append(int(versions.min()) if versions.size else self._version)

    def _deal(self) -> None:
        abandoned = self._consumer.abandoned()
        self._dealer.withdrawn += abandoned - self._abandoned
        self._abandoned = abandoned
        allowed = self.replay.limiter.blocks_allowed() - self._base_blocks
        limits = self._dealer.deal(allowed + self._dealer.withdrawn)
        dealt = sum(limits), self._version
        if dealt != self._dealt:
            self._dealt = dealt
            self._consumer.grant(dict(zip(self._places, limits, strict=True)), self._version)
