"""Advantage actor-critic, synchronous (Mnih et al. 2016, https://arxiv.org/abs/1602.01783).

Loss of a minibatch, over its valid rows:

    − mean log π(a|s)·A  +  value_weight · ½ mean (V(s) − R)²  −  entropy_weight · mean entropy

where A are generalised advantages and R = A + V_old(s). There is no ratio of probabilities: the policy
that learns must be the one that acted, so that `--max-staleness` should be 0, each batch is passed over
once, and its minibatches (by default there is one) should be few. How a batch is learned:
`srl/nets/on_policy.py`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from srl.core.collective import Collective
from srl.core.compute import Compute
from srl.core.env import AgentSpec
from srl.nets.on_policy import Minibatch, OnPolicyConfig, OnPolicyLearner, Settings
from srl.ops.losses import masked_mean, policy_gradient_loss, value_loss


@dataclass(frozen=True, kw_only=True)
class A2CConfig(OnPolicyConfig):
    """Options of A2C."""

    rollout: int = 16
    """Steps of each lane in a block."""
    batch_size: int = 512
    """Steps, over all lanes, learned from at a time; a multiple of rollout."""
    learning_rate: float = 7e-4
    """Step size of Adam."""
    normalise_advantages: bool = False
    """Scale the advantages of each batch to mean 0 and variance 1."""

    def make_learner(
        self, agent: AgentSpec, *, seed: int, compute: Compute, ranks: Collective
    ) -> "A2C":
        """A learner with fresh weights, one of several that learn together."""
        return A2C(self, agent, seed=seed, compute=compute, ranks=ranks)


class A2C(OnPolicyLearner[A2CConfig]):
    """Learns an actor-critic by the policy gradient."""

    measured = ("policy_loss", "value_loss", "entropy", "log_prob_drift")

    def loss(
        self, rows: Minibatch, settings: Settings, count: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """This rank's part of the loss of a minibatch of `count` rows, and what to report, all `[]`."""
        config, learned, mask = self.config, rows.fields, rows.mask
        distribution, value = self._shown(rows)
        log_prob = distribution.log_prob(learned["action"])
        entropy = masked_mean(distribution.entropy(), mask, count)
        policy_loss = policy_gradient_loss(log_prob, learned["advantage"], mask=mask, count=count)
        critic_loss = value_loss(value, learned["value"], learned["target"], mask=mask, count=count)
        with torch.no_grad():
            drift = masked_mean((log_prob - learned["log_prob"]).abs(), mask, count)
        loss = policy_loss + config.value_weight * critic_loss - config.entropy_weight * entropy
        return loss, {
            "policy_loss": policy_loss.detach(),
            "value_loss": critic_loss.detach(),
            "entropy": entropy.detach(),
            "log_prob_drift": drift,
        }
