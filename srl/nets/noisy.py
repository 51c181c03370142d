"""Layers that explore by noise in their weights, whose size is learned (Fortunato et al. 2018).

Axes: `N` rows, `D` inputs, `E` outputs.
"""

import math

import torch
from torch import Tensor, nn


class NoisyLinear(nn.Module):
    """x·(W + σ_W ⊙ f(a)·f(b)ᵀ) + (b + σ_b ⊙ f(b)), with noise a `[D]` and b `[E]` for every row."""

    def __init__(self, num_inputs: int, num_outputs: int, scale: float) -> None:
        """Weights uniform in ±1/√D, and the noise `scale`/√D, as in the paper."""
        super().__init__()
        self.num_inputs, self.num_outputs = num_inputs, num_outputs
        bound = 1 / math.sqrt(num_inputs)

        def uniform(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))

        self.weight, self.bias = uniform(num_inputs, num_outputs), uniform(num_outputs)
        self.weight_scale = nn.Parameter(torch.full((num_inputs, num_outputs), scale * bound))
        self.bias_scale = nn.Parameter(torch.full((num_outputs,), scale * bound))

    @property
    def num_noise(self) -> int:
        """Normal numbers that a row needs."""
        return self.num_inputs + self.num_outputs

    def forward(self, x: Tensor, noise: Tensor | None) -> Tensor:
        """`[N, D]` to `[N, E]`, by `noise`, `[N, D + E]`; None: without any."""
        y = torch.addmm(self.bias, x, self.weight)
        if noise is None:
            return y
        shaped = noise.sign() * noise.abs().sqrt()
        into, out = shaped.split([self.num_inputs, self.num_outputs], -1)
        # row by row its own weights, and never all of them at once
        return y + ((x * into) @ self.weight_scale + self.bias_scale) * out
