"""Proximal policy optimisation (Schulman et al. 2017, https://arxiv.org/abs/1707.06347).

Loss of a minibatch, over its valid rows, with ratio ρ = π(a|s) / π_old(a|s):

    − mean min(ρ·A, clip(ρ, 1−ε, 1+ε)·A)  +  value_weight · ½ mean (V(s) − R)²
    − entropy_weight · mean entropy

where A are generalised advantages and R = A + V_old(s). Recorded in every row: `action`,
`log_prob` and `value`; with a memory also its state, where each training chunk starts.

How a batch is learned, with or without a memory, by one or several trainers: `srl/nets/on_policy.py`.
"""

from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from srl.core.collective import Collective
from srl.core.compute import Compute
from srl.core.env import AgentSpec
from srl.core.options import check_one_of, check_options
from srl.nets.on_policy import Minibatch, OnPolicyConfig, OnPolicyLearner, Settings
from srl.ops.losses import approximate_kl, clipped_policy_loss, masked_mean, value_loss
from srl.ops.schedules import Schedule, scheduled


@dataclass(frozen=True, kw_only=True)
class PPOConfig(OnPolicyConfig):
    """Options of PPO."""

    epochs: int = 4
    """Passes over each batch."""
    clip: float = 0.2
    """How far the policy ratio may leave 1 (ε)."""
    clip_schedule: Schedule = "constant"
    """Whether the clip stays, or falls to 0 over the run."""
    value_clip: float | None = None
    """How far a value may leave the recorded one; None: no clip."""
    dual_clip: float | None = None
    """Bound, in units of the advantage, on the loss of bad actions; None: no bound."""
    target_kl: float | None = None
    """End the epochs of a batch once the policy has moved this far; None: never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, ">= 1", lambda x: x >= 1, "epochs")
        check_options(self, "> 0", lambda x: x > 0, "clip", "value_clip", "target_kl")
        check_options(self, "> 1", lambda x: x > 1, "dual_clip")
        check_one_of(self, get_args(Schedule), "clip_schedule")

    def make_learner(
        self, agent: AgentSpec, *, seed: int, compute: Compute, ranks: Collective
    ) -> "PPO":
        """A learner with fresh weights, one of several that learn together."""
        return PPO(self, agent, seed=seed, compute=compute, ranks=ranks)


class PPO(OnPolicyLearner[PPOConfig]):
    """Learns an actor-critic by the clipped loss."""

    measured = (
        "policy_loss",
        "value_loss",
        "entropy",
        "approx_kl",
        "clip_fraction",
        "log_prob_drift",
    )

    def __init__(
        self, config: PPOConfig, agent: AgentSpec, *, seed: int, compute: Compute, ranks: Collective
    ) -> None:
        super().__init__(
            config,
            agent,
            seed=seed,
            compute=compute,
            ranks=ranks,
            epochs=config.epochs,
            target_kl=config.target_kl,
        )

    def settings(self, progress: float) -> dict[str, float]:
        """Learning rate and clip."""
        clip = scheduled(self.config.clip, self.config.clip_schedule, progress)
        return super().settings(progress) | {"clip": clip}

    def loss(
        self, rows: Minibatch, settings: Settings, count: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """This rank's part of the loss of a minibatch of `count` rows, and what to report, all `[]`."""
        config, learned, mask = self.config, rows.fields, rows.mask
        clip, old_log_prob = settings["clip"], learned["log_prob"]
        distribution, value = self._shown(rows)
        log_prob = distribution.log_prob(learned["action"])
        entropy = masked_mean(distribution.entropy(), mask, count)
        policy_loss = clipped_policy_loss(
            log_prob,
            old_log_prob,
            learned["advantage"],
            clip=clip,
            dual_clip=config.dual_clip,
            mask=mask,
            count=count,
        )
        critic_loss = value_loss(
            value,
            learned["value"],
            learned["target"],
            clip=config.value_clip,
            mask=mask,
            count=count,
        )
        with torch.no_grad():
            log_ratio = log_prob - old_log_prob
            is_clipped = (log_ratio.expm1().abs() > clip).float()
            metrics = {
                "policy_loss": policy_loss.detach(),
                "value_loss": critic_loss.detach(),
                "entropy": entropy.detach(),
                "approx_kl": approximate_kl(log_prob, old_log_prob, mask=mask, count=count),
                "clip_fraction": masked_mean(is_clipped, mask, count),
                "log_prob_drift": masked_mean(log_ratio.abs(), mask, count),
            }
        loss = policy_loss + config.value_weight * critic_loss - config.entropy_weight * entropy
        return loss, metrics
