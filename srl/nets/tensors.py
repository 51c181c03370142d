"""Between NumPy arrays, in which data and weights travel, and the tensors of a network."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from srl.core.arrays import check_arrays


def tensor_of(array: np.ndarray | Tensor, device: torch.device) -> Tensor:
    """The array as a tensor: a view where it is writable and the device is the CPU."""
    if isinstance(array, Tensor):  # large fields may be on the device already
        return array.to(device, non_blocking=True)
    # torch warns of arrays it may not write to; a copy is the price of never asking who would
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)


def array_of(tensor: Tensor) -> np.ndarray:
    """The tensor as an array: a view where it is on the CPU, else a copy on the host."""
    return tensor.detach().cpu().numpy()


@torch.no_grad()
def load_arrays(tensors: Mapping[str, Tensor], arrays: Mapping[str, np.ndarray]) -> None:
    """Copy every array into the tensor of its name, or none of them.

    Raises CheckpointError naming the first tensor that is missing or of another shape.
    """
    check_arrays({name: tuple(x.shape) for name, x in tensors.items()}, arrays)
    for name, tensor in tensors.items():
        tensor.copy_(tensor_of(arrays[name], torch.device("cpu")))
