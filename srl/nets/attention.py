"""What attention is made of. `N`: rows or sequences; `Q` queries, `S` keys, `h` heads of `d` numbers."""

import math

import torch
from torch import Tensor, nn


def orthogonal(num_inputs: int, num_outputs: int, gain: float = 1.0) -> nn.Parameter:
    """A weight `[num_inputs, num_outputs]`, for projections without a bias."""
    return nn.Parameter(nn.init.orthogonal_(torch.empty(num_inputs, num_outputs), gain))


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """`[..., S, h·d]` to `[..., h, S, d]`."""
    return x.unflatten(-1, (num_heads, -1)).transpose(-3, -2)


def merge_heads(x: Tensor) -> Tensor:
    """`[N, h, Q, d]` to `[N, Q, h·d]`."""
    return x.transpose(-3, -2).flatten(-2)


def attention_weights(scores: Tensor, num_numbers: int, visible: Tensor) -> Tensor:
    """Softmax, in float32, of `scores` divided by √d, over the keys that are visible.

    Args:
        scores: `[N, h, Q, S]`.
        num_numbers: `d`.
        visible: bool, of a shape that extends to that of the scores; for each query at least one key.

    Returns:
        `[N, h, Q, S]`, in the type of the scores, exactly 0 where a key is not visible.
    """
    scaled = scores.float() / math.sqrt(num_numbers)
    return scaled.masked_fill(~visible, -math.inf).softmax(-1).to(scores.dtype)
