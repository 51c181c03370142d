"""Convolutions for images. `N`: rows; `H`, `W`, `C`: height, width, channels."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from srl.nets.mlp import Linear
from srl.nets.precision import layer_dtype

NATURE = ((32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0))
"""Channels, kernel, stride, padding of each layer (Mnih et al. 2015)."""
LIGHT = ((16, 8, 4, 0), (32, 4, 2, 0))
"""A third of Nature's work, for hosts without a GPU (Mnih et al. 2013)."""
SMALL = ((16, 3, 1, 1), (32, 3, 1, 1))
"""For images that are too small for Nature's kernels (grid worlds, MinAtar)."""
SMALLEST_FOR_NATURE = 36
NATURE_FEATURES, LIGHT_FEATURES = 512, 256
_FOLD = 4
"""Side of the squares that `_folded` makes channels: bytes are moved four at a time."""


def channels_first(shape: tuple[int, ...]) -> bool:
    """Whether an image of this shape is C×H×W: channels are the shorter of the outer axes."""
    return shape[0] < shape[2]


def image_size(shape: tuple[int, ...]) -> tuple[bool, int, int, int]:
    """Of images of this shape, H×W×C or C×H×W, stacked or not.

    Returns:
        Whether channels come first; the channels of all images of a stack; height; width.
    """
    *stack, image = shape[:-3], shape[-3:]
    is_first = channels_first(image)
    channels, height, width = image if is_first else (image[2], *image[:2])
    return is_first, channels * math.prod(*stack), height, width


def moved_channels(images: Tensor, is_first: bool) -> Tensor:
    """`[N, *shape]` to `[N, C, H, W]`, without a copy where there is no stack."""
    return (images if is_first else images.movedim(-1, -3)).flatten(1, -3)


class ConvNet(nn.Module):
    """Nature's network, or the light one, of images `[N, *shape]`, uint8 (divided by 255) or float, H×W×C or C×H×W.

    A fourth axis before these is a stack of images: its images are channels of one.
    """

    def __init__(
        self, shape: tuple[int, ...], num_features: int | None = None, *, is_light: bool = False
    ) -> None:
        super().__init__()
        self.num_features = num_features or (LIGHT_FEATURES if is_light else NATURE_FEATURES)
        self._channels_first, channels, height, width = image_size(shape)
        large = LIGHT if is_light else NATURE
        layers = large if min(height, width) >= SMALLEST_FOR_NATURE else SMALL
        _, kernel, stride, padding = layers[0]
        self.folds = self._channels_first and (stride, padding) == (_FOLD, 0)
        self.folds &= not (kernel % _FOLD or height % _FOLD or width % _FOLD)
        """Whether bytes on a CPU are folded; not so in exported policies: ONNX cannot say it."""
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
        self.output = Linear(channels * height * width, self.num_features, math.sqrt(2))

    def forward(self, images: Tensor) -> Tensor:
        """`[N, *shape]` to `[N, num_features]`.

        Channels last in memory, which convolutions like best (1.4 times plain on a CPU).
        """
        x = moved_channels(images, self._channels_first)
        is_bytes = images.dtype == torch.uint8
        folds = self.folds and is_bytes and x.device.type == "cpu"
        # moved while they are bytes, and not divided: that would be one more pass over all pixels
        x = _folded(x) if folds else x.contiguous(memory_format=torch.channels_last)
        x = x.to(layer_dtype(x.device))
        for number, (layer, stride, padding) in enumerate(self._layers):
            weight, step = layer.weight, stride
            if is_bytes and number == 0:
                weight = weight * (1 / 255)
            if folds and number == 0:
                weight, step = _folded_kernel(weight), 1
            weight = weight.contiguous(memory_format=torch.channels_last)
            x = functional.conv2d(x, weight, layer.bias, step, padding).relu_()
        return torch.relu(self.output(x.flatten(1)))


def _folded(images: Tensor) -> Tensor:
    """Bytes `[N, C, H, W]` to `[N, C·16, H/4, W/4]`, channels last: squares of 4×4 become channels.

    A kernel of 8×8 with stride 4 over C channels is then one of 2×2 over C·16, which CPUs like better
    (docs/design/0007-compute.md).
    """
    n, c, h, w = images.shape
    if images.storage_offset() % _FOLD:
        images = images.clone()
    rows = images.contiguous().view(torch.int32)  # four neighbours in a row are one number
    squares = rows.view(n, c, h // _FOLD, _FOLD, w // _FOLD).permute(0, 2, 4, 1, 3).contiguous()
    folded = squares.view(torch.uint8).view(n, h // _FOLD, w // _FOLD, c * _FOLD * _FOLD)
    return folded.permute(0, 3, 1, 2)


def _folded_kernel(weight: Tensor) -> Tensor:
    """The kernel that does with `_folded` images, by strides of 1, what `weight` does with the images."""
    o, c, h, w = weight.shape
    squares = weight.view(o, c, h // _FOLD, _FOLD, w // _FOLD, _FOLD).permute(0, 1, 3, 5, 2, 4)
    return squares.reshape(o, c * _FOLD * _FOLD, h // _FOLD, w // _FOLD)
