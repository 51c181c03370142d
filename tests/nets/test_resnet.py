"""IMPALA's network of images: what is rearranged for speed computes what the paper has."""

import pytest
import torch
from torch.nn import functional

from srl.nets.resnet import ResNet


def plainly(net: ResNet, images: torch.Tensor) -> torch.Tensor:
    """The paper's network over `[N, C, H, W]`, by its weights alone."""
    weights = dict(net.named_parameters())

    def conv(x, name):
        return functional.conv2d(x, weights[f"{name}.weight"], weights[f"{name}.bias"], padding=1)

    x = images.float() / 255 if images.dtype == torch.uint8 else images
    for s in range(3):
        x = functional.max_pool2d(conv(x, f"stages.{s}.conv"), 3, 2, 1)
        for b in range(2):
            y = conv(functional.relu(x), f"stages.{s}.blocks.{b}.first")
            x = x + conv(functional.relu(y), f"stages.{s}.blocks.{b}.second")
    x = functional.relu(x).flatten(1)
    return functional.relu(x @ weights["output.weight"] + weights["output.bias"])


def images(*shape, dtype=torch.uint8):
    made = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.manual_seed(3))
    return made if dtype == torch.uint8 else made.float() / 255


@pytest.mark.parametrize(
    ("shape", "dtype", "width"),
    [((4, 84, 84), torch.uint8, 1), ((3, 9, 20), torch.uint8, 2), ((4, 15, 17), torch.float32, 1)],
)
def test_network_and_its_gradients_are_the_plain_ones(shape, dtype, width):
    net = ResNet(shape, width, 16)
    batch = images(2, *shape, dtype=dtype)
    out, expected = net(batch), plainly(net, batch)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    weights = list(net.parameters())
    mine = torch.autograd.grad(out.square().sum(), weights)
    theirs = torch.autograd.grad(expected.square().sum(), weights)
    for a, b in zip(mine, theirs, strict=True):
        assert a.abs().sum() > 0
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_it_is_as_large_as_the_paper_says():
    net = ResNet((84, 84, 4))
    assert [tuple(s.conv.weight.shape[:2]) for s in net.stages] == [(16, 4), (32, 16), (32, 32)]
    assert net.output.weight.shape == (32 * 11 * 11, 256)
    assert net.num_features == 256
    assert ResNet((84, 84, 4), 3).stages[2].conv.weight.shape == (96, 96, 3, 3)


@pytest.mark.parametrize("shape", [(64, 64, 3), (3, 64, 64), (2, 3, 40, 40), (7, 7, 3), (1, 1, 1)])
def test_it_takes_all_layouts_and_sizes(shape):
    assert ResNet(shape)(images(2, *shape)).shape == (2, 256)


def test_layouts_agree():
    net, stacked, last = (ResNet(s, 1, 8) for s in ((4, 20, 22), (2, 2, 20, 22), (20, 22, 4)))
    for other in (stacked, last):
        other.load_state_dict(net.state_dict())
    batch = images(3, 4, 20, 22)
    torch.testing.assert_close(net(batch), stacked(batch.view(3, 2, 2, 20, 22)))
    torch.testing.assert_close(net(batch), last(batch.permute(0, 2, 3, 1)), rtol=1e-5, atol=1e-6)


def test_features_of_fresh_weights_are_neither_lost_nor_blown_up():
    out = ResNet((4, 64, 64))(images(8, 4, 64, 64))
    assert 0.1 < out.square().mean().sqrt() < 5


def test_bf16_is_close_to_fp32():
    net = ResNet((3, 32, 32))
    batch = images(4, 3, 32, 32)
    with torch.autocast("cpu", torch.bfloat16):
        out = net(batch)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), net(batch), rtol=0.1, atol=0.05)
