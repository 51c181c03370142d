"""Gathers delivered blocks into a batch, between two updates.

A block is copied once, from where its actor wrote it into its columns of the batch, and its slot is free
again at once. (Not in a thread beside the learner: that cost more than it hid on every host, CPU or GPU.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from srl.core.arrays import Arrays
from srl.core.block import Block, Layout
from srl.core.spec import Field
from srl.core.streams import Delivery, SampleConsumer
from srl.core.telemetry import Telemetry
from srl.learning.staleness import Gate, is_too_old


class Memory(Protocol):
    """Where batches lie."""

    def zeros(self, field: Field, shape: tuple[int, ...]) -> np.ndarray:
        """An array for a field of a batch."""
        ...

    def copy(self, target: np.ndarray, source: np.ndarray) -> None:
        """Begin to copy from a block into (a part of) such an array."""
        ...

    def wait(self) -> None:
        """Until all that was begun is done."""
        ...


class HostMemory:
    """On the host: NumPy arrays."""

    def zeros(self, field: Field, shape: tuple[int, ...]) -> np.ndarray:
        """An array for a field of a batch."""
        return np.zeros(shape, field.dtype)

    def copy(self, target: np.ndarray, source: np.ndarray) -> None:
        """Copy."""
        np.copyto(target, source)

    def wait(self) -> None:
        """Nothing is under way."""


@dataclass
class Batch:
    """Columns for `num_blocks` blocks.

    Every array is `[R, B, *shape]`; `head` fields `[B]`, states `[C, B]`, of envs `[R, B / agents]`.
    """

    arrays: Arrays
    num_blocks: int = 0
    env_steps: int = 0
    oldest_rows: list[int] = field(default_factory=list)
    """For each block, the lowest version of its valid rows."""


def allocate(layout: Layout, memory: Memory, *, blocks: int = 1) -> Arrays:
    """Room for so many blocks, side by side."""
    arrays: Arrays = {}
    for spec_field in layout.spec:
        shape = list(layout.shape_of(spec_field))
        shape[0 if spec_field.per == "head" else 1] *= blocks
        arrays[spec_field.name] = memory.zeros(spec_field, tuple(shape))
    return arrays


def copy_columns(memory: Memory, layout: Layout, block: Block, arrays: Arrays, place: int) -> None:
    """Copy a block to its place among those of a batch: the only read of an observation for training."""
    for spec_field in layout.spec:
        source, target = block[spec_field.name], arrays[spec_field.name]
        axis = 0 if spec_field.per == "head" else 1
        width = source.shape[axis]
        columns = slice(place * width, (place + 1) * width)
        memory.copy(target[columns] if axis == 0 else target[:, columns], source)
    memory.wait()


class Source(Protocol):
    """Where a trainer's batches come from.

    `Staging`; or a replay buffer: the trainer's own (`Replaying`), or those of buffer workers (`Drawing`).
    """

    @property
    def layout(self) -> Layout:
        """Of the blocks that a batch is made of."""
        ...

    @property
    def telemetry(self) -> Telemetry:
        """Of whoever makes batches, and of who learns them."""
        ...

    def pump(self) -> None:
        """Take what has arrived, and let more come."""
        ...

    def front(self) -> Batch | None:
        """The full batch that `pop` will return, or None; it stays where it is."""
        ...

    def pop(self) -> Batch | None:
        """The full batch, or None; its blocks now count as consumed."""
        ...

    def learned(self, batch: Batch, version: int, priorities: np.ndarray | None = None) -> None:
        """The batch's memory is free again, and `version` batches are learned."""
        ...

    def rebase(self, version: int) -> None:
        """Go on from a recovered version."""
        ...

    def retire(self, producer: int) -> None:
        """Grant nothing more to a producer that will not come back, and withdraw what it had."""
        ...

    def enlist(self, producer: int) -> None:
        """Grant to a producer that has come only now."""
        ...

    def pollables(self) -> Sequence[Any]:
        """Readable when blocks arrive."""
        ...

    def save(self, *, with_blocks: bool) -> Arrays:
        """What a checkpoint holds; `with_blocks`, also what is under way."""
        ...

    def load(self, state: Mapping[str, np.ndarray], version: int, *, with_blocks: bool) -> None:
        """Take over what `save` returned."""
        ...

    def close(self) -> None:
        """Leave the sample stream."""
        ...


