"""Adam over one flat tensor that holds every parameter of a network.

Parameters and gradients become views of it, so that a step is one operation however many tensors
there are, and checkpoints can name and check every tensor of its state. (`torch.optim` does the same
work tensor by tensor, and imports the whole of torch's compiler when it is built.)
"""

from copy import deepcopy
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

NetworkT = TypeVar("NetworkT", bound=nn.Module)


def flattened(network: nn.Module) -> Tensor:
    """Have every parameter of a network be a view of one tensor, `[P]`, which is returned."""
    parameters = list(network.parameters())
    weights = torch.cat([p.detach().reshape(-1) for p in parameters])
    for parameter, view in zip(
        parameters, weights.split([p.numel() for p in parameters]), strict=True
    ):
        parameter.data = view.view(parameter.shape)
    return weights


class Adam:
    """Kingma and Ba 2015, algorithm 1, with bias correction and without weight decay."""

    def __init__(
        self,
        network: nn.Module,
        *,
        epsilon: float,
        first_decay: float = 0.9,
        second_decay: float = 0.999,
    ) -> None:
        named = dict(network.named_parameters())
        self._epsilon = epsilon
        self._first_decay, self._second_decay = first_decay, second_decay
        self.weights = flattened(network)
        """Every parameter, `[P]`."""
        self.gradient = torch.zeros_like(self.weights)
        """Of every parameter, `[P]`."""
        self._first = torch.zeros_like(self.weights)
        self._second = torch.zeros_like(self.weights)
        self._steps = torch.zeros((), device=self.weights.device)
        self.tensors: dict[str, Tensor] = {"steps": self._steps}
        """Its state, by name: what a checkpoint holds beside the weights."""
        start = 0
        for name, parameter in named.items():
            shape, stop = parameter.shape, start + parameter.numel()
            parameter.grad = self.gradient[start:stop].view(shape)
            self.tensors[f"{name}/first"] = self._first[start:stop].view(shape)
            self.tensors[f"{name}/second"] = self._second[start:stop].view(shape)
            start = stop

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self.gradient.zero_()

    @torch.no_grad()
    def clip(self, max_norm: float) -> Tensor:
        """Scale the gradients down to `max_norm` where they are longer; returns their norm `[]`."""
        norm = torch.linalg.vector_norm(self.gradient)
        self.gradient.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm

    @torch.no_grad()
    def step(self, learning_rate: Tensor) -> None:
        """Take one step along the gradients; the learning rate is `[]`."""
        self._steps += 1
        # what `torch.optim.Adam(fused=True)` calls for each of its tensors
        torch._fused_adam_(  # pyright: ignore[reportPrivateImportUsage]
            [self.weights],
            [self.gradient],
            [self._first],
            [self._second],
            [],
            [self._steps],
            lr=learning_rate,
            beta1=self._first_decay,
            beta2=self._second_decay,
            weight_decay=0.0,
            eps=self._epsilon,
            amsgrad=False,
            maximize=False,
        )


class Follower(Generic[NetworkT]):
    """A copy of a network that follows it slowly: a target network."""

    def __init__(self, network: NetworkT, adam: Adam) -> None:
        """Copy what `adam` changes."""
        self._leader = adam
        self._original = network
        self.network = deepcopy(network).requires_grad_(False)
        for parameter in self.network.parameters():
            parameter.grad = None
        self._weights = flattened(self.network)
        pairs = zip(self.network.buffers(), network.buffers(), strict=True)
        self._buffers = tuple(pairs)

    def copy(self) -> None:
        """Become what the network is now, buffers included."""
        self.network.load_state_dict(self._original.state_dict())

    @torch.no_grad()
    def follow(self, rate: float) -> None:
        """Go this part of the way to the network; statistics that it keeps are taken as they are."""
        self._weights.lerp_(self._leader.weights, rate)
        for mine, its in self._buffers:
            mine.copy_(its)
