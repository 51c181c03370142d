"""Phasic policy gradient (Cobbe et al. 2020, https://arxiv.org/abs/2009.04416).

Two phases take turns. The policy phase learns each batch as PPO does, by the clipped loss with
ratio ρ = π(a|s) / π_old(a|s):

    − mean min(ρ·A, clip(ρ, 1−ε, 1+ε)·A)  +  value_weight · ½ mean (V(s) − R)²
    − entropy_weight · mean entropy

where the values' gradient does not reach what actor and critic share. After `auxiliary_every` batches the
auxiliary phase learns all of them again, to teach the actor's features what returns depend on while it
acts as before:

    ½ mean (V_aux(s) − R)²  +  clone_weight · mean KL(π_before ‖ π)  +  ½ mean (V(s) − R)²

where V_aux is a second value, read off the actor's features, and π_before the policy at the start of the
phase. One optimiser serves both. The batches that wait for the auxiliary phase are kept by the learner,
and are in its checkpoints. How a batch is learned: `srl/nets/on_policy.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from torch import Tensor, nn

from srl.core.algorithm import Arrays
from srl.core.collective import Collective
from srl.core.compute import Compute
from srl.core.env import AgentSpec
from srl.core.options import check_one_of, check_options
from srl.nets.actor_critic_policy import ActorCriticPolicy
from srl.nets.chunks import Chunks
from srl.nets.heads import ValueHead
from srl.nets.on_policy import (
    Estimate,
    Minibatch,
    OnPolicyConfig,
    OnPolicyLearner,
    Rows,
    Settings,
)
from srl.nets.tensors import array_of, load_arrays, tensor_of
from srl.ops.distributions import Distribution
from srl.ops.losses import approximate_kl, clipped_policy_loss, masked_mean, value_loss
from srl.ops.schedules import Schedule, scheduled

RECENT = "recent/"


@dataclass(frozen=True, kw_only=True)
class PPGConfig(OnPolicyConfig):
    """Options of PPG."""

    epochs: int = 1
    """Passes over each batch in the policy phase."""
    clip: float = 0.2
    """How far the policy ratio may leave 1 (ε)."""
    clip_schedule: Schedule = "constant"
    """Whether the clip stays, or falls to 0 over the run."""
    auxiliary_every: int = 16
    """Batches of a policy phase: as many are kept in memory for the auxiliary phase after it."""
    auxiliary_epochs: int = 6
    """Passes over all of them in the auxiliary phase."""
    clone_weight: float = 1.0
    """Weight of the divergence from the policy before the auxiliary phase."""

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = ("epochs", "auxiliary_every", "auxiliary_epochs")
        check_options(self, ">= 1", lambda x: x >= 1, *counts)
        check_options(self, "> 0", lambda x: x > 0, "clip")
        check_options(self, ">= 0", lambda x: x >= 0, "clone_weight")
        check_one_of(self, get_args(Schedule), "clip_schedule")

    def make_learner(
        self, agent: AgentSpec, *, seed: int, compute: Compute, ranks: Collective
    ) -> "PPG":
        """A learner with fresh weights, one of several that learn together."""
        return PPG(self, agent, seed=seed, compute=compute, ranks=ranks)


class PPG(OnPolicyLearner[PPGConfig]):
    """Learns an actor-critic in two phases."""

    measured = (
        "policy_loss",
        "value_loss",
        "entropy",
        "approx_kl",
        "clip_fraction",
        "log_prob_drift",
    )
    measured_auxiliary = ("auxiliary_loss", "auxiliary_value_loss", "clone_divergence")

    def __init__(
        self, config: PPGConfig, agent: AgentSpec, *, seed: int, compute: Compute, ranks: Collective
    ) -> None:
        super().__init__(
            config, agent, seed=seed, compute=compute, ranks=ranks, epochs=config.epochs
        )
        self._before = ActorCriticPolicy(config, agent, seed=seed, compute=compute)
        self._recent: list[Arrays] = []
        """What the auxiliary phase needs of the batches since the last one; never written again."""
        self._waiting = torch.zeros((), dtype=torch.int64)
        """Batches since the last auxiliary phase: the same number on all ranks."""
        self.keep(auxiliary={**self._head.state_dict(keep_vars=True), "waiting": self._waiting})
        self._descend_auxiliary = self._descending(self.auxiliary_loss, self.measured_auxiliary)

    def _trained(self) -> nn.Module:
        """The network, and the auxiliary value's head, which acting does without."""
        network = self.policy.network
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self._seed)
            self._head = ValueHead(network.actor.num_features).to(self.policy.device)
        return nn.ModuleDict({"network": network, "auxiliary": self._head})

    def settings(self, progress: float) -> dict[str, float]:
        """Learning rate and clip."""
        clip = scheduled(self.config.clip, self.config.clip_schedule, progress)
        return super().settings(progress) | {"clip": clip}

    def learn(self, batch: Mapping[str, np.ndarray], progress: float) -> dict[str, float]:
        """Learn one batch, and those before it again where an auxiliary phase is due."""
        chunks = Chunks(batch, self._agent, self.policy.records, self.policy.device)
        estimate = self._estimate(chunks, batch)
        metrics = self._learn(chunks, batch, estimate, progress)
        self._remember(batch, estimate)
        self._waiting += 1
        if int(self._waiting) >= self.config.auxiliary_every:
            metrics |= self._learn_auxiliary(metrics["train_samples"], progress)
            self._recent.clear()
            self._waiting.zero_()
        return metrics

    def _remember(self, batch: Mapping[str, np.ndarray], estimate: Estimate) -> None:
        """Keep what the auxiliary phase needs: what was seen, and the returns."""
        names = ["first", "step", *self.policy.observation_names, *self.policy.records.state.names]
        kept = {name: np.array(_on_host(batch[name])) for name in names if name in batch}
        rows = len(kept["first"])
        self._recent = [x for x in self._recent if len(x["first"]) == rows]  # of another rollout
        self._recent.append(kept | {"target": estimate.target, "known": estimate.known})

    def loss(
        self, rows: Minibatch, settings: Settings, count: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """This rank's part of the loss of a minibatch of `count` rows, and what to report, all `[]`."""
        config, learned, mask = self.config, rows.fields, rows.mask
        clip, old_log_prob = settings["clip"], learned["log_prob"]
        distribution, _, value = self._judged(rows, detach_value=True)
        log_prob = distribution.log_prob(learned["action"])
        entropy = masked_mean(distribution.entropy(), mask, count)
        policy_loss = clipped_policy_loss(
            log_prob, old_log_prob, learned["advantage"], clip=clip, mask=mask, count=count
        )
        critic_loss = value_loss(value, learned["value"], learned["target"], mask=mask, count=count)
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

    def auxiliary_loss(
        self, rows: Minibatch, settings: Settings, count: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Like `loss`, of the auxiliary phase."""
        target, mask = rows.fields["target"], rows.mask
        distribution, acting, value = self._judged(rows, detach_value=False)
        with torch.no_grad():
            shown = rows.obs, rows.first, rows.state, self.policy.records.burn_in
            before, _, _ = self._before.network(*shown)
        divergence = masked_mean(before.divergence(distribution), mask, count)
        auxiliary = value_loss(self._head(acting), target, target, mask=mask, count=count)
        critic = value_loss(value, target, target, mask=mask, count=count)
        loss = auxiliary + self.config.clone_weight * divergence + critic
        return loss, {
            "auxiliary_loss": auxiliary.detach(),
            "auxiliary_value_loss": critic.detach(),
            "clone_divergence": divergence.detach(),
        }

    def _judged(
        self, rows: Minibatch, *, detach_value: bool
    ) -> tuple[Distribution, Tensor, Tensor]:
        """Of the M rows: the distribution, the actor's features `[M, D]`, and the values."""
        network, burn_in = self.policy.network, self.policy.records.burn_in
        acting, value, _ = network.bodies(
            rows.obs, rows.first, rows.state, burn_in, detach_value=detach_value
        )
        return network.head(acting, rows.obs), acting, value

    def _learn_auxiliary(self, train_samples: float, progress: float) -> dict[str, float]:
        """Pass over all batches that were kept, in minibatches drawn from all of them."""
        device = self.policy.device
        batch = _joined(self._recent)
        load_arrays(self._before.tensors, self.policy.weights())
        chunks = Chunks(batch, self._agent, self.policy.records, device)
        known = tensor_of(batch["known"].reshape(-1), device)
        target = tensor_of(batch["target"].reshape(-1), device)
        fields = {"target": self.policy.network.normalise_value(target)}
        rows = Rows(fields, known, chunks.having(batch["known"]))
        total = known.sum().double()
        self.ranks.sum_(total)
        num_rows = int(total)
        if not num_rows:
            return {}
        rate = torch.tensor(self.settings(progress)["learning_rate"], device=device)
        settings = {"learning_rate": rate}
        epochs = self.config.auxiliary_epochs
        tables = [
            self._learn_epoch(self._descend_auxiliary, rows, chunks, num_rows, settings)
            for _ in range(epochs)
        ]
        means = tables[-1][:, :-1].mean(0).tolist()
        found = dict(zip(self.measured_auxiliary, means, strict=True))
        return found | {"train_samples": train_samples + epochs * num_rows}

    def save(self) -> Arrays:
        """Also the batches that wait for the auxiliary phase."""
        recent = {
            f"{RECENT}{i}/{name}": array
            for i, batch in enumerate(self._recent)
            for name, array in batch.items()
        }
        return super().save() | recent

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned; the batches of rank 0 are learned by rank 0 alone."""
        super().load({name: x for name, x in state.items() if not name.startswith(RECENT)})
        batches: dict[int, Arrays] = {}
        for name, array in state.items():
            if name.startswith(RECENT) and not self.ranks.rank:
                number, field = name.removeprefix(RECENT).split("/", 1)
                batches.setdefault(int(number), {})[field] = np.array(array)
        self._recent = [batches[number] for number in sorted(batches)]


def _on_host(field: np.ndarray | Tensor) -> np.ndarray:
    """Large fields may be on the device already."""
    return array_of(field) if isinstance(field, Tensor) else field


def _joined(batches: list[Arrays]) -> Arrays:
    """Batches side by side: one of as many lanes as all of them have."""
    return {
        name: np.concatenate([x[name] for x in batches], axis=min(1, array.ndim - 1))
        for name, array in batches[0].items()
    }
