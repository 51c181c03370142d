import math

import pytest
import torch
from torch import distributions as oracle

from srl.core.env import Box, Discrete, MultiDiscrete
from srl.core.errors import SpecError
from srl.ops.distributions import Categorical, DiagonalGaussian, MultiCategorical, draw_noise


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


def test_equal_generators_sample_alike():
    first, second = (draw_noise(Discrete(4), 50, generator(3)).tolist() for _ in range(2))
    assert first == second


def test_wrong_shapes_raise():
    with pytest.raises(SpecError, match="logits must have 2 axes"):
        Categorical(torch.zeros(3))
    with pytest.raises(SpecError, match="log_std has shape"):
        DiagonalGaussian(torch.zeros(3, 2), torch.zeros(3))
