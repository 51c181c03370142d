"""Sets of entities: order and what is not there do not matter; against attention with loops."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from srl.core.env import Observation
from srl.core.errors import ConfigError
from srl.nets.entities import Entities, SetAttention, find_sets, is_set, masked_mean_of

BOXES = Observation("boxes", (4, 3), "float32")
RAMPS = Observation("ramps", (2, 5), "float32")
MASK = Observation("boxes_mask", (4,), "int8")
SIZE, OWN, M = 8, 3, 5


def make(seed=0, *, normalise=False):
    torch.manual_seed(seed)
    sets, masks = find_sets((BOXES, MASK, RAMPS))
    return Entities(sets, masks, OWN, size=SIZE, heads=2, normalise=normalise)


def seen(seed=0, there=0.6):
    torch.manual_seed(seed)
    obs = {
        "boxes": torch.randn(M, 4, 3),
        "ramps": torch.randn(M, 2, 5),
        "boxes_mask": (torch.rand(M, 4) < there).to(torch.int8),
    }
    return obs, torch.randn(M, OWN)


def twin(layer, tokens, there):
    """One row of tokens, `[S, H]`, with loops over tokens and heads."""
    d = tokens.shape[1] // layer.heads
    normed = [layer.norm(token) for token in tokens]
    outputs = []
    for i, token in enumerate(tokens):
        looked = []
        for head in range(layer.heads):
            part = slice(head * d, head * d + d)
            query = (normed[i] @ layer.query)[part]
            shares = {
                j: (query @ (normed[j] @ layer.key)[part] / math.sqrt(d)).exp()
                for j in range(len(tokens))
                if there[j]
            }
            total = sum(shares.values())
            looked.append(
                sum(s / total * (normed[j] @ layer.value)[part] for j, s in shares.items())
            )
        outputs.append(token + torch.cat(looked) @ layer.output)
    return torch.stack(outputs)


def test_attention_is_the_twin_with_loops():
    torch.manual_seed(0)
    layer = SetAttention(6, 3)
    tokens, there = torch.randn(4, 5, 6), torch.rand(4, 5) < 0.6
    there[:, 0] = True
    out = layer(tokens, there)
    for row in range(4):
        torch.testing.assert_close(out[row], twin(layer, tokens[row], there[row]))


def test_masked_mean_by_hand():
    tokens = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]]).expand(2, 3, 2)
    there = torch.tensor([[True, False, True], [False, False, False]])
    assert masked_mean_of(tokens, there).tolist() == [[3, 4], [0, 0]]


def test_an_entity_is_embedded_beside_oneself():
    net = make()
    obs, own = seen(there=1.0)
    part = net.sets[1]
    beside = torch.cat([obs["ramps"], own[:, None].expand(M, 2, OWN)], -1)
    expected = part.embedding(beside.flatten(0, 1)).relu().view(M, 2, SIZE)
    there = torch.ones(M, 2, dtype=torch.bool)
    torch.testing.assert_close(part(obs["ramps"], there, own), expected)


@settings(max_examples=25, deadline=None)
@given(order=st.permutations(range(4)), seed=st.integers(0, 1000), normalise=st.booleans())
def test_order_of_a_set_does_not_matter(order, seed, normalise):
    net = make(seed, normalise=normalise)
    obs, own = seen(seed)
    moved = obs | {name: obs[name][:, list(order)] for name in ("boxes", "boxes_mask")}
    with torch.no_grad():
        torch.testing.assert_close(net(moved, own), net(obs, own), rtol=1e-4, atol=1e-5)


def test_entities_that_are_not_there_have_no_influence_and_no_gradient():
    net = make()
    obs, own = seen()
    hidden = obs["boxes_mask"] == 0
    assert hidden.any()
    assert not hidden.all()
    other = obs | {"boxes": obs["boxes"].clone()}
    other["boxes"][hidden] = 3e38
    other["boxes"].requires_grad_()
    out = net(other, own)
    assert torch.equal(out, net(obs, own))
    out.square().sum().backward()
    gradient = other["boxes"].grad
    assert gradient is not None
    assert gradient[hidden].abs().sum() == 0
    assert (gradient[~hidden].abs().sum(-1) > 0).all()
    shown = obs | {"boxes_mask": torch.ones(M, 4, dtype=torch.int8)}
    assert not torch.allclose(net(shown, own), out)


def test_sets_without_any_entity_give_finite_features_and_gradients():
    net = make()
    obs, own = seen(there=0.0)
    only = Entities([BOXES], {"boxes": "boxes_mask"}, OWN, size=SIZE, heads=2, normalise=False)
    for made in (net, only):
        out = made(obs, own)
        assert out.shape == (M, 2 * SIZE)
        out.sum().backward()
        assert out.isfinite().all()
        assert all(w.grad is not None and w.grad.isfinite().all() for w in made.parameters())


def test_gradients_reach_every_weight():
    net = make()
    obs, own = seen()
    net(obs, own).square().sum().backward()
    for name, weight in net.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.abs().sum() > 0, name


def test_bf16_is_close_to_fp32():
    net = make()
    obs, own = seen()
    with torch.autocast("cpu", torch.bfloat16):
        out = net(obs, own)
    torch.testing.assert_close(out.float(), net(obs, own), rtol=0.1, atol=0.1)


def test_which_observations_are_sets():
    others = (
        Observation("obs", (3,), "float32"),
        Observation("frames", (3,), "float32", stack=4),
        Observation("image", (8, 8, 3), "uint8"),
        Observation("kinds", (2, 2), "int64", categories=(3, 3, 3, 3)),
        Observation("obs_mask", (3,), "int8"),
    )
    assert not any(is_set(o) for o in others)
    assert find_sets((BOXES, MASK, RAMPS, *others)) == ([BOXES, RAMPS], {"boxes": "boxes_mask"})
    wrong = Observation("ramps_mask", (3,), "int8")
    with pytest.raises(ConfigError, match=r"'ramps_mask' masks .* must be \[2\], and is \[3\]"):
        find_sets((RAMPS, wrong))
