"""What layers multiply in. Weights, gradients, heads, softmax and losses are fp32 always."""

from contextlib import AbstractContextManager, nullcontext

import torch

from srl.core.compute import Compute


def layer_precision(compute: Compute) -> AbstractContextManager[object]:
    """A `with` block, to be used again and again, in which layers compute as `compute` says."""
    device = torch.device(compute.device)
    if device.type == "cuda":  # of this process: every network in it computes alike
        torch.backends.cudnn.allow_tf32 = compute.precision == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = compute.precision == "tf32"
    if compute.precision != "bf16":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


def layer_dtype(device: torch.device) -> torch.dtype:
    """What a layer's inputs should be inside of it; bf16, too, holds every byte exactly."""
    is_bf16 = torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if is_bf16 else torch.float32
