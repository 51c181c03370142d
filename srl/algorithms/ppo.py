"""Proximal policy optimisation (Schulman et al. 2017, https://arxiv.org/abs/1707.06347).

Loss of a minibatch, over its valid rows, with ratio ρ = π(a|s) / π_old(a|s):

    − mean min(ρ·A, clip(ρ, 1−ε, 1+ε)·A)  +  value_weight · ½ mean (V(s) − R)²
    − entropy_weight · mean entropy

where A are generalised advantages and R = A + V_old(s). Recorded in every row: `action`,
`log_prob` and `value`; with a memory also its state, where each training chunk starts.

A batch is learned in chunks of `K` rows in time: one row without a memory, `chunk` rows with one,
over which gradients flow back, after a burn-in that only brings the memory up to date. Several
trainers learn one batch together: each its share of every minibatch, and every sum is over all.

Axes: `T` rows in time, `B` lanes, `Q` chunks of a batch, `m` chunks and `M` = `K·m` rows of a
minibatch, `N` lanes that act.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from srl.core.algorithm import NamedPolicy, Records
from srl.core.collective import Collective
from srl.core.compute import Compute
from srl.core.env import AgentSpec
from srl.core.errors import ConfigError
from srl.core.spec import Field, Spec
from srl.nets.actor_critic import ActorCritic
from srl.nets.chunks import Chunks
from srl.nets.graphs import GraphedByShape
from srl.nets.learner import NetworkLearner
from srl.nets.mlp import Activation
from srl.nets.optimiser import Adam
from srl.nets.policy import NetworkPolicy
from srl.nets.recurrent import memory_state
from srl.nets.small import small_actor_critic
from srl.nets.tensors import array_of, tensor_of
from srl.ops.distributions import Distribution, draw_noise
from srl.ops.losses import approximate_kl, clipped_policy_loss, masked_mean, value_loss
from srl.ops.normalise import Moments, moments_of, normalise
from srl.ops.returns import generalised_advantages
from srl.ops.schedules import Schedule, scheduled


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """Options of PPO."""

    rollout: int = 128
    """Steps of each lane in a block."""
    batch_size: int = 4096
    """Steps, over all lanes, learned from at a time; a multiple of rollout."""
    epochs: int = 4
    """Passes over each batch."""
    minibatch_size: int = 1024
    """Most rows in an optimiser step."""
    learning_rate: float = 3e-4
    """Step size of Adam."""
    learning_rate_schedule: Schedule = "constant"
    """Whether the step size stays, or falls to 0 over the run."""
    discount: float = 0.99
    """Discount of one step (γ)."""
    gae_lambda: float = 0.95
    """Advantages: 0 trusts the value function, 1 the observed return (λ)."""
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
    entropy_weight: float = 0.01
    """Weight of the entropy bonus."""
    value_weight: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Longer gradients are scaled down to this norm."""
    normalise_observations: bool = False
    """Scale observations (but not images and categories) by their running mean and variance."""
    normalise_returns: bool = False
    """Learn values of returns scaled by their running mean and variance (PopArt)."""
    normalise_advantages: bool = True
    """Scale the advantages of each batch to mean 0 and variance 1."""
    network: str | None = None
    """Your own encoder of observations, module:Object or file.py:Object; None: by their shapes."""
    hidden: tuple[int, ...] = (64, 64)
    """Layer sizes of actor and critic, each its own; encoder and memory before are shared."""
    activation: Activation = "tanh"
    """Nonlinearity of these layers."""
    initial_std: float = 1.0
    """Standard deviation of real actions to begin with; it is learned."""
    memory: Literal["none", "lstm", "gru"] = "none"
    """A recurrent layer after the encoder."""
    memory_size: int = 64
    """Numbers it remembers."""
    chunk: int = 16
    """With a memory: rows over which gradients flow back; rollout is a multiple of it."""
    burn_in: int = 0
    """With a memory: rows before each chunk that bring it up to date with the newest weights."""
    central_value: bool = False
    """Show the critic what the env shares about all agents, too."""
    adam_epsilon: float = 1e-5
    """Adam's ε."""

    def __post_init__(self) -> None:
        def is_finite(value: Any) -> bool:
            return not isinstance(value, float) or math.isfinite(value)

        def check(allowed: str, is_allowed: Callable[[Any], bool], *names: str) -> None:
            for name in names:
                value = getattr(self, name)
                if value is not None and not (is_finite(value) and is_allowed(value)):
                    raise ConfigError(f"algorithm.{name} must be {allowed}, got {value}")

        check(">= 1", lambda x: x >= 1, "rollout", "batch_size", "epochs", "minibatch_size")
        check(">= 1", lambda x: x >= 1, "memory_size", "chunk")
        check("> 0", lambda x: x > 0, "learning_rate", "clip", "value_clip", "target_kl")
        check("> 0", lambda x: x > 0, "max_grad_norm", "adam_epsilon", "initial_std")
        check("> 1", lambda x: x > 1, "dual_clip")
        check(">= 0", lambda x: x >= 0, "entropy_weight", "value_weight", "burn_in")
        check("in 0..1", lambda x: 0 <= x <= 1, "discount", "gae_lambda")
        schedules, activations = get_args(Schedule), get_args(Activation)
        named = ("learning_rate_schedule", "clip_schedule")
        check(" or ".join(schedules), lambda x: x in schedules, *named)
        check(" or ".join(activations), lambda x: x in activations, "activation")
        check("sizes >= 1", lambda sizes: all(n >= 1 for n in sizes), "hidden")
        multiple = f"a multiple of algorithm.rollout ({self.rollout})"
        check(multiple, lambda x: x % self.rollout == 0, "batch_size")
        kinds = ("none", "lstm", "gru")
        check(" or ".join(kinds), lambda x: x in kinds, "memory")
        if self.memory == "none":
            check("0 without algorithm.memory", lambda x: x == 0, "burn_in")
        else:
            divisor = f"a divisor of algorithm.rollout ({self.rollout})"
            check(divisor, lambda x: self.rollout % x == 0, "chunk")

    def records(self, agent: AgentSpec) -> Records:
        """Action, its log-probability and the state value; the state of the memory."""
        if not agent.observations:
            raise ConfigError("algorithm ppo needs an agent that observes something")
        if self.central_value and not agent.central:
            raise ConfigError(
                "algorithm.central_value needs an env that shares something about all agents"
            )
        numbers = (Field("log_prob", (), "float32"), Field("value", (), "float32"))
        outputs = Spec((agent.action.field, *numbers))
        if self.memory == "none":
            return Records(outputs)
        state = memory_state(self.memory, self.memory_size)
        return Records(outputs, state, self.chunk, self.burn_in)

    def make_policy(self, agent: AgentSpec, *, seed: int, compute: Compute) -> "PPOPolicy":
        """A policy with fresh weights."""
        return PPOPolicy(self, agent, seed=seed, compute=compute)

    def small_policy(self, agent: AgentSpec) -> NamedPolicy | None:
        """The same policy without torch; None where it sees images, remembers, or is large."""
        if self.network is not None or self.memory != "none" or self.central_value:
            return None
        return small_actor_critic(
            agent,
            hidden=self.hidden,
            activation=self.activation,
            normalise_observations=self.normalise_observations,
            normalise_returns=self.normalise_returns,
        )

    def make_learner(
        self, agent: AgentSpec, *, seed: int, compute: Compute, ranks: Collective
    ) -> "PPO":
        """A learner with fresh weights, one of several that learn together."""
        return PPO(self, agent, seed=seed, compute=compute, ranks=ranks)


