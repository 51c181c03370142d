"""From the arrays an actor shows to the arrays it is answered with: a function of tensors between.

Axes: `N` lanes.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from srl.core.arrays import Arrays
from srl.nets.graphs import Graphed
from srl.nets.tensors import array_of, tensor_of

Tensors = dict[str, Tensor]
Act = Callable[[Mapping[str, np.ndarray | Tensor]], Arrays]


def acting(function: Callable[[Tensors], Tensors], device: torch.device) -> Act:
    """`function` of named tensors `[N, *shape]` as one of arrays; on a GPU, a CUDA graph.

    The arrays it returns may be overwritten by the next call.
    """
    if device.type == "cuda":
        return _OnGpu(function, device)

    def act(inputs: Mapping[str, np.ndarray | Tensor]) -> Arrays:
        with torch.inference_mode():
            outputs = function({name: tensor_of(x, device) for name, x in inputs.items()})
            return {name: array_of(x) for name, x in outputs.items()}

    return act


class _OnGpu:
    """Replays a graph for the next larger of a few batch sizes; all answers come back in one copy."""

    def __init__(self, function: Callable[[Tensors], Tensors], device: torch.device) -> None:
        self._function = function
        self._device = device
        self._graphed = Graphed(self._packed)
        self._static: dict[int, Tensors] = {}
        self._answer = torch.empty(0, dtype=torch.uint8)
        self._done = torch.cuda.Event(blocking=True)  # waits without keeping a core busy

    def __call__(self, inputs: Mapping[str, np.ndarray | Tensor]) -> Arrays:
        """Show, act, answer."""
        num_lanes = len(next(iter(inputs.values())))
        with torch.inference_mode():
            static = self._show(inputs, num_lanes)
            packed, parts = self._graphed(static)
            if len(self._answer) < len(packed):
                self._answer = torch.empty(2 * len(packed), dtype=torch.uint8, pin_memory=True)
            self._answer[: len(packed)].copy_(packed, non_blocking=True)
            self._done.record()
            self._done.synchronize()
        return self._unpack(parts, num_lanes)

    def _show(self, inputs: Mapping[str, np.ndarray | Tensor], num_lanes: int) -> Tensors:
        size = bucket(num_lanes)
        static = self._static.get(size)
        if static is None:
            tensors = {name: torch.as_tensor(x) for name, x in inputs.items()}
            static = self._static[size] = {
                name: torch.zeros((size, *x.shape[1:]), dtype=x.dtype, device=self._device)
                for name, x in tensors.items()
            }
            (static,) = self._graphed.inputs(static)
            self._static[size] = static
        for name, x in inputs.items():
            given = x if isinstance(x, Tensor) else torch.from_numpy(x)
            static[name][:num_lanes].copy_(given, non_blocking=True)
        return static

    def _packed(self, inputs: Tensors) -> tuple[Tensor, Tensors]:
        outputs = self._function(inputs)
        parts = {name: x.contiguous() for name, x in outputs.items()}
        return torch.cat([x.reshape(-1).view(torch.uint8) for x in parts.values()]), parts

    def _unpack(self, parts: Tensors, num_lanes: int) -> Arrays:
        answer, start, outputs = self._answer.numpy(), 0, {}
        for name, part in parts.items():
            stop = start + part.numel() * part.element_size()
            dtype = torch.empty(0, dtype=part.dtype).numpy().dtype
            outputs[name] = answer[start:stop].view(dtype).reshape(part.shape)[:num_lanes]
            start = stop
        return outputs


def bucket(num_lanes: int) -> int:
    """The next size that has a graph: four an octave, so that at most a fifth is for nothing."""
    step = max(1, 1 << max(0, (num_lanes - 1).bit_length() - 3))
    return -(-num_lanes // step) * step
