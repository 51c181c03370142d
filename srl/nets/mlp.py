"""Fully connected layers, initialised orthogonally. `N`: rows; `D`: features."""

import math
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

Activation = Literal["tanh", "relu"]


class Linear(nn.Module):
    """x·W + b with an orthogonal W of this gain, and b = 0.

    The weight is `[num_inputs, num_outputs]`, not transposed as in `nn.Linear`: at the sizes
    actors use, the product then takes half the time on a CPU.
    """

    def __init__(self, num_inputs: int, num_outputs: int, gain: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.orthogonal_(torch.empty(num_inputs, num_outputs), gain))
        self.bias = nn.Parameter(torch.zeros(num_outputs))

    def forward(self, x: Tensor) -> Tensor:
        """`[N, num_inputs]` to `[N, num_outputs]`."""
        return torch.addmm(self.bias, x, self.weight)


class Mlp(nn.Module):
    """Linear layers, each followed by the activation; none at all where `hidden` is empty."""

    def __init__(self, num_inputs: int, hidden: tuple[int, ...], activation: Activation) -> None:
        super().__init__()
        sizes = (num_inputs, *hidden)
        self.num_features = sizes[-1]
        layers = [Linear(i, o, math.sqrt(2)) for i, o in pairwise(sizes)]
        self.layers = nn.ModuleList(layers)
        # for actors, looking these up in modules costs as much as the products themselves
        self._weights = [(layer.bias, layer.weight) for layer in layers]
        self._activation = {"tanh": torch.tanh_, "relu": torch.relu_}[activation]  # in place

    def forward(self, x: Tensor) -> Tensor:
        """`[N, num_inputs]` to `[N, num_features]`."""
        for bias, weight in self._weights:
            x = self._activation(torch.addmm(bias, x, weight))
        return x
