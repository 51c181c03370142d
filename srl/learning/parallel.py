"""Trainers that learn one policy together, each in a process of its own: torch.distributed.

They find each other through a file in the run's folder of sockets, and talk over loopback (gloo)
or between GPUs (NCCL). Only tensors travel: nothing is pickled.
"""

import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from srl.core.collective import Collective
from srl.core.errors import StreamError

JOIN_SECONDS = 100.0
"""How long the first rank waits for the last to start."""
LEARN_SECONDS = 30.0
"""How long a rank waits for the others inside `learn`, where all compute the same amount."""
MEETING_SECONDS = 86_400.0
"""How long it waits for their next batch; a rank that died is noticed at once by its connection."""


class ProcessRanks:
    """A Collective over one torch process group."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device, words: str) -> None:
        """Speak to `group` with tensors on `device`; `words` name the group in errors."""
        self.rank = group.rank()
        self.size = group.size()
        self._group = group
        self._device = device
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

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """The values of every rank: a sum of tables in which each fills its own line."""
        table = torch.zeros(self.size, len(values), dtype=torch.float64, device=self._device)
        table[self.rank] = torch.tensor(values, dtype=torch.float64)
        self.sum_(table)
        return table.tolist()


class TrainerGroup:
    """This process's place among the trainers of one policy."""

    def __init__(self, file: Path, *, policy: str, rank: int, size: int, device: str) -> None:
        """Join; returns when all have. `file` is theirs alone, and not there before.

        Raises StreamError where not all come in time.
        """
        _stay_on_this_host()
        words = f"the {size} trainers of policy {policy!r}"
        compute = torch.device(device)
        is_cuda = compute.type == "cuda"
        if is_cuda:
            torch.cuda.set_device(compute)
        try:
            store = dist.FileStore(str(file), size)  # pyright: ignore[reportPrivateImportUsage]
            store.set_timeout(timedelta(seconds=JOIN_SECONDS))
            dist.init_process_group(
                "nccl" if is_cuda else "gloo",
                store=store,
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=LEARN_SECONDS),
                device_id=compute if is_cuda else None,
            )
            meeting = dist.new_group(backend="gloo", timeout=timedelta(seconds=MEETING_SECONDS))
        except RuntimeError as error:
            raise StreamError(
                f"rank {rank} could not join {words}: {str(error).splitlines()[0]}"
            ) from error
        everyone = dist.group.WORLD
        assert isinstance(everyone, dist.ProcessGroup)
        assert isinstance(meeting, dist.ProcessGroup)
        self.learner: Collective = ProcessRanks(everyone, compute, words)
        """For the learner: inside `learn` nobody waits long."""
        self.meeting: Collective = ProcessRanks(meeting, torch.device("cpu"), words)
        """For the trainer: between two batches one may wait long for another."""

    def close(self) -> None:
        """Leave the group; those who still wait for this rank see its connection close."""
        if dist.is_initialized():
            dist.destroy_process_group()


def _stay_on_this_host() -> None:
    """Bind to loopback: what these ranks say is neither encrypted nor authenticated."""
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = loopback
