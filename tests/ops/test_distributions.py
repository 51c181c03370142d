import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributions as oracle

from srl.core.env import Box, Discrete, MultiDiscrete
from srl.core.errors import SpecError
from srl.ops.distributions import (
    Categorical,
    DiagonalGaussian,
    MultiCategorical,
    SquashedGaussian,
    draw_noise,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_categorical_by_hand():
    distribution = Categorical(torch.tensor([[0.0, math.log(3)]]))
    assert float(distribution.log_prob(torch.tensor([1])).exp()) == pytest.approx(0.75)
    assert float(distribution.entropy()) == pytest.approx(
        -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
    )
    assert distribution.mode().tolist() == [1]


def test_categorical_samples_by_its_probabilities():
    logits = torch.tensor([0.1, 0.3, 0.6]).log().expand(20000, 3)
    noise = draw_noise(Discrete(3), 20000, generator())
    share = Categorical(logits).sample(noise).bincount(minlength=3) / 20000
    assert share.tolist() == pytest.approx([0.1, 0.3, 0.6], abs=0.02)


def test_multi_categorical_is_the_product_of_its_choices():
    logits = torch.randn(5, 5, generator=generator())
    a, b = Categorical(logits[:, :2]), Categorical(logits[:, 2:])
    both = MultiCategorical(logits, (2, 3))
    action = both.sample(draw_noise(MultiDiscrete((2, 3)), 5, generator()))
    assert action.shape == (5, 2)
    torch.testing.assert_close(
        both.log_prob(action), a.log_prob(action[:, 0]) + b.log_prob(action[:, 1])
    )
    torch.testing.assert_close(both.entropy(), a.entropy() + b.entropy())
    assert both.mode().tolist() == torch.stack([a.mode(), b.mode()], 1).tolist()


@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_gaussian_equals_torch(shape):
    mean, log_std = torch.randn(4, *shape, generator=generator()), torch.full(shape, -0.5)
    distribution = DiagonalGaussian(mean, log_std)
    twin = oracle.Normal(mean, log_std.exp())
    bounds = (-1.0,) * math.prod(shape), (1.0,) * math.prod(shape)
    action = distribution.sample(draw_noise(Box(shape, *bounds), 4, generator()))
    assert action.shape == mean.shape
    torch.testing.assert_close(
        distribution.log_prob(action), twin.log_prob(action).reshape(4, -1).sum(-1)
    )
    torch.testing.assert_close(distribution.entropy(), twin.entropy().reshape(4, -1).sum(-1))
    assert distribution.mode() is mean


def test_divergences_equal_those_of_torch():
    logits, others = torch.randn(2, 4, 5, generator=generator())
    found = Categorical(logits).divergence(Categorical(others))
    twins = oracle.Categorical(logits=logits), oracle.Categorical(logits=others)
    torch.testing.assert_close(found, oracle.kl_divergence(*twins))
    both = MultiCategorical(logits, (2, 3)).divergence(MultiCategorical(others, (2, 3)))
    parts = [
        Categorical(logits[:, x]).divergence(Categorical(others[:, x]))
        for x in (slice(2), slice(2, 5))
    ]
    torch.testing.assert_close(both, parts[0] + parts[1])
    (mean, other), std = torch.randn(2, 4, 3, generator=generator()), torch.tensor([0.5, 1.0, 2.0])
    found = DiagonalGaussian(mean, std.log()).divergence(DiagonalGaussian(other, -std.log()))
    twins = oracle.Normal(mean, std), oracle.Normal(other, 1 / std)
    torch.testing.assert_close(found, oracle.kl_divergence(*twins).sum(-1))


def test_divergence_is_finite_where_choices_are_forbidden():
    allowed = torch.tensor([[True, False, True]])
    logits = torch.zeros(1, 3, requires_grad=True)
    old = Categorical(torch.tensor([[1.0, 2.0, 3.0]]), allowed)
    divergence = old.divergence(Categorical(logits, allowed))
    divergence.sum().backward()
    chance = 1 / (1 + math.exp(2))
    expected = chance * math.log(2 * chance) + (1 - chance) * math.log(2 * (1 - chance))
    assert divergence.item() == pytest.approx(expected, rel=1e-5)
    assert torch.isfinite(logits.grad).all()


def test_gaussian_samples_by_its_moments():
    noise = draw_noise(Box((1,), (-1.0,), (1.0,)), 20000, generator())
    sample = DiagonalGaussian(torch.full((20000, 1), 2.0), torch.tensor([0.5]).log()).sample(noise)
    assert float(sample.mean()) == pytest.approx(2.0, abs=0.02)
    assert float(sample.std()) == pytest.approx(0.5, abs=0.02)


def test_squashed_gaussian_by_hand():
    """Of N(0, 1) at u = 1: tanh 1 = 0.761594, and 1 - tanh² 1 = 0.419974."""
    distribution = SquashedGaussian(torch.zeros(1, 1), torch.zeros(1, 1))
    action, log_prob = distribution.draw(torch.ones(1, 1))
    assert float(action) == pytest.approx(0.761594, abs=1e-6)
    expected = -0.5 - 0.918939 - math.log(0.419974)
    assert float(log_prob) == pytest.approx(expected, abs=1e-5)
    assert float(distribution.log_prob(action)) == pytest.approx(expected, abs=1e-5)
    bounds = torch.tensor([-1.0]), torch.tensor([3.0])  # twice as wide, so half as dense
    wider = SquashedGaussian(torch.zeros(1, 1), torch.zeros(1, 1), bounds)
    action, log_prob = wider.draw(torch.ones(1, 1))
    assert float(action) == pytest.approx(1 + 2 * 0.761594, abs=1e-5)
    assert float(log_prob) == pytest.approx(expected - math.log(2), abs=1e-5)
    assert float(wider.mode()) == 1.0


@settings(max_examples=30, deadline=None)
@given(st.floats(-2, 2), st.floats(-1.5, 0.5), st.floats(-3, 3), st.floats(0.1, 5))
def test_squashed_gaussian_has_all_of_its_density_between_its_bounds(mean, log_std, low, width):
    """By the midpoint rule; and where actions lie follows from where the normal numbers lie."""
    rows, high = 50_000, low + width
    middles = (torch.arange(rows, dtype=torch.float64) + 0.5) / rows
    actions = (low + width * middles).float()[:, None]
    bounds = torch.tensor([low]), torch.tensor([high])
    shape = rows, 1
    distribution = SquashedGaussian(torch.full(shape, mean), torch.full(shape, log_std), bounds)
    density = distribution.log_prob(actions).double().exp()
    assert float(density.sum() * width / rows) == pytest.approx(1, abs=5e-3)
    below = float(density[: rows // 2].sum() * width / rows)  # P(tanh u < 0) = P(u < 0)
    normal = oracle.Normal(torch.tensor(mean), torch.tensor(log_std).exp())
    assert below == pytest.approx(float(normal.cdf(torch.tensor(0.0))), abs=5e-3)


@settings(max_examples=50, deadline=None)
@given(st.floats(-60, 60), st.floats(-8, 2), st.floats(-4, 4))
def test_squashed_gaussian_is_exact_and_has_gradients_however_far_out(mean, log_std, noise):
    """Against float64 and finite differences; the naive log(1 - tanh²) is -inf from u = 10 on."""

    def log_prob_64(mean, log_std):
        u = mean + math.exp(log_std) * noise
        slope = math.log(4) - 2 * abs(u) - 2 * math.log1p(math.exp(-2 * abs(u)))
        return -0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi) - slope

    leaves = [torch.full((1, 1), x, requires_grad=True) for x in (mean, log_std)]
    _, log_prob = SquashedGaussian(*leaves).draw(torch.full((1, 1), noise))
    assert log_prob.item() == pytest.approx(log_prob_64(mean, log_std), rel=1e-5, abs=1e-4)
    log_prob.sum().backward()
    step = 1e-5
    for leaf, (a, b) in zip(leaves, [(step, 0), (0, step)], strict=True):
        change = log_prob_64(mean + a, log_std + b) - log_prob_64(mean - a, log_std - b)
        assert float(leaf.grad) == pytest.approx(change / (2 * step), rel=1e-3, abs=1e-3)


def test_equal_generators_sample_alike():
    first, second = (draw_noise(Discrete(4), 50, generator(3)).tolist() for _ in range(2))
    assert first == second


def test_wrong_shapes_raise():
    with pytest.raises(SpecError, match="logits must have 2 axes"):
        Categorical(torch.zeros(3))
    with pytest.raises(SpecError, match="log_std has shape"):
        DiagonalGaussian(torch.zeros(3, 2), torch.zeros(3))
    with pytest.raises(SpecError, match="log_std has shape"):
        SquashedGaussian(torch.zeros(3, 2), torch.zeros(2, 2))
