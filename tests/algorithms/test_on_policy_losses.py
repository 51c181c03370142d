"""Losses of the on-policy algorithms, by hand.

The network shows every row the same: π = (¼, ¾) of two actions, V = 2. So log π is ln ¼ or ln ¾, and the
entropy is −¼·ln ¼ − ¾·ln ¾ = 0.562335.
"""

import math

import numpy as np
import pytest
import torch

from srl.algorithms.a2c import A2CConfig
from srl.algorithms.appo import APPOConfig
from srl.algorithms.impala import ImpalaConfig
from srl.algorithms.ppg import PPGConfig
from srl.algorithms.ppo import PPOConfig
from srl.core.collective import Alone
from srl.core.compute import Compute
from srl.core.env import AgentSpec, Discrete, Observation
from srl.nets.chunks import Chunks
from srl.nets.on_policy import Minibatch
from srl.testing.batches import record_batches

AGENT = AgentSpec((Observation("obs", (1,), "float32"),), Discrete(2))
QUARTER, THREE = math.log(0.25), math.log(0.75)
ENTROPY = 0.562335


def make(kind, **options):
    config = kind(rollout=4, batch_size=8, hidden=(), **options)
    learner = config.make_learner(AGENT, seed=0, compute=Compute(), ranks=Alone())
    show(learner.policy.network, probability=0.25, value=2.0)
    return learner


@torch.no_grad()
def show(network, *, probability, value):
    """Have every row show this: the probability of action 0, and the value."""
    logits, output = network.policy_head.logits, network.value_head.value
    for layer in (logits, output):
        layer.weight.zero_()
        layer.bias.zero_()
    logits.bias[0] = math.log(probability / (1 - probability))
    output.bias += value


def minibatch(**fields):
    """Three rows with actions 0, 1, 1 of which the last is masked."""
    fields = {"action": torch.tensor([0, 1, 1])} | {
        name: torch.tensor(numbers) for name, numbers in fields.items()
    }
    mask = torch.tensor([True, True, False])
    return Minibatch({"obs": torch.zeros(3, 1)}, torch.zeros(1, 3).bool(), {}, fields, mask)


def of(learner, rows, loss="loss", clip=0.2):
    loss, metrics = getattr(learner, loss)(rows, {"clip": torch.tensor(clip)}, torch.tensor(2.0))
    return loss.item(), {name: x.item() for name, x in metrics.items()}


RECORDED = {"log_prob": [math.log(0.5)] * 3, "value": [0.0] * 3}


def test_ppo_clips_ratios_and_values():
    learner = make(PPOConfig, value_weight=0.5, entropy_weight=0.01, value_clip=0.5)
    recorded = RECORDED | {"value": [1.0, 2.0, 0.0]}
    rows = minibatch(**recorded, advantage=[2.0, 2.0, 99.0], target=[3.0, 4.0, 99.0])
    loss, metrics = of(learner, rows)
    # ρ = π / π_old: ¼ / ½ and ¾ / ½; A > 0: min(½, 0.8)·2 and min(1½, 1.2)·2
    policy = -(0.5 * 2 + 1.2 * 2) / 2
    # V = 2 is 1 above what was recorded: clipped to 1½ it is further from 3; the second is where it was
    critic = 0.5 * (1.5**2 + 2**2) / 2
    assert metrics["policy_loss"] == pytest.approx(policy, rel=1e-5)
    assert metrics["value_loss"] == pytest.approx(critic, rel=1e-5)
    assert metrics["clip_fraction"] == 1.0
    assert loss == pytest.approx(policy + 0.5 * critic - 0.01 * ENTROPY, rel=1e-5)


def test_ppo_bounds_the_loss_of_bad_actions():
    learner = make(PPOConfig, value_weight=0.0, entropy_weight=0.0, dual_clip=1.25)
    rows = minibatch(**RECORDED, advantage=[-2.0, -2.0, 99.0], target=[2.0] * 3)
    # A < 0: min(½·A, 0.8·A) = −1.6; min(1½·A, 1.2·A) = −3, but at least 1.25·A
    assert of(learner, rows)[0] == pytest.approx((1.6 + 2.5) / 2, rel=1e-5)


def test_a2c():
    learner = make(A2CConfig, value_weight=0.5, entropy_weight=0.01)
    rows = minibatch(**RECORDED, advantage=[2.0, -1.0, 99.0], target=[3.0, 4.0, 99.0])
    loss, metrics = of(learner, rows)
    policy = -(QUARTER * 2 + THREE * -1) / 2  # 1.242453
    critic = 0.5 * (1 + 4) / 2
    assert metrics["policy_loss"] == pytest.approx(policy, rel=1e-5)
    assert metrics["value_loss"] == pytest.approx(critic)
    assert metrics["entropy"] == pytest.approx(ENTROPY, rel=1e-5)
    drift = (math.log(2) + math.log(1.5)) / 2
    assert metrics["log_prob_drift"] == pytest.approx(drift, rel=1e-5)
    assert loss == pytest.approx(policy + 0.5 * critic - 0.01 * ENTROPY, rel=1e-5)


