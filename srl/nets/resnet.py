"""The deep network of images of IMPALA (Espeholt et al. 2018, figure 3, right).

Three stages, each a convolution, a pooling that halves the image, and two residual blocks.
`N`: rows; `H`, `W`, `C`: height, width, channels.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from srl.nets.conv import image_size, moved_channels
from srl.nets.mlp import Linear
from srl.nets.precision import layer_dtype

STAGES = (16, 32, 32)
"""Channels of each stage."""
BLOCKS = 2
"""Residual blocks of each stage."""


class ResNet(nn.Module):
    """IMPALA's network of images, as `ConvNet` takes them; of `width` times its channels."""

    def __init__(self, shape: tuple[int, ...], width: int = 1, num_features: int = 256) -> None:
        super().__init__()
        self.num_features = num_features
        self._channels_first, channels, height, width_of_image = image_size(shape)
        self.stages = nn.ModuleList()
        for num_outputs in STAGES:
            self.stages.append(_Stage(channels, width * num_outputs))
            channels = width * num_outputs
            height, width_of_image = -(-height // 2), -(-width_of_image // 2)
        self.output = Linear(channels * height * width_of_image, num_features, math.sqrt(2))

    def forward(self, images: Tensor) -> Tensor:
        """`[N, *shape]` to `[N, num_features]`; channels are last in memory."""
        x = moved_channels(images, self._channels_first)
        x = x.contiguous(memory_format=torch.channels_last).to(layer_dtype(x.device))
        scale = 1 / 255 if images.dtype == torch.uint8 else 1.0
        for stage in self.stages:
            x = stage(x, scale)
            scale = 1.0
        return torch.relu(self.output(x.relu_().flatten(1)))


class _Stage(nn.Module):
    """From `[N, C, H, W]` to an image of half the height and width, rounded up."""

    def __init__(self, channels: int, num_outputs: int) -> None:
        super().__init__()
        self.conv = _Conv(channels, num_outputs, 1.0)  # no activation follows
        self.blocks = nn.ModuleList(_Block(num_outputs) for _ in range(BLOCKS))

    def forward(self, x: Tensor, scale: float) -> Tensor:
        """The stage over `x` times `scale`."""
        x = functional.max_pool2d(self.conv(x, scale), 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        return x


class _Block(nn.Module):
    """x + conv(relu(conv(relu(x))))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = _Conv(channels, channels, math.sqrt(2))
        # small, so that all blocks together add about as much as passes them, and not each of them
        self.second = _Conv(channels, channels, math.sqrt(2 / (BLOCKS * len(STAGES))))

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W]` to the same shape."""
        return x + self.second(self.first(x.relu()).relu_())


class _Conv(nn.Module):
    """A kernel of 3×3 that leaves height and width as they are, orthogonal, of this gain."""

    def __init__(self, channels: int, num_outputs: int, gain: float) -> None:
        super().__init__()
        empty = torch.empty(num_outputs, channels, 3, 3)
        self.weight = nn.Parameter(nn.init.orthogonal_(empty, gain))
        self.bias = nn.Parameter(torch.zeros(num_outputs))

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        """`[N, C, H, W]`, of which `scale` times the values count, to `[N, num_outputs, H, W]`."""
        # the kernel is scaled: the image would be one more pass over all pixels
        weight = self.weight if scale == 1 else self.weight * scale
        weight = weight.contiguous(memory_format=torch.channels_last)
        return functional.conv2d(x, weight, self.bias, padding=1)
