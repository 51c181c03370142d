"""Asynchronous PPO: the clipped loss, safe at any staleness.

PPO (Schulman et al. 2017) uses the policy that acted twice: to correct for it, and to stay close to it.
Where it is old, the second holds learning back and the first goes wrong. Here they are two (the decoupled
objective of Hilton et al. 2021, https://arxiv.org/abs/2110.00641): the behaviour policy μ, recorded, and
the proximal policy π_p. With ρ = π(a|s) / π_p(a|s) and w = min(ρ̄, π_p(a|s) / μ(a|s)) the loss of a
minibatch, over its valid rows, is

    − mean w·min(ρ·A, clip(ρ, 1−ε, 1+ε)·A)  +  value_weight · ½ mean (V(s) − v)²
    − entropy_weight · mean entropy

where v are V-trace targets for π_p (Espeholt et al. 2018) and A the advantages that belong to them, by the
values of the weights before the batch. π_p has these weights, or an average of them and those before
earlier batches (`proximal_decay`). How a batch is learned: `srl/nets/on_policy.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from srl.core.collective import Collective
from srl.core.compute import Compute
from srl.core.env import AgentSpec
from srl.core.options import check_one_of, check_options
from srl.nets.actor_critic_policy import ActorCriticPolicy
from srl.nets.chunks import Chunks
from srl.nets.on_policy import Estimate, Minibatch, OnPolicyConfig, OnPolicyLearner, Settings
from srl.ops.losses import approximate_kl, clipped_policy_loss, masked_mean, value_loss
from srl.ops.schedules import Schedule, scheduled


@dataclass(frozen=True, kw_only=True)
class APPOConfig(OnPolicyConfig):
    """Options of APPO."""

    epochs: int = 4
    """Passes over each batch."""
    clip: float = 0.2
    """How far the ratio of the policy to the proximal one may leave 1 (ε)."""
    clip_schedule: Schedule = "constant"
    """Whether the clip stays, or falls to 0 over the run."""
    dual_clip: float | None = None
    """Bound, in units of the advantage, on the loss of bad actions; None: no bound."""
    target_kl: float | None = None
    """End the epochs of a batch once the policy is this far from the proximal one; None: never."""
    proximal_decay: float = 0.0
    """Of the weights of the proximal policy, each batch; 0: they are those before the batch."""
    weight_clip: float = 1.0
    """Largest weight of a row, in its value's target and in the policy's loss (ρ̄)."""
    trace_clip: float = 1.0
    """Largest weight with which what came later counts for a row (c̄)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, ">= 1", lambda x: x >= 1, "epochs")
        check_options(
            self, "> 0", lambda x: x > 0, "clip", "target_kl", "weight_clip", "trace_clip"
        )
        check_options(self, "> 1", lambda x: x > 1, "dual_clip")
        check_options(self, ">= 0 and < 1", lambda x: 0 <= x < 1, "proximal_decay")
        check_one_of(self, get_args(Schedule), "clip_schedule")

    def make_learner(
        self, agent: AgentSpec, *, seed: int, compute: Compute, ranks: Collective
    ) -> "APPO":
        """A learner with fresh weights, one of several that learn together."""
        return APPO(self, agent, seed=seed, compute=compute, ranks=ranks)


class APPO(OnPolicyLearner[APPOConfig]):
    """Learns an actor-critic from what older ones did, in small steps."""

    measured = (
        "policy_loss",
        "value_loss",
        "entropy",
        "approx_kl",
        "clip_fraction",
        "weight",
        "log_prob_drift",
    )

    def __init__(
        self,
        config: APPOConfig,
        agent: AgentSpec,
        *,
        seed: int,
        compute: Compute,
        ranks: Collective,
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
        self._proximal = self.policy
        if config.proximal_decay:
            self._proximal = ActorCriticPolicy(config, agent, seed=seed, compute=compute)
            self.keep(proximal=self._proximal.tensors)

    def begin_with(self, weights: Mapping[str, np.ndarray]) -> None:
        """Take over the weights of another run, also as the proximal policy's."""
        super().begin_with(weights)
        if self._proximal is not self.policy:
            self._proximal.load_weights(weights)

    def settings(self, progress: float) -> dict[str, float]:
        """Learning rate and clip."""
        clip = scheduled(self.config.clip, self.config.clip_schedule, progress)
        return super().settings(progress) | {"clip": clip}

    def _estimate(self, chunks: Chunks, batch: Mapping[str, np.ndarray]) -> Estimate:
        """V-trace's for the proximal policy, by the values of now."""
        log_prob, value = self._recompute(self.policy.network, chunks, batch)
        if self._proximal is not self.policy:
            self._follow()
            log_prob, _ = self._recompute(self._proximal.network, chunks, batch)
        clips = {"weight_clip": self.config.weight_clip, "trace_clip": self.config.trace_clip}
        estimate = self._vtrace(chunks, batch, log_prob, value, **clips)
        return estimate._replace(more={**estimate.more, "proximal_log_prob": log_prob})

    @torch.no_grad()
    def _follow(self) -> None:
        """Count the weights of now into the proximal ones; statistics are taken as they are."""
        ours, theirs = self.policy.network, self._proximal.network
        for mine, its in zip(theirs.parameters(), ours.parameters(), strict=True):
            mine.lerp_(its, 1 - self.config.proximal_decay)
        for mine, its in zip(theirs.buffers(), ours.buffers(), strict=True):
            mine.copy_(its)

    def loss(
        self, rows: Minibatch, settings: Settings, count: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """This rank's part of the loss of a minibatch of `count` rows, and what to report, all `[]`."""
        config, learned, mask = self.config, rows.fields, rows.mask
        clip, proximal, weight = settings["clip"], learned["proximal_log_prob"], learned["weight"]
        distribution, value = self._shown(rows)
        log_prob = distribution.log_prob(learned["action"])
        entropy = masked_mean(distribution.entropy(), mask, count)
        policy_loss = clipped_policy_loss(
            log_prob,
            proximal,
            weight
            * learned["advantage"],  # weights are not negative: min and clip let them through
            clip=clip,
            dual_clip=config.dual_clip,
            mask=mask,
            count=count,
        )
        critic_loss = value_loss(value, learned["value"], learned["target"], mask=mask, count=count)
        with torch.no_grad():
            is_clipped = ((log_prob - proximal).expm1().abs() > clip).float()
            drift = (log_prob - learned["log_prob"]).abs()
            metrics = {
                "policy_loss": policy_loss.detach(),
                "value_loss": critic_loss.detach(),
                "entropy": entropy.detach(),
                "approx_kl": approximate_kl(log_prob, proximal, mask=mask, count=count),
                "clip_fraction": masked_mean(is_clipped, mask, count),
                "weight": masked_mean(weight, mask, count),
                "log_prob_drift": masked_mean(drift, mask, count),
            }
        loss = policy_loss + config.value_weight * critic_loss - config.entropy_weight * entropy
        return loss, metrics
