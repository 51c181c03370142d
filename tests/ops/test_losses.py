import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from srl.core.errors import SpecError
from srl.ops.losses import (
    approximate_kl,
    clipped_policy_loss,
    masked_mean,
    policy_gradient_loss,
    value_loss,
)

RATIOS = torch.tensor([1.5, 1.5, 0.5, 0.5, 5.0])
ADVANTAGES = torch.tensor([1.0, -1.0, 1.0, -1.0, -2.0])


def test_policy_gradient_by_hand():
    log_prob = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    advantage = torch.tensor([2.0, -1.0, 5.0])
    mask = torch.tensor([True, True, False])
    loss = policy_gradient_loss(log_prob, advantage, mask=mask, count=4)
    assert loss.item() == pytest.approx(-(-2.0 + 2.0) / 4)
    loss.backward()
    assert log_prob.grad is not None
    assert log_prob.grad.tolist() == [-0.5, 0.25, 0.0]


def test_policy_loss_by_hand():
    # objectives: min(1.5, 1.2), min(-1.5, -1.2), min(0.5, 0.8), min(-0.5, -0.8), -10
    loss = clipped_policy_loss(RATIOS.log(), torch.zeros(5), ADVANTAGES, clip=0.2, count=5)
    assert float(loss) == pytest.approx(-(1.2 - 1.5 + 0.5 - 0.8 - 10) / 5)


def test_policy_loss_with_dual_clip_by_hand():
    # only the last row is below 3·A = -6
    loss = clipped_policy_loss(
        RATIOS.log(), torch.zeros(5), ADVANTAGES, clip=0.2, dual_clip=3.0, count=5
    )
    assert float(loss) == pytest.approx(-(1.2 - 1.5 + 0.5 - 0.8 - 6) / 5)


def test_policy_loss_divides_masked_sum_by_count():
    mask = torch.tensor([True, False, False, False, False])
    advantages = ADVANTAGES.clone()
    advantages[1] = math.nan
    loss = clipped_policy_loss(
        RATIOS.log(), torch.zeros(5), advantages, clip=0.2, mask=mask, count=10
    )
    assert float(loss) == pytest.approx(-1.2 / 10)


def test_policy_gradient_is_zero_when_clipped():
    log_prob = RATIOS.log().requires_grad_()
    clipped_policy_loss(log_prob, torch.zeros(5), ADVANTAGES, clip=0.2, count=1).backward()
    assert log_prob.grad.tolist() == pytest.approx([0.0, 1.5, -0.5, 0.0, 10.0])


@settings(deadline=None)
@given(st.lists(st.tuples(*[st.floats(-2, 2)] * 3), min_size=1), st.floats(0.01, 1))
def test_policy_loss_equals_naive_loop(rows, clip):
    log_prob, old, advantage = torch.tensor(rows).T
    naive = 0.0
    for new_t, old_t, a_t in rows:
        ratio = math.exp(new_t - old_t)
        naive -= min(ratio * a_t, min(max(ratio, 1 - clip), 1 + clip) * a_t) / len(rows)
    loss = clipped_policy_loss(log_prob, old, advantage, clip=clip, count=len(rows))
    assert float(loss) == pytest.approx(naive, abs=1e-3, rel=1e-4)


def test_value_loss_by_hand():
    value, old, target = (
        torch.tensor([3.0, 0.0]),
        torch.tensor([0.0, 0.0]),
        torch.tensor([3.0, 1.0]),
    )
    assert float(value_loss(value, old, target, count=2)) == pytest.approx(0.5 * (0 + 1) / 2)
    # the first value is clipped to 1: its error is (1 − 3)²
    assert float(value_loss(value, old, target, clip=1.0, count=2)) == pytest.approx(0.5 * 5 / 2)


def test_approximate_kl_by_hand_and_zero_when_equal():
    old = torch.zeros(1)
    assert float(approximate_kl(torch.tensor([math.log(2)]), old, count=1)) == pytest.approx(
        1 - math.log(2)
    )
    assert float(approximate_kl(old, old, count=1)) == 0.0


def test_losses_when_shapes_differ_raise():
    with pytest.raises(SpecError, match="advantage has shape"):
        clipped_policy_loss(torch.zeros(2), torch.zeros(2), torch.zeros(3), clip=0.1, count=1)
    with pytest.raises(SpecError, match="mask has shape"):
        masked_mean(torch.zeros(2), torch.ones(3, dtype=torch.bool), 1)