class PPOPolicy(NetworkPolicy[ActorCritic]):
    """An actor-critic network and the generator it samples with."""

    def __init__(self, config: PPOConfig, agent: AgentSpec, *, seed: int, compute: Compute) -> None:
        def make_network() -> ActorCritic:
            return ActorCritic(
                agent,
                network=config.network,
                hidden=config.hidden,
                activation=config.activation,
                std=config.initial_std,
                memory=None if config.memory == "none" else config.memory,
                memory_size=config.memory_size,
                central=config.central_value,
                normalise_observations=config.normalise_observations,
                normalise_returns=config.normalise_returns,
                compute=compute,
            )

        super().__init__(make_network, agent, config.records(agent), seed=seed, compute=compute)

    def _draw(self, num_lanes: int) -> dict[str, Tensor]:
        return {"noise": draw_noise(self.action, num_lanes, self.generator)}

    def _sample(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        distribution, value, state = self.network(*self.observed(inputs))
        return self._answer(distribution, distribution.sample(inputs["noise"]), value, state)

    def _take_best(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        distribution, value, state = self.network(*self.observed(inputs))
        return self._answer(distribution, distribution.mode(), value, state)

    def _answer(
        self, distribution: Distribution, action: Tensor, value: Tensor, state: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        return {
            "action": action,
            "log_prob": distribution.log_prob(action),
            "value": self.network.denormalise_value(value),
            **state,
        }


@dataclass(frozen=True)
class Rows:
    """Rows to learn from, `[T·B]` each; value and target as the critic predicts them."""

    action: Tensor
    log_prob: Tensor
    value: Tensor
    advantage: Tensor
    target: Tensor
    mask: Tensor
    """bool: the row has an advantage."""
    chunks: Tensor
    """`[m]`: those with such a row."""

    def select(self, chunks: Chunks, index: Tensor, size: int | None) -> "Minibatch":
        """The chunks of `index`, `[m]`; of `size`, where given, as the first is repeated, masked."""
        num_chunks = len(index)
        if size is not None:
            index = torch.cat([index, index[:1].expand(size - num_chunks)])
        rows = chunks.rows(index)
        fields = (self.action, self.log_prob, self.value, self.advantage, self.target)
        mask = None
        if size is not None or chunks.length > 1:
            mask = self.mask.index_select(0, rows)
            mask.view(chunks.length, -1)[:, num_chunks:] = False
        return Minibatch(*chunks.read(index), *(x.index_select(0, rows) for x in fields), mask=mask)


class Minibatch(NamedTuple):
    """Chunks to learn from; what is learned is `[M]`, value and target as the critic predicts."""

    obs: dict[str, Tensor]
    """Of burn-in and chunk, each `[(burn_in + K)·m, *shape]`."""
    first: Tensor
    """`[burn_in + K, m]`"""
    state: dict[str, Tensor]
    """Of the memory before the burn-in, each `[m, *shape]`."""
    action: Tensor
    log_prob: Tensor
    value: Tensor
    advantage: Tensor
    target: Tensor
    mask: Tensor | None
    """Which rows count; None: all."""


MEASURED = (
    "policy_loss",
    "value_loss",
    "entropy",
    "approx_kl",
    "clip_fraction",
    "log_prob_drift",
    "grad_norm",
)
"""What is reported of a minibatch; the last one by `_step`, the others by `loss`."""


def _mean(table: Tensor, name: str) -> float:
    """Mean of what was MEASURED of minibatches, `[n, len(MEASURED)]`."""
    return float(table[:, MEASURED.index(name)].mean())


class PPO(NetworkLearner[PPOPolicy]):
    """Learns a PPOPolicy, batch by batch."""

    def __init__(
        self, config: PPOConfig, agent: AgentSpec, *, seed: int, compute: Compute, ranks: Collective
    ) -> None:
        policy = PPOPolicy(config, agent, seed=seed, compute=compute)
        super().__init__(policy, seed=seed, ranks=ranks)
        self.config = config
        self._agent = agent
        self._adam = Adam(policy.network, epsilon=config.adam_epsilon)
        self.keep(adam=self._adam.tensors)
        self._update = self._step
        self._size: int | None = None
        """Chunks of every minibatch, where they must be equally many."""
        if compute.compile:
            self.policy.network.compile()
        is_graph = self.policy.device.type == "cuda" and config.memory == "none" and ranks.size == 1
        if is_graph:
            self._update = GraphedByShape(self._step)
        if is_graph or compute.compile:
            self._size = -(-config.minibatch_size // self.policy.records.chunk)

    def loss(
        self, rows: Minibatch, clip: float | Tensor, count: float | Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """This rank's part of the loss of a minibatch of `count` rows, and what to report, all `[]`."""
        config, mask = self.config, rows.mask
        burn_in = self.policy.records.burn_in
        distribution, value, _ = self.policy.network(rows.obs, rows.first, rows.state, burn_in)
        log_prob = distribution.log_prob(rows.action)
        entropy = masked_mean(distribution.entropy(), mask, count)
        policy_loss = clipped_policy_loss(
            log_prob,
            rows.log_prob,
            rows.advantage,
            clip=clip,
            dual_clip=config.dual_clip,
            mask=mask,
            count=count,
        )
        critic_loss = value_loss(
            value, rows.value, rows.target, clip=config.value_clip, mask=mask, count=count
        )
        with torch.no_grad():
            log_ratio = log_prob - rows.log_prob
            is_clipped = (log_ratio.expm1().abs() > clip).float()
            metrics = {
                "policy_loss": policy_loss.detach(),
                "value_loss": critic_loss.detach(),
                "entropy": entropy.detach(),
                "approx_kl": approximate_kl(log_prob, rows.log_prob, mask=mask, count=count),
                "clip_fraction": masked_mean(is_clipped, mask, count),
                "log_prob_drift": masked_mean(log_ratio.abs(), mask, count),
            }
        loss = policy_loss + config.value_weight * critic_loss - config.entropy_weight * entropy
        return loss, metrics

    def learn(self, batch: Mapping[str, np.ndarray], progress: float) -> dict[str, float]:
        """Learn one batch; losses and KL reported are those of the last epoch done."""
        config, device = self.config, self.policy.device
        learning_rate = scheduled(config.learning_rate, config.learning_rate_schedule, progress)
        clip = scheduled(config.clip, config.clip_schedule, progress)
        metrics = {"learning_rate": learning_rate, "train_samples": 0.0}
        chunks = Chunks(batch, self._agent, self.policy.records, device)
        advantages, mask = self._advantages(chunks, batch)
        returns = advantages + chunks.learned(batch["value"])
        learned = tensor_of(returns[mask], device)
        moments = moments_of(tensor_of(advantages[mask], device), self.ranks.sum_)
        num_rows = int(moments[0])
        if not num_rows:
            return metrics
        metrics["explained_variance"] = self._explained_variance(learned, moments)
        if config.normalise_advantages:
            advantages = normalise(advantages, moments)
        rows = self._rows(chunks, batch, advantages, returns, mask)
        settings = torch.tensor([clip, learning_rate], device=device)
        tables: list[Tensor] = []
        for _ in range(config.epochs):
            tables.append(self._learn_epoch(rows, chunks, num_rows, settings))
            metrics["train_samples"] += num_rows
            if config.target_kl is not None and _mean(tables[-1], "approx_kl") > config.target_kl:
                break
        # Only now: this batch had to be learned with the statistics it was recorded with.
        burned = self.policy.records.burn_in * chunks.num_lanes
        counted = tensor_of(np.flatnonzero(mask) + burned, device)
        seen = chunks.observe(counted, self.policy.network.normalised())
        self.policy.network.update_normalisers(seen, learned, self.ranks.sum_)
        # These wait for all that was asked of a GPU: the batch is not read any more.
        metrics |= dict(zip(MEASURED, tables[-1].mean(0).tolist(), strict=True))
        metrics["log_prob_drift"] = float(tables[0][0, MEASURED.index("log_prob_drift")])
        return metrics

    def _advantages(
        self, chunks: Chunks, batch: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """`[T, B]` each: advantages by recorded values, and the rows that have one."""
        with torch.inference_mode():
            last = array_of(self.policy.network.value(*chunks.last(batch)))
        burn_in = self.policy.records.burn_in
        return generalised_advantages(
            chunks.learned(batch["reward"]),
            np.concatenate([chunks.learned(batch["value"]), last[None]]),
            chunks.learned(batch["terminated"]),
            chunks.learned(batch["truncated"]),
            valid=batch["valid"][burn_in:],
            acting=batch["acting"][burn_in:],
            gamma=self.config.discount,
            gae_lambda=self.config.gae_lambda,
        )

    def _explained_variance(self, returns: Tensor, errors: Moments) -> float:
        """Share of the variance of the returns that the values explain, over all ranks."""
        variance = float(moments_of(returns, self.ranks.sum_)[2])
        return 1 - float(errors[2]) / variance if variance > 0 else 0.0

    def _rows(
        self,
        chunks: Chunks,
        batch: Mapping[str, np.ndarray],
        advantages: np.ndarray,
        returns: np.ndarray,
        mask: np.ndarray,
    ) -> Rows:
        """All `T·B` rows of the batch, on the device."""

        def flat(array: np.ndarray) -> Tensor:
            return tensor_of(array.reshape(mask.size, *array.shape[2:]), self.policy.device)

        scaled = self.policy.network.normalise_value
        return Rows(
            action=flat(chunks.learned(batch["action"])),
            log_prob=flat(chunks.learned(batch["log_prob"])),
            value=scaled(flat(chunks.learned(batch["value"]))),
            advantage=flat(advantages),
            target=scaled(flat(returns)),
            mask=flat(mask),
            chunks=chunks.having(mask),
        )

    def _learn_epoch(self, rows: Rows, chunks: Chunks, num_rows: int, settings: Tensor) -> Tensor:
        """One pass over the chunks, in minibatches of nearly equal sizes; what was MEASURED of each.

        Minibatch i of the batch is what the minibatches i of all ranks hold together.
        """
        parts = self._deal(rows.chunks, -(-num_rows // self.config.minibatch_size))
        counts = torch.stack([rows.mask[chunks.rows(part)].sum() for part in parts]).double()
        self.ranks.sum_(counts)
        measured = []
        for part, count in zip(parts, counts.clamp(min=1).float(), strict=True):
            minibatch = rows.select(chunks, part, self._size) if len(part) else None
            measured.append(self._update(minibatch, count, settings).clone())
            self.updates += 1
        table = torch.stack(measured)
        losses = table[:, :-1]  # the last is the norm of a gradient that is of all ranks already
        self.ranks.sum_(losses)
        return table

    def _step(self, rows: Minibatch | None, count: Tensor, settings: Tensor) -> Tensor:
        """Learn this rank's part of a minibatch of `count` rows; None: it has none of them.

        `settings` are the clip and the learning rate; returns what is MEASURED.
        """
        clip, learning_rate = settings.unbind()
        self._adam.zero_grad()
        metrics = dict.fromkeys(MEASURED, torch.zeros((), device=settings.device))
        if rows is not None:
            loss, losses = self.loss(rows, clip, count)
            loss.backward()
            metrics |= losses
        self.ranks.sum_(self._adam.gradient)
        metrics["grad_norm"] = self._adam.clip(self.config.max_grad_norm)
        self._adam.step(learning_rate)
        return torch.stack([metrics[name] for name in MEASURED])

    def _deal(self, chunks: Tensor, num_parts: int) -> tuple[Tensor, ...]:
        """Chunks in random order, in `num_parts` parts; some are empty where there are too few."""
        order = torch.randperm(len(chunks), generator=self.generator).to(chunks.device)
        return chunks[order].tensor_split(num_parts)
