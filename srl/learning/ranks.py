"""Ranks of one host add their tensors up in memory that they share.

Every rank has a place there. It lays its tensor down, rings at all others, waits until all have rung, and adds the places
up in the order of ranks: so the bits are the same everywhere. There are two places a rank, used in turn: who rings
for the next sum has read the last. A sum costs one wake-up; torch's own (gloo) is a chain of them through several
threads and the network's loopback: 1.1 to 1.9 ms for eight numbers of two processes, half of that a core's.
"""

import contextlib
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from srl.core.collective import CHANNELS, PLACE_BYTES, TURNS, shared_bytes
from srl.core.errors import StreamError
from srl.transport.arena import Arena


class Ranks(ABC):
    """A Collective whose ranks gather by a sum."""

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        """Rank number `rank` of `size`, whose tables are on `device`."""
        self.rank = rank
        self.size = size
        self._device = device

    @abstractmethod
    def sum_(self, tensor: Any) -> None:
        """Replace a tensor by its sum over all ranks."""

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """The values of every rank: a sum of tables in which each fills its own line."""
        table = torch.zeros(self.size, len(values), dtype=torch.float64, device=self._device)
        table[self.rank] = torch.tensor(values, dtype=torch.float64)
        self.sum_(table)
        return table.tolist()


class RanksInMemory(Ranks):
    """A Collective of processes of one host."""

    def __init__(
        self,
        rank: int,
        places: np.ndarray,
        bells: Mapping[int, socket.socket],
        seconds: float,
        words: str,
    ) -> None:
        """Sum through `places`.

        Args:
            rank: of this process.
            places: bytes `[turns, ranks, bytes of a place]`, shared by all.
            bells: of every other rank; one that closes tells that it is gone.
            seconds: how long another may take.
            words: name the group in errors.
        """
        super().__init__(rank, places.shape[1], torch.device("cpu"))
        self._places = places
        self._bells = bells
        self._seconds = seconds
        self._words = words
        self._turn = 0
        for bell in bells.values():
            bell.settimeout(seconds)

    def sum_(self, tensor: Any) -> None:
        """Replace a tensor by its sum over all ranks; the bits are the same on all of them.

        Raises StreamError where a rank died or did not answer in time.
        """
        detached: torch.Tensor = tensor.detach()
        here = detached.contiguous()
        flat = here.view(-1)
        most = self._places.shape[2] // flat.element_size()
        for start in range(0, flat.numel(), most):
            self._sum(flat[start : start + most])
        if here is not detached:
            detached.copy_(here)

    def close(self) -> None:
        """Tell the others that this one is gone."""
        for bell in self._bells.values():
            bell.close()

    def _sum(self, part: torch.Tensor) -> None:
        places = [
            torch.frombuffer(place.data, dtype=part.dtype, count=part.numel())
            for place in self._places[self._turn]
        ]
        self._turn = (self._turn + 1) % TURNS
        places[self.rank].copy_(part)
        self._ring()
        torch.add(places[0], places[1], out=part)
        for place in places[2:]:
            part.add_(place)

    def _ring(self) -> None:
        """Tell all others, and wait until all have told."""
        try:
            for bell in self._bells.values():
                bell.send(b"!")
            gone = [other for other, bell in self._bells.items() if not bell.recv(1)]
            why = f"rank {gone[0]} is gone" if gone else ""
        except TimeoutError:
            why = f"nothing came for {self._seconds:g} s"
        except OSError as error:
            why = str(error)
        if why:
            raise StreamError(
                f"rank {self.rank} of {self._words} has lost another of them, or its answer took too "
                f"long: {why}"
            )


def join_in_memory(
    file: Path, rank: int, size: int, *, join_seconds: float, seconds: Sequence[float], words: str
) -> tuple[RanksInMemory, RanksInMemory]:
    """This process's ends of both channels, when all ranks have come to `file`, a socket of the first one.

    Args:
        file: theirs alone.
        rank: of this process.
        size: how many there are.
        join_seconds: how long one waits for the last to come.
        seconds: how long another may take, by channel.
        words: name the group in errors.

    Raises:
        OSError: not all came in time.
    """
    deadline = time.monotonic() + join_seconds
    join = _receive if rank == 0 else _come
    arena, bells = join(file, rank, size, deadline)
    shape = (len(CHANNELS), TURNS, size, PLACE_BYTES)
    learner, meeting = (
        RanksInMemory(rank, places, bells[channel], limit, words)
        for channel, (places, limit) in enumerate(
            zip(arena.buffer.reshape(shape), seconds, strict=True)
        )
    )
    arena.close()  # the mapping stays
    return learner, meeting


_Bells = list[dict[int, socket.socket]]
"""Channel to the other ranks' bells."""


def _receive(file: Path, rank: int, size: int, deadline: float) -> tuple[Arena, _Bells]:
    """The first rank makes the memory and a pair of bells for every two, and hands them out."""
    arena = Arena.create("ranks", shared_bytes(size))
    assert arena.fd is not None
    ends: list[_Bells] = [[{} for _ in CHANNELS] for _ in range(size)]  # by rank
    for one in range(size):
        for other in range(one):
            for channel in range(len(CHANNELS)):
                pair = socket.socketpair()
                ends[one][channel][other], ends[other][channel][one] = pair
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listener.bind(str(file))
        stack.callback(file.unlink, missing_ok=True)
        listener.listen(size)
        for _ in range(size - 1):
            listener.settimeout(_left(deadline))
            door = stack.enter_context(listener.accept()[0])
            door.settimeout(_left(deadline))
            came = door.recv(1)
            if not came:
                raise ConnectionError("one of them died while it came")
            theirs = ends[came[0]]
            handed = [bell for bells in theirs for _, bell in sorted(bells.items())]
            socket.send_fds(door, [b"!"], [arena.fd, *(bell.fileno() for bell in handed)])
            for bell in handed:  # so that it closes where its rank dies
                bell.close()
    return arena, ends[rank]


def _come(file: Path, rank: int, size: int, deadline: float) -> tuple[Arena, _Bells]:
    """Another rank takes what it is handed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        while True:
            door.settimeout(_left(deadline))
            try:
                door.connect(str(file))
                break
            except (FileNotFoundError, ConnectionRefusedError):  # the first is not there yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        door.send(bytes([rank]))
        count = 1 + len(CHANNELS) * (size - 1)
        _, fds, _, _ = socket.recv_fds(door, 1, count)
    if len(fds) != count:
        raise ConnectionError("the first rank left before all had come")
    for fd in fds:
        os.set_inheritable(fd, False)
    others = [other for other in range(size) if other != rank]
    bells = iter([socket.socket(fileno=fd) for fd in fds[1:]])
    return Arena.attach(fds[0], shared_bytes(size)), [
        {other: next(bells) for other in others} for _ in CHANNELS
    ]


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())