def test_impala_weighs_the_policy_gradient_by_the_policy_of_the_step():
    learner = make(ImpalaConfig, value_weight=0.5, entropy_weight=0.0)
    rows = minibatch(**RECORDED, advantage=[2.0, -1.0, 99.0], target=[3.0, 4.0, 99.0])
    loss, metrics = of(learner, rows)
    # w = min(1, π / μ): ¼ / ½ and ¾ / ½; no gradient flows into it
    policy = -(0.5 * QUARTER * 2 + THREE * -1) / 2
    assert metrics["policy_loss"] == pytest.approx(policy, rel=1e-5)
    assert metrics["weight"] == 0.75
    assert loss == pytest.approx(policy + 0.5 * 1.25, rel=1e-5)
    # an earlier step of the same batch made it (½, ½): both weights are 1
    show(learner.policy.network, probability=0.5, value=2.0)
    loss, metrics = of(learner, rows)
    assert metrics["policy_loss"] == pytest.approx(-math.log(0.5) * (2 - 1) / 2, rel=1e-5)
    assert metrics["weight"] == 1.0


def test_no_gradient_flows_into_impalas_weights():
    learner = make(ImpalaConfig, value_weight=0.0, entropy_weight=0.0)
    rows = minibatch(**RECORDED, advantage=[2.0, 0.0, 99.0], target=[0.0] * 3)
    learner.loss(rows, {}, torch.tensor(2.0))[0].backward()
    # −½·w·A·∂ log π(0) / ∂ logit 0, with w = ½, A = 2 and 1 − π(0) = ¾
    gradient = learner.policy.network.policy_head.logits.bias.grad
    assert gradient[0].item() == pytest.approx(-0.5 * 0.5 * 2 * 0.75, rel=1e-5)


def test_appo_clips_by_the_proximal_policy_and_weighs_by_the_behaviour():
    learner = make(APPOConfig, value_weight=0.0, entropy_weight=0.0)
    # ρ = π / π_p: ¼ / ½ = ½, clipped to 0.8, and ¾ / ½ = 1½, clipped to 1.2
    proximal = {"proximal_log_prob": [math.log(0.5)] * 3, "weight": [0.5, 1.0, 99.0]}
    behaviour = {"log_prob": [math.log(0.9)] * 3, "value": [0.0] * 3}
    rows = minibatch(**behaviour, **proximal, advantage=[2.0, 2.0, 99.0], target=[0.0] * 3)
    loss, metrics = of(learner, rows)
    # A > 0: min(½, 0.8)·2, weighed by ½; min(1½, 1.2)·2
    assert loss == pytest.approx(-(0.5 * 0.5 * 2 + 1.2 * 2) / 2, rel=1e-5)
    assert metrics["clip_fraction"] == 1.0
    drift = (math.log(0.9 / 0.25) + math.log(0.9 / 0.75)) / 2
    assert metrics["log_prob_drift"] == pytest.approx(drift, rel=1e-5)
    kl = (0.5 - 1 - math.log(0.5) + 1.5 - 1 - math.log(1.5)) / 2
    assert metrics["approx_kl"] == pytest.approx(kl, rel=1e-5)


def batch_of_four(behaviour):
    """Four rows of two lanes without an end; actions 0, 1, 0, 1 that had this probability."""
    policy = A2CConfig(rollout=4, batch_size=8, hidden=()).make_policy(
        AGENT, seed=0, compute=Compute()
    )
    (batch,) = record_batches(policy, AGENT, rollout=4, lanes=2, end=0.0)
    batch["action"][:4] = np.array([0, 1, 0, 1])[:, None]
    batch["log_prob"][:] = math.log(behaviour)
    batch["reward"][:] = 1.0
    batch["value"][:] = 77.0  # what was recorded has no influence: values are computed anew
    return batch


