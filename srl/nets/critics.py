"""Several critics of states and actions, computed as one.

Axes: `C` critics, `M` rows, `D` features, `A` numbers of an action.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from srl.core.compute import Compute
from srl.nets.mlp import Activation
from srl.nets.precision import layer_precision


class Critics(nn.Module):
    """Q(s, a) by `C` networks of one shape: their weights lie in one tensor a layer, `[C, in, out]`.

    Weights and biases begin uniform in ±1/√in, as in the code of Fujimoto et al. 2018.
    """

    def __init__(
        self,
        count: int,
        *,
        num_features: int,
        num_actions: int,
        hidden: tuple[int, ...],
        activation: Activation,
        compute: Compute,
    ) -> None:
        super().__init__()
        sizes = list(pairwise((num_features + num_actions, *hidden)))
        self.weights = nn.ParameterList(_uniform(count, i, o, inputs=i) for i, o in sizes)
        self.biases = nn.ParameterList(_uniform(count, 1, o, inputs=i) for i, o in sizes)
        last = hidden[-1] if hidden else num_features + num_actions
        self.value_weight = _uniform(count, 1, last, inputs=last)
        self.value_bias = _uniform(count, 1, inputs=last)
        hidden_layers = zip(self.biases, self.weights, strict=True)
        self._layers = [(self.value_weight, self.value_bias), *hidden_layers]
        self._activation = {"tanh": torch.tanh_, "relu": torch.relu_}[activation]  # in place
        self._precision = layer_precision(compute)

    def forward(
        self, features: Tensor, action: Tensor, *, fixed: bool = False, count: int | None = None
    ) -> Tensor:
        """Values `[C, M]` of states `[M, D]` and actions `[M, A]`; with `count`, by so many critics.

        With `fixed` gradients flow to the action alone, which is half the work.
        """
        layers = self._layers
        if fixed or count is not None:
            layers = [tuple((p.detach() if fixed else p)[:count] for p in pair) for pair in layers]
        (weight, bias), *hidden = layers
        rows = torch.cat([features, action], -1)
        x = rows.expand(len(weight), *rows.shape)
        with self._precision:
            for layer_bias, layer_weight in hidden:
                x = self._activation(torch.baddbmm(layer_bias, x, layer_weight))
        return (x.float() * weight).sum(
            -1
        ) + bias  # a product of matrices this thin takes 6 times as long


def _uniform(*shape: int, inputs: int) -> nn.Parameter:
    limit = 1 / math.sqrt(inputs)
    return nn.Parameter(torch.empty(shape).uniform_(-limit, limit))
