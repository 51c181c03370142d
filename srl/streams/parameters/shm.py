"""Parameter stream on one host: two buffers and two words that say which one is whole.

The writer sets `begin`, fills the buffer that nobody is told to read, then sets `end`. A reader
copies buffer `end % 2` and looks at `begin` again: had the writer come round to that buffer
meanwhile, `begin` would be two ahead, and the reader copies once more. A writer killed half way
leaves `begin` one ahead of `end`, which is true: the next one fills the same buffer again.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from srl.core.arrays import Arrays, write_arrays
from srl.core.block import Block, Layout, aligned
from srl.core.errors import StreamError
from srl.core.spec import Spec
from srl.transport.bell import Bell, Ear

_BEGIN, _END, _VERSION = 0, 1, 2  # words; versions of the two buffers follow
_HEADER_BYTES = 64
_ATTEMPTS = 1000


def parameter_arena_bytes(spec: Spec) -> int:
    """Bytes of the arena of a parameter stream."""
    return _HEADER_BYTES + 2 * aligned(_layout(spec).nbytes)


def _layout(spec: Spec) -> Layout:
    return Layout(spec, rows=1, lanes=1, envs=1)


def _arrays(block: Block) -> Arrays:
    return {f.name: block[f.name].reshape(f.shape) for f in block.layout.spec}


def _buffers(arena: np.ndarray, spec: Spec) -> list[Block]:
    size = aligned(_layout(spec).nbytes)
    starts = (_HEADER_BYTES, _HEADER_BYTES + size)
    return [Block(_layout(spec), arena[start : start + size]) for start in starts]


class ShmPublisher:
    """A trainer's end; the only writer of the arena."""

    def __init__(self, arena: np.ndarray, spec: Spec, bell: Bell | None = None) -> None:
        """Publish into an arena; a bell is rung where some wait for what is published."""
        self._words = arena[:_HEADER_BYTES].view(np.int64)
        self._buffers = _buffers(arena, spec)
        self._bell = bell

    def publish(self, weights: Mapping[str, np.ndarray], version: int) -> None:
        """Fill the buffer nobody reads and make it the latest."""
        turn = int(self._words[_END]) + 1
        self._words[_BEGIN] = turn
        write_arrays(_arrays(self._buffers[turn % 2]), weights)
        self._words[_VERSION + turn % 2] = version
        self._words[_END] = turn
        if self._bell is not None:
            self._bell.ring()

    def pollables(self) -> Sequence[Any]:
        """Nothing to wait on."""
        return ()

    def close(self) -> None:
        """The arena belongs to the node agent."""
        if self._bell is not None:
            self._bell.close()


class ShmSubscriber:
    """A policy's end; never writes."""

    def __init__(self, arena: np.ndarray, spec: Spec, ear: Ear | None = None) -> None:
        """Read an arena; where versions are waited for, `ear` hears of them."""
        self._words = arena[:_HEADER_BYTES].view(np.int64)
        self._buffers = _buffers(arena, spec)
        self._ear = ear
        self._copy = Block.allocate(_layout(spec))
        self._weights = _arrays(self._copy)
        self.torn_reads = 0

    def latest(self) -> int:
        """The latest version; -1 before the first."""
        if self._ear is not None:
            self._ear.clear()
        for _ in range(_ATTEMPTS):
            turn = int(self._words[_END])
            version = int(self._words[_VERSION + turn % 2])
            if int(self._words[_BEGIN]) <= turn + 1:
                return version if turn else -1
        raise StreamError(f"the version changed during each of {_ATTEMPTS} attempts to read it")

    def fetch(self) -> tuple[int, Arrays]:
        """The latest version and a copy of its weights."""
        if not int(self._words[_END]):
            raise StreamError("parameters were fetched before the trainer published any")
        for _ in range(_ATTEMPTS):
            turn = int(self._words[_END])
            version = int(self._words[_VERSION + turn % 2])
            np.copyto(self._copy.buffer, self._buffers[turn % 2].buffer)
            if int(self._words[_BEGIN]) <= turn + 1:
                return version, self._weights
            self.torn_reads += 1
        raise StreamError(f"parameters changed during each of {_ATTEMPTS} attempts to copy them")

    def pollables(self) -> Sequence[Any]:
        """What tells of a new version; nothing where nobody waits for one."""
        return () if self._ear is None else (self._ear.socket,)

    def close(self) -> None:
        """The arena belongs to the node agent."""
        if self._ear is not None:
            self._ear.close()