@pytest.mark.parametrize("kind", [ImpalaConfig, APPOConfig])
def test_vtrace_is_estimated_by_the_weights_of_now(kind):
    learner = make(kind, discount=0.5, gae_lambda=1.0)
    batch = batch_of_four(behaviour=0.5)
    chunks = Chunks(batch, AGENT, learner.policy.records, learner.policy.device)
    estimate = learner._estimate(chunks, batch)
    # ratios ½ and 1½, clipped: w = c = (½, 1, ½, 1); δ = 1 + ½·2 − 2 = 0: all targets are V
    if kind is APPOConfig:  # IMPALA's are of every step anew
        np.testing.assert_allclose(estimate.more["weight"], [[0.5] * 2, [1] * 2] * 2, rtol=1e-5)
    np.testing.assert_allclose(estimate.target, np.full((4, 2), 2.0), rtol=1e-5)
    np.testing.assert_allclose(estimate.advantage, np.zeros((4, 2)), atol=1e-5)
    batch["reward"][3] = 3.0  # δ_3 = 2: E_3 = 2, E_2 = ½·½·2 = ½, E_1 = ½·½, E_0 = ½·½·¼
    estimate = learner._estimate(chunks, batch)
    errors = np.array([0.0625, 0.25, 0.5, 2.0])[:, None].repeat(2, 1)
    np.testing.assert_allclose(estimate.target - 2, errors, rtol=1e-4)
    advantages = np.array([0.125, 0.25, 1.0, 2.0])[:, None].repeat(2, 1)
    np.testing.assert_allclose(estimate.advantage, advantages, rtol=1e-4)


def test_appo_follows_with_an_average_of_weights():
    learner = make(APPOConfig, proximal_decay=0.75)
    show(learner._proximal.network, probability=0.5, value=0.0)  # logit 0, of π: −ln 3
    batch = batch_of_four(behaviour=0.5)
    chunks = Chunks(batch, AGENT, learner.policy.records, learner.policy.device)
    found = learner._estimate(chunks, batch).more["proximal_log_prob"]
    chance = 1 / (1 + 3**0.25)  # the logit is a quarter of π's
    np.testing.assert_allclose(found[:2, 0], np.log([chance, 1 - chance]), rtol=1e-5)


def test_ppg_auxiliary_phase():
    learner = make(PPGConfig, clone_weight=3.0)
    show(learner._before.network, probability=0.5, value=0.0)
    with torch.no_grad():
        learner._head.value.weight.zero_()
        learner._head.value.bias.fill_(1.0)
    loss, metrics = of(learner, minibatch(target=[3.0, 4.0, 99.0]), "auxiliary_loss")
    divergence = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)  # 0.143841
    auxiliary, critic = 0.5 * (4 + 9) / 2, 0.5 * (1 + 4) / 2
    assert metrics["clone_divergence"] == pytest.approx(divergence, rel=1e-5)
    assert metrics["auxiliary_loss"] == pytest.approx(auxiliary)
    assert metrics["auxiliary_value_loss"] == pytest.approx(critic)
    assert loss == pytest.approx(auxiliary + 3 * divergence + critic, rel=1e-5)


def test_ppg_policy_phase_is_the_clipped_loss():
    learner = make(PPGConfig, value_weight=0.5, entropy_weight=0.0)
    rows = minibatch(**RECORDED, advantage=[2.0, 2.0, 99.0], target=[3.0, 4.0, 99.0])
    loss, _ = of(learner, rows)
    assert loss == pytest.approx(-(0.5 * 2 + 1.2 * 2) / 2 + 0.5 * 1.25, rel=1e-5)


def test_ppg_values_teach_what_is_shared_in_the_auxiliary_phase_only():
    frames = AgentSpec((Observation("obs", (36, 36, 2), "uint8"),), Discrete(2))
    config = PPGConfig(rollout=4, batch_size=8, hidden=(8,), entropy_weight=0.0, clone_weight=0.0)
    learner = config.make_learner(frames, seed=0, compute=Compute(), ranks=Alone())
    (batch,) = record_batches(learner.policy, frames, rollout=4, lanes=2, end=0.0)
    chunks = Chunks(batch, frames, learner.policy.records, learner.policy.device)
    known, zeros = np.ones((4, 2), bool), np.zeros((4, 2), np.float32)
    estimate = learner._estimate(chunks, batch)._replace(advantage=zeros, known=known)
    rows = learner._rows(chunks, batch, estimate).select(chunks, torch.arange(8), None)

    def teaches(loss):
        learner._adam.zero_grad()
        loss(rows, {"clip": torch.tensor(0.2)}, torch.tensor(8.0))[0].backward()
        parts = [learner.policy.network.encoder, learner.policy.network.critic]
        return [any(bool(p.grad.abs().sum() > 0) for p in part.parameters()) for part in parts]

    assert teaches(learner.loss) == [False, True]
    assert teaches(learner.auxiliary_loss) == [True, True]


def test_ppg_keeps_no_more_batches_than_it_learns_from():
    learner = make(PPGConfig, auxiliary_every=3, minibatch_size=4)
    counts = []
    for _ in range(7):
        metrics = learner.learn(batch_of_four(behaviour=0.5), 0.0)
        counts.append((len(learner._recent), metrics["train_samples"]))
    own = 8.0
    phase = [(1, own), (2, own), (0, own + 6 * 3 * own)]
    assert counts == [*phase, *phase, (1, own)]
