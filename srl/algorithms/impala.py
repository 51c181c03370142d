"""Importance-weighted actor-learner (Espeholt et al. 2018, https://arxiv.org/abs/1802.01561).

Loss of a minibatch, over its valid rows:

    − mean w·log π(a|s)·A  +  value_weight · ½ mean (V(s) − v)²  −  entropy_weight · mean entropy

where v are V-trace targets and A the advantages that belong to them, by the weights before the batch, and
w = min(ρ̄, π(a|s) / μ(a|s)) by the weights of each step: μ is the policy that acted, an older one where
`--max-staleness` allows it. Each batch is passed over once. How a batch is learned:
`srl/nets/on_policy.py`; V-trace: `srl/ops/vtrace.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from srl.core.collective import Collective
from srl.core.compute import Compute
from srl.core.env import AgentSpec
from srl.core.options import check_options
from srl.nets.chunks import Chunks
from srl.nets.on_policy import Estimate, Minibatch, OnPolicyConfig, OnPolicyLearner, Settings
from srl.ops.losses import masked_mean, policy_gradient_loss, value_loss


@dataclass(frozen=True, kw_only=True)
class ImpalaConfig(OnPolicyConfig):
    """Options of IMPALA."""

    rollout: int = 32
    """Steps of each lane in a block."""
    batch_size: int = 1024
    """Steps, over all lanes, learned from at a time; a multiple of rollout."""
    learning_rate: float = 6e-4
    """Step size of Adam."""
    gae_lambda: float = 1.0
    """V-trace: 0 trusts the value function, 1 the observed return (λ; the paper's is 1)."""
    normalise_advantages: bool = False
    """Scale the advantages of each batch to mean 0 and variance 1."""
    weight_clip: float = 1.0
    """Largest weight of a row, in its value's target and in the policy gradient (ρ̄)."""
    trace_clip: float = 1.0
    """Largest weight with which what came later counts for a row (c̄)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, "> 0", lambda x: x > 0, "weight_clip", "trace_clip")

    def make_learner(
        self, agent: AgentSpec, *, seed: int, compute: Compute, ranks: Collective
    ) -> "Impala":
        """A learner with fresh weights, one of several that learn together."""
        return Impala(self, agent, seed=seed, compute=compute, ranks=ranks)


class Impala(OnPolicyLearner[ImpalaConfig]):
    """Learns an actor-critic from what older ones did."""

    measured = ("policy_loss", "value_loss", "entropy", "weight", "log_prob_drift")

    def _estimate(self, chunks: Chunks, batch: Mapping[str, np.ndarray]) -> Estimate:
        """V-trace's, by the weights of now."""
        log_prob, value = self._recompute(self.policy.network, chunks, batch)
        clips = {"weight_clip": self.config.weight_clip, "trace_clip": self.config.trace_clip}
        estimate = self._vtrace(chunks, batch, log_prob, value, **clips)
        return estimate._replace(more={})  # the loss has weights of its own

    def loss(
        self, rows: Minibatch, settings: Settings, count: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """This rank's part of the loss of a minibatch of `count` rows, and what to report, all `[]`."""
        config, learned, mask = self.config, rows.fields, rows.mask
        distribution, value = self._shown(rows)
        log_prob = distribution.log_prob(learned["action"])
        # anew at every step: the steps before it, of this batch too, made the policy another one
        weight = (log_prob.detach() - learned["log_prob"]).exp().clamp(max=config.weight_clip)
        entropy = masked_mean(distribution.entropy(), mask, count)
        policy_loss = policy_gradient_loss(
            log_prob, weight * learned["advantage"], mask=mask, count=count
        )
        critic_loss = value_loss(value, learned["value"], learned["target"], mask=mask, count=count)
        with torch.no_grad():
            drift = masked_mean((log_prob - learned["log_prob"]).abs(), mask, count)
        loss = policy_loss + config.value_weight * critic_loss - config.entropy_weight * entropy
        return loss, {
            "policy_loss": policy_loss.detach(),
            "value_loss": critic_loss.detach(),
            "entropy": entropy.detach(),
            "weight": masked_mean(weight, mask, count),
            "log_prob_drift": drift,
        }
