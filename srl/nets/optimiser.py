"""Adam over one flat tensor that holds every parameter of a network.

Parameters and gradients become views of it, so that a step is one operation however many tensors
there are, and checkpoints can name and check every tensor of its state. (`torch.optim` does the same
work tensor by tensor, and imports the whole of torch's compiler when it is built.)
"""

import torch
from torch import Tensor, nn


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
        self._weights = torch.cat([p.detach().reshape(-1) for p in named.values()])
        self.gradient = torch.zeros_like(self._weights)
        """Of every parameter, `[P]`."""
        self._first = torch.zeros_like(self._weights)
        self._second = torch.zeros_like(self._weights)
        self._steps = torch.zeros((), device=self._weights.device)
        self.tensors: dict[str, Tensor] = {"steps": self._steps}
        """Its state, by name: what a checkpoint holds beside the weights."""
        start = 0
        for name, parameter in named.items():
            shape, stop = parameter.shape, start + parameter.numel()
            parameter.data = self._weights[start:stop].view(shape)
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
            [self._weights],
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
