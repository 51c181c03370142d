"""From the arrays an actor shows to the arrays it is answered with: a function of tensors between.

Axes: `N` lanes.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from srl.core.algorithm import Done, Pending
from srl.core.arrays import Arrays
from srl.nets.graphs import Graphed
from srl.nets.tensors import array_of, tensor_of

Tensors = dict[str, Tensor]
Shown = Mapping[str, np.ndarray | Tensor]
_SPIN_SECONDS = 5e-4
"""How long a core is kept busy for an answer before it is left to others."""


def begin_acting(
    function: Callable[[Tensors], Tensors], device: torch.device
) -> Callable[[Shown], Pending]:
    """`function` of named tensors `[N, *shape]` as one of arrays.

    Among these must be `first`, `[N]`; tensors on a GPU are `[n, m, *shape]` with n·m lanes.
    The second call after may overwrite the answer.
    """
    if device.type == "cuda":
        return _GpuActing(function, device).begin

    def act(inputs: Shown) -> Pending:
        with torch.inference_mode():
            outputs = function({name: tensor_of(x, device) for name, x in inputs.items()})
            return Done({name: array_of(x) for name, x in outputs.items()})

    return act


class _GpuActing:
    """A CUDA graph for each of a few batch sizes; all answers of a batch come back in one copy."""

    def __init__(self, function: Callable[[Tensors], Tensors], device: torch.device) -> None:
        self._function = function
        self._device = device
        self._sizes: dict[int, _Size] = {}
        self._turn = 0
        self._answers = [_Answer(), _Answer()]  # one is read while the next is computed

    def begin(self, inputs: Shown) -> Pending:
        """Show and act."""
        num_lanes = len(inputs["first"])
        self._turn = 1 - self._turn
        answer = self._answers[self._turn]
        with torch.inference_mode():
            size = self._size(inputs, num_lanes)
            for name, x in inputs.items():
                given = x if isinstance(x, Tensor) else torch.from_numpy(x)
                target = size.inputs[name][:num_lanes]
                target.view(given.shape).copy_(given, non_blocking=True)
            answer.take(size.run(), size.parts, num_lanes)
        return answer

    def _size(self, inputs: Shown, num_lanes: int) -> "_Size":
        rows = bucket(num_lanes)
        size = self._sizes.get(rows)
        if size is None:
            shown = {}
            for name, x in inputs.items():
                given = torch.as_tensor(x)
                lead = 2 if given.is_cuda else 1  # requests and their lanes, or lanes
                shape = (rows, *given.shape[lead:])
                shown[name] = torch.zeros(shape, dtype=given.dtype, device=self._device)
            size = self._sizes[rows] = _Size(self._function, shown)
        return size


class _Size:
    """A function at one batch size."""

    def __init__(self, function: Callable[[Tensors], Tensors], inputs: Tensors) -> None:
        self.inputs = inputs
        """What it reads."""
        self.parts: list[tuple[str, int, np.dtype[Any], tuple[int, ...]]] = []
        """Of what it returns, packed: name, bytes, dtype and shape of each."""
        self._function = function
        self._graphed = Graphed(self._packed, inputs)

    def run(self) -> Tensor:
        """All outputs in one tensor of bytes."""
        return self._graphed()

    def _packed(self, inputs: Tensors) -> Tensor:
        outputs = {name: x.contiguous() for name, x in self._function(inputs).items()}
        self.parts = [
            (name, x.nbytes, torch.empty(0, dtype=x.dtype).numpy().dtype, tuple(x.shape))
            for name, x in outputs.items()
        ]
        return torch.cat([x.reshape(-1).view(torch.uint8) for x in outputs.values()])


class _Answer:
    """Where the outputs of a batch arrive on the host."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._bytes = self._buffer.numpy()
        self._done = torch.cuda.Event(blocking=True)  # waits without keeping a core busy
        self._parts: list[tuple[str, int, np.dtype[Any], tuple[int, ...]]] = []
        self._num_lanes = 0
        self._spin_until = 0.0

    def take(self, packed: Tensor, parts: list[Any], num_lanes: int) -> None:
        """Begin to copy what was packed."""
        if len(self._buffer) < len(packed):
            self._buffer = torch.empty(2 * len(packed), dtype=torch.uint8, pin_memory=True)
            self._bytes = self._buffer.numpy()
        self._buffer[: len(packed)].copy_(packed, non_blocking=True)
        self._done.record()
        self._spin_until = time.perf_counter() + _SPIN_SECONDS
        self._parts, self._num_lanes = parts, num_lanes

    def is_ready(self) -> bool:
        """Whether they are there, or late."""
        return self._done.query() or time.perf_counter() > self._spin_until

    def outputs(self) -> Arrays:
        """Of the lanes that were shown."""
        while not self.is_ready():
            pass
        self._done.synchronize()
        start, outputs = 0, {}
        for name, nbytes, dtype, shape in self._parts:
            part = self._bytes[start : start + nbytes].view(dtype).reshape(shape)
            outputs[name] = part[: self._num_lanes]
            start += nbytes
        return outputs


def bucket(num_lanes: int) -> int:
    """The next size that has a graph: four an octave, so that at most a fifth is for nothing."""
    step = max(1, 1 << max(0, (num_lanes - 1).bit_length() - 3))
    return -(-num_lanes // step) * step