class Staging:
    """Owns the consumer's end of the sample stream, and the gate."""

    def __init__(
        self,
        consumer: SampleConsumer,
        gate: Gate,
        layout: Layout,
        *,
        burn_in: int,
        memory: Memory | None = None,
    ) -> None:
        self.gate = gate
        self.telemetry = Telemetry()
        self._consumer = consumer
        self._places = {producer: i for i, producer in enumerate(consumer.assigned())}
        """Producer to its place in the gate."""
        self.layout = layout
        """Of the blocks."""
        self._memory = memory or HostMemory()
        self._learned = slice(burn_in, layout.rows - 1)
        """Rows of a block that are learned from."""
        self._abandoned = 0
        self._dealt: tuple[int, int] | None = None
        """Grants in all, and the version they were made at, as the producers were told last."""
        self._filling: Batch | None = Batch(allocate(layout, self._memory, blocks=gate.batch))
        """None while it is full, or learned from."""
        self._full: Batch | None = None
        self._next_version = 0
        """Version of the learner when the batch being filled is learned."""

    def rebase(self, version: int) -> None:
        """Go on from a recovered version."""
        self.gate.rebase(version)
        self._next_version = version

    def retire(self, producer: int) -> None:
        """Grant nothing more to a producer that will not come back, and withdraw what it had."""
        if producer in self._places:
            self.gate.retire(self._places[producer])

    def enlist(self, producer: int) -> None:
        """Grant to a producer that has come only now."""
        if producer in self._places:
            self.gate.enlist(self._places[producer])

    def pump(self) -> None:
        """Copy what has arrived into the batch, as far as there is room; then deal grants."""
        while self._filling is not None:
            deliveries = self._consumer.recv(self.gate.batch - self._filling.num_blocks)
            for delivery in deliveries:
                self._stage(delivery)
            if not deliveries:
                break
        else:
            self._consumer.recv(0)  # still greets producers that join meanwhile
        self._deal()

    def pollables(self) -> Sequence[Any]:
        """Readable when blocks arrive."""
        return self._consumer.pollables()

    def front(self) -> Batch | None:
        """The full batch that `pop` will return, or None; it stays where it is."""
        return self._full

    def pop(self) -> Batch | None:
        """The full batch, or None; its blocks now count as consumed."""
        batch, self._full = self._full, None
        if batch is not None:
            self._consumer.count_consumed(batch.num_blocks)
        return batch

    def learned(self, batch: Batch, version: int, priorities: np.ndarray | None = None) -> None:
        """The batch's memory is free again, and `version` batches are learned: deal grants.

        Nothing of it is used again, whatever its priorities.
        """
        self._filling = Batch(batch.arrays)
        self.gate.version = version
        self._deal()

    def close(self) -> None:
        """Leave the sample stream."""
        self._consumer.close()

    def save(self, *, with_blocks: bool) -> Arrays:
        """The gate and the batch being filled (there is no full one between two steps).

        Nothing unless what is under way is saved, too.
        """
        if not with_blocks:
            return {}
        gate = self.gate
        state: Arrays = {
            "limits": np.array(gate.limits, np.int64),
            "delivered": np.array(gate.delivered, np.int64),
            "numbers": np.array(
                [gate.withdrawn, gate.base, self._abandoned, self._next_version], np.int64
            ),
        }
        batch = self._filling
        if batch is not None and batch.num_blocks:
            state["filling.oldest_rows"] = np.array(batch.oldest_rows, np.int64)
            state["filling.env_steps"] = np.array(batch.env_steps, np.int64)
            state |= {f"filling.arrays.{k}": v.copy() for k, v in batch.arrays.items()}
        return state

    def load(self, state: Mapping[str, np.ndarray], version: int, *, with_blocks: bool) -> None:
        """Take over what `save` returned."""
        if not with_blocks:
            self.rebase(version)
            return
        gate = self.gate
        self._dealt = None
        gate.version = version
        gate.limits = [int(n) for n in state["limits"]]
        gate.delivered = [int(n) for n in state["delivered"]]
        gate.withdrawn, gate.base, self._abandoned, self._next_version = (
            int(n) for n in state["numbers"]
        )
        if "filling.oldest_rows" in state:
            batch = self._filling or self._full
            assert batch is not None, "a batch is being learned from"
            batch.oldest_rows = [int(n) for n in state["filling.oldest_rows"]]
            batch.num_blocks = len(batch.oldest_rows)
            batch.env_steps = int(state["filling.env_steps"])
            for name, array in batch.arrays.items():
                np.copyto(array, state[f"filling.arrays.{name}"])
            self._filling, self._full = batch, None

    def _stage(self, delivery: Delivery) -> None:
        block, gate = delivery.block, self.gate
        gate.deliver(self._places[delivery.producer])
        valid = block["valid"][self._learned]
        versions = block["version"][self._learned][valid]
        oldest = int(versions.min()) if versions.size else self._next_version
        if is_too_old(
            learned_at=self._next_version, oldest_row=oldest, max_staleness=gate.max_staleness
        ):
            self._consumer.take(delivery, dropped=True)
            gate.withdrawn += 1
            self.telemetry.counters["blocks_too_old"] += 1
            return
        batch = self._filling
        assert batch is not None, "more came than there was room for"
        with self.telemetry.time("stage"):
            copy_columns(self._memory, self.layout, block, batch.arrays, batch.num_blocks)
        self._consumer.take(delivery, dropped=False)
        batch.num_blocks += 1
        batch.oldest_rows.append(oldest)
        of_envs = valid.reshape(len(valid), self.layout.envs, -1).any(axis=2)
        batch.env_steps += int(np.count_nonzero(of_envs))
        if batch.num_blocks == gate.batch:
            self._full, self._filling = batch, None
            self._next_version += 1

    def _deal(self) -> None:
        abandoned = self._consumer.abandoned()
        self.gate.withdrawn += abandoned - self._abandoned
        self._abandoned = abandoned
        limits = self.gate.open()
        dealt = sum(limits), self.gate.version
        if dealt != self._dealt:  # most times nothing has changed, for any of many producers
            self._dealt = dealt
            self._consumer.grant(dict(zip(self._places, limits, strict=True)), self.gate.version)
