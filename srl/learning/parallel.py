"""Trainers that learn one policy together, each in a process of its own.

On one host they find each other through a file in the run's folder of sockets, and add up in memory that they
share (`ranks.py`) or between GPUs (NCCL). On several they meet at an address of the first one's host, and talk over
the interface that has it (gloo, NCCL): neither encrypted nor authenticated, so that network must be trusted. Only
tensors travel: nothing is pickled.
"""

import contextlib
import fcntl
import os
import socket
import struct
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from srl.core.collective import Collective
from srl.core.errors import ConfigError, StreamError
from srl.learning.ranks import Ranks, RanksInMemory, join_in_memory

_SIOCGIFADDR = 0x8915
JOIN_SECONDS = 100.0
"""How long the first rank waits for the last to start."""
LEARN_SECONDS = 30.0
"""How long a rank waits for the others inside `learn`, where all compute the same amount."""
MEETING_SECONDS = 86_400.0
"""How long it waits for their next batch; a rank that died is noticed at once by its connection."""


class ProcessRanks(Ranks):
    """A Collective over one torch process group."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device, words: str) -> None:
        """Speak to `group` with tensors on `device`; `words` name the group in errors."""
        super().__init__(group.rank(), group.size(), device)
        self._group = group
        self._words = words

    def sum_(self, tensor: Any) -> None:
        """Replace a tensor by its sum over all ranks; the bits are the same on all of them.

        Raises StreamError where a rank died or did not answer in time.
        """
        detached: torch.Tensor = tensor.detach()
        here = detached.to(self._device).contiguous()
        try:
            dist.all_reduce(here, group=self._group)
        except RuntimeError as error:
            raise StreamError(
                f"rank {self.rank} of {self._words} has lost another of them, or its answer "
                f"took too long: {str(error).splitlines()[0]}"
            ) from error
        if here is not detached:
            detached.copy_(here)


class MeetingPoint(Protocol):
    """Where the trainers of a policy find each other."""

    def bind(self) -> None:
        """Have what they say to each other go over the right interface."""
        ...

    def store(self, rank: int, size: int) -> Any:
        """What they leave word for each other in."""
        ...


@dataclass(frozen=True)
class OnOneHost:
    """A file that is theirs alone, and was not there before; they stay on loopback."""

    file: Path

    def bind(self) -> None:
        """Stay on loopback: what these ranks say is neither encrypted nor authenticated."""
        _use_interface(next(name for _, name in socket.if_nameindex() if name.startswith("lo")))

    def store(self, rank: int, size: int) -> Any:
        """A file."""
        return dist.FileStore(str(self.file), size)  # pyright: ignore[reportPrivateImportUsage]


@dataclass(frozen=True)
class BetweenHosts:
    """An address of the first one's host, where a descriptor of it listens already."""

    address: str
    """tcp://HOST:PORT."""
    own: str
    """An address of this host: what is said goes over the interface that has it."""
    interface: str | None = None
    """By name, if not that one."""
    listener: int | None = None
    """Of the first rank: the descriptor."""

    def bind(self) -> None:
        """Use the interface that was named, or that has this host's address."""
        names = [name for _, name in socket.if_nameindex()]
        if self.interface is not None and self.interface not in names:
            raise ConfigError(
                f"--network.interface {self.interface}: the host {self.own} has none of this name, it has "
                f"{', '.join(names)}"
            )
        _use_interface(self.interface or interface_of(self.own))

    def store(self, rank: int, size: int) -> Any:
        """The first rank's; the others wait for it between two of its lives."""
        host, _, port = self.address.removeprefix("tcp://").rpartition(":")
        return dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
            host.strip("[]"),
            int(port),
            size,
            is_master=rank == 0,
            timeout=timedelta(seconds=JOIN_SECONDS),
            master_listen_fd=None if self.listener is None else os.dup(self.listener),
        )


class TrainerGroup:
    """This process's place among the trainers of one policy."""

    _channels: tuple[RanksInMemory, ...] = ()

    def __init__(
        self, point: MeetingPoint, *, life: int, policy: str, rank: int, size: int, device: str
    ) -> None:
        """Join in their life number `life`; returns when all have.

        Raises StreamError where not all come in time, ConfigError where this host has not the interface.
        """
        words = f"the {size} trainers of policy {policy!r}"
        compute = torch.device(device)
        try:
            if isinstance(point, OnOneHost) and compute.type == "cpu":
                learner, meeting = join_in_memory(
                    point.file,
                    rank,
                    size,
                    join_seconds=JOIN_SECONDS,
                    seconds=(LEARN_SECONDS, MEETING_SECONDS),
                    words=words,
                )
                self._channels = (learner, meeting)
            else:
                learner, meeting = _join_processes(
                    point, rank, size, life=life, compute=compute, words=words
                )
        except (RuntimeError, OSError) as error:
            raise StreamError(
                f"rank {rank} could not join {words}: {str(error).splitlines()[0]}"
            ) from error
        self.learner: Collective = learner
        """For the learner: inside `learn` nobody waits long."""
        self.meeting: Collective = meeting
        """For the trainer: between two batches one may wait long for another."""

    def close(self) -> None:
        """Leave the group; those who still wait for this rank see its connection close."""
        for channel in self._channels:
            channel.close()
        if dist.is_initialized():
            dist.destroy_process_group()


def _join_processes(
    point: MeetingPoint, rank: int, size: int, *, life: int, compute: torch.device, words: str
) -> tuple[ProcessRanks, ProcessRanks]:
    """Both process groups of torch: NCCL's or gloo's to learn, and gloo's to meet."""
    point.bind()
    is_cuda = compute.type == "cuda"
    if is_cuda:
        torch.cuda.set_device(compute)
    store = _gather(point, rank, size, life)
    dist.init_process_group(
        "nccl" if is_cuda else "gloo",
        store=store,
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=LEARN_SECONDS),
        device_id=compute if is_cuda else None,
    )
    meeting = dist.new_group(backend="gloo", timeout=timedelta(seconds=MEETING_SECONDS))
    everyone = dist.group.WORLD
    assert isinstance(everyone, dist.ProcessGroup)
    assert isinstance(meeting, dist.ProcessGroup)
    return (
        ProcessRanks(everyone, compute, words),
        ProcessRanks(meeting, torch.device("cpu"), words),
    )


def _gather(point: MeetingPoint, rank: int, size: int, life: int) -> Any:
    """The store of this life, when all ranks have come to it.

    Between hosts a rank may find the first one's life before, which is about to end: it looks again.
    """
    deadline = time.monotonic() + JOIN_SECONDS
    while True:
        try:
            store = dist.PrefixStore(  # pyright: ignore[reportPrivateImportUsage]
                f"life-{life}", point.store(rank, size)
            )
            store.set_timeout(timedelta(seconds=max(1.0, deadline - time.monotonic())))
            store.set(f"here-{rank}", "")
            store.wait([f"here-{other}" for other in range(size)])
        except RuntimeError:
            if rank == 0 or time.monotonic() > deadline - 1.0:
                raise
            time.sleep(0.2)  # the first one's next life is under way
        else:
            return store


def interface_of(address: str) -> str:
    """The name of the network interface that has an address; raises ConfigError where none has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has none
                request = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    raise ConfigError(
        f"no network interface of this host has the address {address}: name one for the trainers to "
        "talk over (--network.interface)"
    )


def _use_interface(name: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = name
