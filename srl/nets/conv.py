"""Convolutions for images. `N`: rows; `H`, `W`, `C`: height, width, channels."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from srl.nets.mlp import Linear
from srl.nets.precision import layer_dtype

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
        self._layers: list[tuple[nn.Conv2d, int, int]] = []
        for num_outputs, kernel, stride, padding in layers:
            layer = nn.Conv2d(channels, num_outputs, kernel, stride, padding)
            nn.init.orthogonal_(layer.weight, math.sqrt(2))
            nn.init.zeros_(layer.get_parameter("bias"))
            self.layers.append(layer)
            self._layers.append((layer, stride, padding))
            channels = num_outputs
            height = (height + 2 * padding - kernel) // stride + 1
            width = (width + 2 * padding - kernel) // stride + 1
        self.output = Linear(channels * height * width, num_features, math.sqrt(2))

    def forward(self, images: Tensor) -> Tensor:
        """`[N, *shape]` to `[N, num_features]`.

        Channels last in memory, which convolutions like best (1.4 times plain on a CPU).
        """
        x = (images if self._channels_first else images.movedim(-1, -3)).flatten(1, -3)
        # moved while they are bytes, and not divided: that would be one more pass over all pixels
        x = x.contiguous(memory_format=torch.channels_last).to(layer_dtype(x.device))
        scale = 1 / 255 if images.dtype == torch.uint8 else None
        for layer, stride, padding in self._layers:
            weight = layer.weight if scale is None else layer.weight * scale
            weight, scale = weight.contiguous(memory_format=torch.channels_last), None
            x = functional.conv2d(x, weight, layer.bias, stride, padding).relu_()
        return torch.relu(self.output(x.flatten(1)))
