"""Keeps the blocks of a sample stream in a replay buffer, and lets actors send as its rate allows.

A block is copied as it comes, and counts as consumed then.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from srl.core.arrays import Arrays, subset
from srl.core.errors import WorkerError
from srl.core.streams import Delivery, SampleConsumer
from srl.core.telemetry import Telemetry
from srl.learning.guard import Guard
from srl.learning.replay.replay import Replay
from srl.learning.staging import Batch
from srl.learning.staleness import Dealer

log = logging.getLogger(__name__)

_MOST_AT_ONCE = 64
"""Blocks that are kept before anything else is looked at again."""


class Keeping:
    """Owns the consumer's end of a sample stream, and a replay buffer."""

    def __init__(
        self, consumer: SampleConsumer, replay: Replay, telemetry: Telemetry, guard: Guard
    ) -> None:
        """Keep what comes in `replay`; the time that takes counts in `telemetry`.

        A number that is not finite would be drawn again and again: `guard` says what becomes of its block.
        """
        self.replay = replay
        self._guard = guard
        self._telemetry = telemetry
        self._consumer = consumer
        self._places = {producer: i for i, producer in enumerate(consumer.assigned())}
        """Producer to its place among those that are dealt grants."""
        self._dealer = Dealer(num_producers=len(self._places))
        self._block_rows = (replay.block.rows - 1) * replay.block.lanes
        self._abandoned = self._dropped = 0
        self._base_blocks = 0
        """Blocks that came before those the dealer counts."""
        self._dealt: tuple[int, int] | None = None

    def retire(self, producer: int) -> None:
        """Grant nothing more to a producer that will not come back, and withdraw what it had."""
        if producer in self._places:
            self._dealer.retire(self._places[producer])

    def enlist(self, producer: int) -> None:
        """Grant to a producer that has come only now."""
        if producer in self._places:
            self._dealer.enlist(self._places[producer])

    def keep(self, came: Batch, version: int) -> bool:
        """Keep what has arrived, and count it in `came`; whether there was something."""
        deliveries = self._consumer.recv(_MOST_AT_ONCE)
        for delivery in deliveries:
            self._keep(delivery, came, version)
        return bool(deliveries)

    def deal(self, version: int) -> None:
        """Grant as many blocks as the rate of the buffer allows, of rows not older than `version`."""
        abandoned = self._consumer.abandoned()
        self._dealer.withdrawn += abandoned - self._abandoned
        self._abandoned = abandoned
        allowed = self.replay.limiter.blocks_allowed() - self._base_blocks
        limits = self._dealer.deal(allowed + self._dealer.withdrawn)
        dealt = sum(limits), version
        if dealt != self._dealt:
            self._dealt = dealt
            self._consumer.grant(dict(zip(self._places, limits, strict=True)), version)

    def pollables(self) -> Sequence[Any]:
        """Readable when blocks arrive."""
        return self._consumer.pollables()

    def close(self) -> None:
        """Leave the sample stream."""
        self._consumer.close()

    def save(self, *, with_blocks: bool) -> Arrays:
        """The buffer, and with the blocks that are under way all that was granted for them."""
        state = {f"replay.{k}": v for k, v in self.replay.save().items()}
        if with_blocks:
            dealer = self._dealer
            state["limits"] = np.array(dealer.limits, np.int64)
            state["delivered"] = np.array(dealer.delivered, np.int64)
            numbers = [dealer.withdrawn, self._abandoned, self._dropped]
            state["numbers"] = np.array(numbers, np.int64)
            state["guard"] = self._guard.save()
        return state

    def load(self, state: Mapping[str, np.ndarray], *, with_blocks: bool) -> None:
        """Take over what `save` returned."""
        self.replay.load(subset(state, "replay."), continues=with_blocks)
        self._dealt = None
        dealer = self._dealer
        if with_blocks:
            dealer.limits = [int(n) for n in state["limits"]]
            dealer.delivered = [int(n) for n in state["delivered"]]
            numbers = (int(n) for n in state["numbers"])
            dealer.withdrawn, self._abandoned, self._dropped = numbers
            self._guard.load(state["guard"])
        # below 0 where the buffer begins anew and the lanes do not
        inserted = self.replay.limiter.inserted // self._block_rows
        self._base_blocks = inserted - (sum(dealer.delivered) - self._dropped)

    def _keep(self, delivery: Delivery, came: Batch, version: int) -> None:
        block = delivery.block
        self._dealer.deliver(self._places[delivery.producer])
        if not self._is_sound(delivery, version):
            return
        valid = block["valid"][:-1]
        versions = block["version"][:-1][valid]
        with self._telemetry.time("keep"):
            self.replay.insert(block)
        self._consumer.take(delivery, dropped=False)
        self._consumer.count_consumed(1)
        of_envs = valid.reshape(len(valid), self.replay.block.envs, -1).any(axis=2)
        came.num_blocks += 1
        came.env_steps += int(np.count_nonzero(of_envs))
        came.oldest_rows.append(int(versions.min()) if versions.size else version)

    def _is_sound(self, delivery: Delivery, version: int) -> bool:
        """Whether all numbers of a block are finite; else it is dropped, or raises WorkerError."""
        fields = delivery.block.fields
        fault = self._guard.before(fields)
        if fault is None:
            self._guard.learned()
            return True
        words = self._guard.report(fault, fields, version)
        if self._guard.stops:
            raise WorkerError(words)
        log.warning("a block is not kept: %s", words)
        self._guard.skip()
        self._consumer.take(delivery, dropped=True)
        self._dealer.withdrawn += 1
        self._dropped += 1
        return False
