"""Makes a process fit to compute: how its memory is allocated, how many threads it has."""

import ctypes
import io
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

_THREAD_COUNTS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_THRESHOLDS = {_M_MMAP_THRESHOLD: 1 << 30, _M_TRIM_THRESHOLD: (2 << 30) - 1, _M_TOP_PAD: 64 << 20}
"""What glibc's malloc takes from the heap and gives back to it, not to the kernel, in bytes."""


def use_allocator(allocator: str) -> bool:
    """Have large arrays reuse memory of this process (`tuned`), or leave glibc's `default`.

    By default malloc maps every large array anew and unmaps it when it is freed; the kernel then
    clears each of its pages again: a third of the time of a large update on a CPU. Tuned, freed
    memory stays with the process.

    Returns:
        Whether the allocator is tuned; False where there is no glibc.
    """
    if allocator != "tuned" or sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    taken = [mallopt(name, value) for name, value in _THRESHOLDS.items()]
    return all(taken)


def thread_environment(threads: int, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a process that computes with so many threads.

    Libraries read it when they are imported, so it must be there before the process starts.
    Threads that wait do so without spinning: where there are more of them than cores, those that
    spin take the core of the one they wait for (2 on 2 busy cores: up to 15 times slower).
    """
    return {
        "OMP_WAIT_POLICY": "PASSIVE",
        **environment,
        **dict.fromkeys(_THREAD_COUNTS, str(threads)),
    }


class _Log(io.FileIO):
    """What does not fit the disk is dropped, and who writes is not disturbed."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            return len(data)


def use_log() -> None:
    """Have this process, whose output is a log file, live on where the disk is full.

    An env that prints would otherwise fail by it.
    """
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        raw = _Log(descriptor, "w", closefd=False)
        setattr(sys, name, io.TextIOWrapper(raw, "utf-8", "backslashreplace", write_through=True))  # pyright: ignore[reportArgumentType] - as Python's own, unbuffered


def offer_to_oom_killer() -> None:
    """Where memory runs out, have the kernel end this process before those it is harder to replace."""
    with suppress(OSError):  # not Linux
        Path("/proc/self/oom_score_adj").write_text("300")


def use_threads(threads: int) -> None:
    """Have torch, where it is imported, compute with so many threads in this process."""
    if "torch" not in sys.modules:
        return  # not for an actor that does without: the environment tells a later import
    import torch

    torch.set_num_threads(threads)
    with suppress(RuntimeError):  # can be set once, before the first parallel work
        torch.set_num_interop_threads(1)
