"""What a host with a GPU does otherwise: large fields go from the arena to the GPU in one copy.

The arena's pages are registered with CUDA, so that the GPU reads them itself, with no pass over them
on the host; what small fields there are stay in host memory, where the algorithm reads them.
"""

import contextlib
import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from srl.core.arrays import Arrays
from srl.core.block import Stack
from srl.core.errors import WorkerError
from srl.core.spec import Field
from srl.core.streams import Request
from srl.workers.policy import HostGather

LARGE_BYTES = 256
"""Of a lane's value in a row, from which a field goes to the GPU by itself."""
_BLOCKING_SYNC = 4


def use(device: str) -> None:
    """Make it the GPU of this process, before its first use: waits for it leave the core to others."""
    index = torch.device(device).index or 0
    with contextlib.suppress(OSError, AttributeError):  # it only costs a core
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuInit(0)
        driver.cuDevicePrimaryCtxSetFlags_v2(index, _BLOCKING_SYNC)
    torch.cuda.set_device(index)


def register(buffer: np.ndarray) -> None:
    """Let the GPU read the pages of an arena; they stay mapped until they are unregistered."""
    runtime: Any = torch.cuda.cudart()
    status = int(runtime.cudaHostRegister(buffer.ctypes.data, buffer.nbytes, 0))
    if status:
        raise WorkerError(
            f"CUDA cannot register {buffer.nbytes / 1e6:.0f} MB of shared memory (error {status}): "
            "raise the limit of locked memory (ulimit -l), or use the CPU"
        )


def unregister(buffer: np.ndarray) -> None:
    """Take the pages back from the GPU: for a process that outlives the arena."""
    torch.cuda.synchronize()
    runtime: Any = torch.cuda.cudart()
    runtime.cudaHostUnregister(buffer.ctypes.data)


def is_large(field: Field) -> bool:
    """Whether a field is worth a copy of its own."""
    return field.nbytes >= LARGE_BYTES


class GpuMemory:
    """Batches whose large fields are tensors on a GPU."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._stream: Any = torch.cuda.Stream(self._device)

    def zeros(self, field: Field, shape: tuple[int, ...]) -> Any:
        """An array for a field of a batch, or a tensor."""
        if not is_large(field) or field.per == "chunk":
            return np.zeros(shape, field.dtype)
        return torch.zeros(shape, dtype=getattr(torch, field.dtype), device=self._device)

    def copy(self, target: Any, source: np.ndarray) -> None:
        """Begin to copy from a block whose pages are registered."""
        if isinstance(target, np.ndarray):
            np.copyto(target, source)
            return
        with torch.cuda.stream(self._stream):
            target.copy_(torch.from_numpy(source), non_blocking=True)

    def wait(self) -> None:
        """Until all that was begun is done; other threads run meanwhile."""
        self._stream.synchronize()


class GpuGather:
    """Requests into one batch on the GPU: large fields as they lie, stacks are turned there."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._host = HostGather()
        self._raw: dict[str, torch.Tensor] = {}

    def __call__(self, requests: Sequence[Request]) -> Arrays:
        """What the policy is shown: arrays `[N, ...]` of small fields, and of large ones tensors.

        These are `[requests, L, ...]`: a stack is turned where the policy copies it to.
        """
        shown: dict[str, Any] = {}
        for name, example in requests[0].inputs.items():
            large = example.dtype.itemsize * int(np.prod(example.shape[1:])) >= LARGE_BYTES
            shown[name] = (self._field if large else self._host.field)(requests, name)
        return shown

    def _field(self, requests: Sequence[Request], name: str) -> torch.Tensor:
        rows = [request.inputs[name] for request in requests]
        pages = [torch.from_numpy(x.frames if isinstance(x, Stack) else x) for x in rows]
        wanted = (len(rows), *pages[0].shape)
        raw = self._raw.get(name)
        if raw is None or len(raw) < len(rows) or raw.shape[1:] != wanted[1:]:
            shape = (2 * len(rows), *wanted[1:])
            raw = self._raw[name] = torch.empty(shape, dtype=pages[0].dtype, device=self._device)
        for i, page in enumerate(pages):
            raw[i].copy_(page, non_blocking=True)
        raw = raw[: len(rows)]
        if not isinstance(rows[0], Stack):
            return raw
        turned = raw.transpose(1, 2)  # [requests, stack, L] to [requests, L, stack]
        before = [x.before() for x in rows if isinstance(x, Stack)]
        if any(mask is not None for mask in before):
            turned = turned.contiguous()
            nothing = np.zeros(rows[0].shape[:2], np.bool_)
            mask = np.stack([nothing if m is None else m for m in before])
            where = torch.from_numpy(mask).to(self._device, non_blocking=True)
            turned.masked_fill_(where.reshape(*mask.shape, *[1] * (turned.ndim - 3)), 0)
        return turned
