"""Adam, with its state in the open so that checkpoints can name and check every tensor of it."""

import torch
from torch import Tensor, nn


def make_adam(
    network: nn.Module, *, learning_rate: float, epsilon: float
) -> tuple[torch.optim.Adam, dict[str, Tensor]]:
    """An optimiser of all parameters of a network, and the tensors it will update, by name."""
    parameters = dict(network.named_parameters())
    adam = torch.optim.Adam(parameters.values(), lr=learning_rate, eps=epsilon, fused=True)
    tensors: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        # what Adam itself would make at its first step
        state = {
            "step": torch.zeros((), device=parameter.device),
            "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
        }
        adam.state[parameter] = state
        tensors |= {f"{name}/{key}": tensor for key, tensor in state.items()}
    return adam, tensors
