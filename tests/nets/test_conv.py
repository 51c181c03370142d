"""Convolutions of images: what is rearranged for speed computes what was written."""

import pytest
import torch
from torch.nn import functional

from srl.nets.conv import LIGHT, NATURE, ConvNet


def plainly(net: ConvNet, images: torch.Tensor) -> torch.Tensor:
    """The network as its paper has it, over `[N, C, H, W]`."""
    x = images.float() / 255 if images.dtype == torch.uint8 else images
    for layer, (_, _, stride, padding) in zip(
        net.layers, LIGHT if len(net.layers) == 2 else NATURE, strict=True
    ):
        weight, bias = layer.get_parameter("weight"), layer.get_parameter("bias")
        x = functional.relu(functional.conv2d(x, weight, bias, stride, padding))
    return functional.relu(net.output(x.flatten(1)))


def images(*shape: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    made = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.manual_seed(3))
    return made if dtype == torch.uint8 else made.float() / 255


CASES = {
    "stack of frames": ((4, 84, 84), torch.uint8),
    "not square": ((3, 64, 96), torch.uint8),
    "does not fold": ((4, 83, 85), torch.uint8),
    "floats": ((4, 84, 84), torch.float32),
}


@pytest.mark.parametrize("is_light", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_network_and_its_gradients_are_the_plain_ones(case, is_light):
    shape, dtype = CASES[case]
    net = ConvNet(shape, 16, is_light=is_light)
    assert len(net.layers) == (2 if is_light else 3)
    batch = images(5, *shape, dtype=dtype)
    out = net(batch)
    expected = plainly(net, batch)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
    weights = list(net.parameters())
    mine = torch.autograd.grad(out.square().sum(), weights)
    theirs = torch.autograd.grad(expected.square().sum(), weights)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_stack_of_images_and_images_of_channels_last_are_the_same_network():
    net, stacked, last = (ConvNet(s, 16) for s in ((4, 84, 84), (4, 1, 84, 84), (84, 84, 4)))
    for other in (stacked, last):
        other.load_state_dict(net.state_dict())
    batch = images(3, 4, 84, 84)
    torch.testing.assert_close(net(batch), stacked(batch[:, :, None]))
    torch.testing.assert_close(net(batch), last(batch.permute(0, 2, 3, 1)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("offset", [1, 2, 4])
def test_images_anywhere_in_memory_are_read(offset):
    net = ConvNet((4, 84, 84), 16)
    batch = images(2, 4, 84, 84)
    memory = torch.zeros(batch.numel() + offset, dtype=torch.uint8)
    elsewhere = memory[offset:].view(batch.shape)
    elsewhere.copy_(batch)
    torch.testing.assert_close(net(elsewhere), net(batch))
    every_other = torch.stack([batch, batch * 0], 1)[:, 0]
    torch.testing.assert_close(net(every_other), net(batch))
