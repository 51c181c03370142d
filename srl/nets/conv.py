"""Convolutions for images. `N`: rows; `H`, `W`, `C`: height, width, channels."""

import math

import torch
from torch import Tensor, nn

from srl.nets.mlp import Linear

NATURE = ((32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0))
"""Channels, kernel, stride, padding of each layer (Mnih et al. 2015)."""
SMALL = ((16, 3, 1, 1), (32, 3, 1, 1))
"""For images that are too small for Nature's kernels (grid worlds, MinAtar)."""
SMALLEST_FOR_NATURE = 36


def channels_first(shape: tuple[int, ...]) -> bool:
    """Whether an image of this shape is C×H×W: channels are the shorter of the outer axes."""
    return shape[0] < shape[2]


class ConvNet(nn.Module):
    """Nature's network of images, `[N, *shape]` uint8 (divided by 255) or float, H×W×C or C×H×W.

    A fourth axis before these is a stack of images: its images are channels of one.
    """

    def __init__(self, shape: tuple[int, ...], num_features: int = 512) -> None:
        super().__init__()
        self.num_features = num_features
        *stack, image = shape[:-3], shape[-3:]
        self._channels_first = channels_first(image)
        channels, height, width = image if self._channels_first else (image[2], *image[:2])
        channels *= math.prod(*stack)
        layers = NATURE if min(height, width) >= SMALLEST_FOR_NATURE else SMALL
        self.layers = nn.ModuleList()
        for num_outputs, kernel, stride, padding in layers:
            layer = nn.Conv2d(channels, num_outputs, kernel, stride, padding)
            nn.init.orthogonal_(layer.weight, math.sqrt(2))
            nn.init.zeros_(layer.get_parameter("bias"))
            self.layers.append(layer)
            channels = num_outputs
            height = (height + 2 * padding - kernel) // stride + 1
            width = (width + 2 * padding - kernel) // stride + 1
        self.output = Linear(channels * height * width, num_features, math.sqrt(2))

    def forward(self, images: Tensor) -> Tensor:
        """`[N, *shape]` to `[N, num_features]`."""
        x = images.float() / 255 if images.dtype == torch.uint8 else images.float()
        if not self._channels_first:
            x = x.movedim(-1, -3)
        x = x.flatten(1, -3)
        for layer in self.layers:
            x = torch.relu(layer(x))
        return torch.relu(self.output(x.flatten(1)))
