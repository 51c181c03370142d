import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from srl.core.errors import SpecError
from srl.ops.q_values import (
    categorical_projection,
    importance_weights,
    quantile_loss,
    rescale,
    unscale,
)

SUPPORT = torch.tensor([-1.0, 0.0, 1.0])


def project(probabilities, returns, discounts, support=SUPPORT):
    return categorical_projection(
        torch.tensor(probabilities), torch.tensor(returns), torch.tensor(discounts), support=support
    )


def test_rescale_by_hand():
    # h(3) = sqrt(4) - 1 + 0.003, and h is odd
    got = rescale(torch.tensor([0.0, 3.0, -3.0, 99.0]))
    assert got.tolist() == pytest.approx([0.0, 1.003, -1.003, 9.099])


@given(st.floats(-1e5, 1e5))
def test_unscale_undoes_rescale(x):
    wide = torch.tensor([x], dtype=torch.float64)
    assert unscale(rescale(wide)).item() == pytest.approx(x, rel=1e-6, abs=1e-6)
    narrow = torch.tensor([x])
    assert unscale(rescale(narrow)).item() == pytest.approx(x, rel=1e-4, abs=1e-4)


def test_projection_by_hand():
    # one atom at 0.5 + 0.5·1 = 1 exactly, one at 0.5: between, one at 0 exactly
    got = project([[0.2, 0.3, 0.5]], [0.5], [0.5])
    assert got[0].tolist() == pytest.approx([0.0, 0.2 + 0.15, 0.15 + 0.5])
    # 0.25 above an atom: three quarters of it stay
    got = project([[0.0, 1.0, 0.0]], [0.25], [1.0])
    assert got[0].tolist() == pytest.approx([0.0, 0.75, 0.25])


@pytest.mark.parametrize(
    ("returns", "discount", "expected"),
    [
        (0.0, 1.0, [0.2, 0.3, 0.5]),  # nothing moves, the edges included
        (9.0, 1.0, [0.0, 0.0, 1.0]),  # all beyond the highest
        (-9.0, 1.0, [1.0, 0.0, 0.0]),
        (1.0, 0.0, [0.0, 0.0, 1.0]),  # terminated, on an edge
        (-1.0, 0.0, [1.0, 0.0, 0.0]),
        (1.0, 1.0, [0.0, 0.2, 0.8]),
    ],
)
def test_projection_at_the_edges(returns, discount, expected):
    got = project([[0.2, 0.3, 0.5]], [returns], [discount])
    assert got[0].tolist() == pytest.approx(expected)


def twin_projection(probabilities, reward, discount, support):
    """Atom by atom: each is shared out between its two neighbours by how near they are."""
    projected = [0.0] * len(support)
    spacing = support[1] - support[0]
    for probability, atom in zip(probabilities, support, strict=True):
        moved = min(max(reward + discount * atom, support[0]), support[-1])
        for other, near in enumerate(support):
            share = 1 - abs(moved - near) / spacing
            projected[other] += probability * max(0.0, share)
    return projected


@settings(deadline=None)
@given(
    st.lists(st.floats(0.01, 1), min_size=2, max_size=8),
    st.floats(-20, 20),
    st.floats(0, 1),
    st.floats(-5, 5),
    st.floats(0.1, 10),
)
def test_projection_equals_naive_loop_and_stays_a_distribution(weights, reward, gamma, low, width):
    probabilities = torch.tensor([weights]) / sum(weights)
    support = torch.linspace(low, low + width, len(weights))
    got = categorical_projection(
        probabilities, torch.tensor([reward]), torch.tensor([gamma]), support=support
    )
    naive = twin_projection(probabilities[0].tolist(), reward, gamma, support.tolist())
    assert got[0].tolist() == pytest.approx(naive, abs=1e-3)
    assert (got >= 0).all()
    assert got.sum().item() == pytest.approx(1, abs=1e-5)


def test_projection_keeps_the_mean_where_nothing_is_cut_off():
    support = torch.linspace(-10, 10, 51)
    probabilities = torch.rand(5, 51, generator=torch.Generator().manual_seed(0)).softmax(-1)
    returns, discounts = torch.linspace(-3, 3, 5), torch.full((5,), 0.7)
    got = categorical_projection(probabilities, returns, discounts, support=support)
    expected = returns + discounts * (probabilities @ support)
    torch.testing.assert_close(got @ support, expected, atol=1e-4, rtol=0)


def test_quantile_loss_by_hand():
    # levels 1/4 and 3/4, one sample at 2: errors 2 and -0.5, Huber 1.5 and 0.125
    loss = quantile_loss(torch.tensor([[0.0, 2.5]]), torch.tensor([[2.0]]))
    assert loss.tolist() == pytest.approx([0.25 * 1.5 + 0.25 * 0.125])


@settings(deadline=None)
@given(
    st.lists(st.floats(-3, 3), min_size=1, max_size=4),
    st.lists(st.floats(-3, 3), min_size=1, max_size=4),
)
def test_quantile_loss_equals_naive_loop(quantiles, targets):
    naive = 0.0
    for i, quantile in enumerate(quantiles):
        level = (i + 0.5) / len(quantiles)
        for target in targets:
            error = target - quantile
            huber = 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5
            naive += abs(level - (error < 0)) * huber / len(targets)
    got = quantile_loss(torch.tensor([quantiles]), torch.tensor([targets]))
    assert got.item() == pytest.approx(naive, abs=1e-4)


def test_quantiles_that_are_learned_are_those_of_the_samples():
    targets = torch.arange(100.0)[None]
    quantiles = torch.zeros(1, 4, requires_grad=True)
    for _ in range(400):
        (gradient,) = torch.autograd.grad(quantile_loss(quantiles, targets).sum(), quantiles)
        quantiles.data -= 20 * gradient
    assert quantiles[0].tolist() == pytest.approx([12, 37, 62, 87], abs=1.5)


def test_importance_weights_by_hand():
    chances = torch.tensor([0.5, 1.0, 2.0])
    got = importance_weights(chances, 1.0, rarest=0.5)
    assert got.tolist() == pytest.approx([1.0, 0.5, 0.25])
    got = importance_weights(chances, 0.5, rarest=0.5)
    assert got.tolist() == pytest.approx([1.0, 1 / math.sqrt(2), 0.5])
    assert importance_weights(chances, 0.0, rarest=0.5).tolist() == [1.0, 1.0, 1.0]


def test_shapes_are_checked():
    with pytest.raises(SpecError):
        project([0.2, 0.3, 0.5], [0.0], [1.0])
    with pytest.raises(SpecError):
        project([[0.2, 0.3, 0.5]], [0.0], [1.0, 1.0])
    with pytest.raises(SpecError):
        quantile_loss(torch.zeros(3), torch.zeros(3))
