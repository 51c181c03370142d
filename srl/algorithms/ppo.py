"""Proximal policy optimisation (Schulman et al. 2017, https://arxiv.org/abs/1707.06347).

Loss of a minibatch, over its valid rows, with ratio ρ = π(a|s) / π_old(a|s):

    − mean min(ρ·A, clip(ρ, 1−ε, 1+ε)·A)  +  value_weight · ½ mean (V(s) − R)²
    − entropy_weight · mean entropy

where A are generalised advantages and R = A + V_old(s). Recorded in every row: `action`,
`log_prob` and `value`. Axes: `T` rows in time, `B` lanes, `M` rows of a minibatch, `N` lanes.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from srl.core.algorithm import Arrays, Records
from srl.core.collective import Collective
from srl.core.env import AgentSpec
from srl.core.errors import ConfigError
from srl.core.spec import Field, Spec
from srl.nets.actor_critic import ActorCritic
from srl.nets.mlp import Activation
from srl.nets.optimiser import Adam
from srl.nets.tensors import array_of, load_arrays, tensor_of
from srl.ops.distributions import Distribution
from srl.ops.losses import approximate_kl, clipped_policy_loss, value_loss
from srl.ops.normalise import normalise_masked
from srl.ops.returns import explained_variance, generalised_advantages
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
    hidden: tuple[int, ...] = (64, 64)
    """Layer sizes of actor and critic, each its own; images pass a shared CNN before."""
    activation: Activation = "tanh"
    """Nonlinearity of these layers."""
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
        check("> 0", lambda x: x > 0, "learning_rate", "clip", "value_clip", "target_kl")
        check("> 0", lambda x: x > 0, "max_grad_norm", "adam_epsilon")
        check("> 1", lambda x: x > 1, "dual_clip")
        check(">= 0", lambda x: x >= 0, "entropy_weight", "value_weight")
        check("in 0..1", lambda x: 0 <= x <= 1, "discount", "gae_lambda")
        schedules, activations = get_args(Schedule), get_args(Activation)
        named = ("learning_rate_schedule", "clip_schedule")
        check(" or ".join(schedules), lambda x: x in schedules, *named)
        check(" or ".join(activations), lambda x: x in activations, "activation")
        check("sizes >= 1", lambda sizes: all(n >= 1 for n in sizes), "hidden")
        multiple = f"a multiple of algorithm.rollout ({self.rollout})"
        check(multiple, lambda x: x % self.rollout == 0, "batch_size")

    def records(self, agent: AgentSpec) -> Records:
        """Action, its log-probability and the state value."""
        if not agent.observations:
            raise ConfigError("algorithm ppo needs an agent that observes something")
        return Records(
            Spec(
                (
                    agent.action.field,
                    Field("log_prob", (), "float32"),
                    Field("value", (), "float32"),
                )
            )
        )

    def make_policy(self, agent: AgentSpec, *, seed: int, device: str) -> "PPOPolicy":
        """A policy with fresh weights."""
        return PPOPolicy(self, agent, seed=seed, device=device)

    def make_learner(self, agent: AgentSpec, *, seed: int, device: str, ranks: Collective) -> "PPO":
        """A learner with fresh weights, one of several that learn together."""
        return PPO(self, agent, seed=seed, device=device, ranks=ranks)


class PPOPolicy:
    """An actor-critic network and the generator it samples with."""

    def __init__(self, config: PPOConfig, agent: AgentSpec, *, seed: int, device: str) -> None:
        self.records = config.records(agent)
        self.device = torch.device(device)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.network = ActorCritic(
                agent,
                hidden=config.hidden,
                activation=config.activation,
                normalise_observations=config.normalise_observations,
                normalise_returns=config.normalise_returns,
            ).to(self.device)
        self.observation_names = agent.observation_names
        self.tensors: dict[str, Tensor] = self.network.state_dict(keep_vars=True)
        # on the CPU whatever the device: equal seeds sample alike, and checkpoints change device
        self._generator = torch.Generator().manual_seed(seed)

    def act(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Sample actions for N lanes."""
        with torch.inference_mode():
            distribution, value = self.network(self.observe(inputs))
            return self._answer(distribution, distribution.sample(self._generator), value)

    def act_greedy(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Take the most likely actions for N lanes."""
        with torch.inference_mode():
            distribution, value = self.network(self.observe(inputs))
            return self._answer(distribution, distribution.mode(), value)

    def observe(self, inputs: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
        """The observations among `inputs`, as tensors on the device."""
        return {name: tensor_of(inputs[name], self.device) for name in self.observation_names}

    def _answer(self, distribution: Distribution, action: Tensor, value: Tensor) -> Arrays:
        return {
            "action": array_of(action),
            "log_prob": array_of(distribution.log_prob(action)),
            "value": array_of(self.network.denormalise_value(value)),
        }

    def weights(self) -> Arrays:
        """Parameters and normalisers: views of those in use where they are on the CPU."""
        return {name: array_of(tensor) for name, tensor in self.tensors.items()}

    def load_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Take over weights; raises CheckpointError naming a tensor that does not fit."""
        load_arrays(self.tensors, weights)

    def save(self) -> Arrays:
        """State of the sampling generator."""
        return {"generator": array_of(self._generator.get_state())}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned."""
        self._generator.set_state(torch.tensor(state["generator"]))


@dataclass(frozen=True)
class Rows:
    """Rows to learn from, each `[M, ...]`; value and target as the critic predicts them."""

    obs: dict[str, Tensor]
    action: Tensor
    log_prob: Tensor
    value: Tensor
    advantage: Tensor
    target: Tensor

    def select(self, index: Tensor) -> "Rows":
        """The rows of `index`, `[m] int64`."""
        obs = {name: x.index_select(0, index) for name, x in self.obs.items()}
        rest = (self.action, self.log_prob, self.value, self.advantage, self.target)
        return Rows(obs, *(x.index_select(0, index) for x in rest))


class PPO:
    """Learns a PPOPolicy, batch by batch."""

    def __init__(
        self, config: PPOConfig, agent: AgentSpec, *, seed: int, device: str, ranks: Collective
    ) -> None:
        self.config = config
        self.ranks = ranks
        self.policy = PPOPolicy(config, agent, seed=seed, device=device)
        self.updates = 0
        self._adam = Adam(self.policy.network, epsilon=config.adam_epsilon)
        self._tensors = {f"weights/{name}": x for name, x in self.policy.tensors.items()}
        self._tensors |= {f"adam/{name}": x for name, x in self._adam.tensors.items()}
        self._shuffle = torch.Generator().manual_seed(seed)

    def loss(self, rows: Rows, clip: float) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of a minibatch, and what to report of it, all `[]`."""
        config, count = self.config, len(rows.action)
        distribution, value = self.policy.network(rows.obs)
        log_prob, entropy = distribution.log_prob(rows.action), distribution.entropy().mean()
        policy_loss = clipped_policy_loss(
            log_prob,
            rows.log_prob,
            rows.advantage,
            clip=clip,
            dual_clip=config.dual_clip,
            count=count,
        )
        critic_loss = value_loss(
            value, rows.value, rows.target, clip=config.value_clip, count=count
        )
        with torch.no_grad():
            log_ratio = log_prob - rows.log_prob
            metrics = {
                "policy_loss": policy_loss.detach(),
                "value_loss": critic_loss.detach(),
                "entropy": entropy.detach(),
                "approx_kl": approximate_kl(log_prob, rows.log_prob),
                "clip_fraction": (log_ratio.expm1().abs() > clip).float().mean(),
                "log_prob_drift": log_ratio.abs().mean(),
            }
        loss = policy_loss + config.value_weight * critic_loss - config.entropy_weight * entropy
        return loss, metrics

    def learn(self, batch: Mapping[str, np.ndarray], progress: float) -> dict[str, float]:
        """Learn one batch; losses and KL reported are those of the last epoch done."""
        config = self.config
        mask = batch["valid"][:-1] & batch["acting"][:-1]
        learning_rate = scheduled(config.learning_rate, config.learning_rate_schedule, progress)
        clip = scheduled(config.clip, config.clip_schedule, progress)
        metrics = {"learning_rate": learning_rate, "train_samples": 0.0}
        if not mask.any():
            return metrics
        advantages = self._advantages(batch)
        returns = advantages + batch["value"][:-1]
        metrics["explained_variance"] = explained_variance(returns[mask], advantages[mask])
        rows = self._rows(batch, advantages, returns, mask)
        keep = tensor_of(np.flatnonzero(mask), self.policy.device)
        for _ in range(config.epochs):
            measured = self._learn_epoch(rows, keep, learning_rate, clip)
            metrics.setdefault("log_prob_drift", measured.pop("log_prob_drift"))
            metrics |= measured
            metrics["train_samples"] += len(keep)
            if config.target_kl is not None and metrics["approx_kl"] > config.target_kl:
                break
        # Only now: this batch had to be learned with the statistics it was recorded with.
        seen = rows.select(keep).obs
        self.policy.network.update_normalisers(seen, tensor_of(returns[mask], self.policy.device))
        return metrics

    def _advantages(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """`[T, B]`, from the recorded values and one of the row to bootstrap from."""
        last = {name: batch[name][-1] for name in self.policy.observation_names}
        with torch.inference_mode():
            bootstrap = self.policy.network.value(self.policy.observe(last))
        return generalised_advantages(
            batch["reward"][:-1],
            np.concatenate([batch["value"][:-1], array_of(bootstrap)[None]]),
            batch["terminated"][:-1],
            batch["truncated"][:-1],
            batch["valid"][:-1],
            gamma=self.config.discount,
            gae_lambda=self.config.gae_lambda,
        )

    def _rows(
        self,
        batch: Mapping[str, np.ndarray],
        advantages: np.ndarray,
        returns: np.ndarray,
        mask: np.ndarray,
    ) -> Rows:
        """All `T·B` rows of the batch, on the device."""

        def flat(array: np.ndarray) -> Tensor:
            return tensor_of(array.reshape(mask.size, *array.shape[2:]), self.policy.device)

        advantage = flat(advantages)
        if self.config.normalise_advantages:
            advantage = normalise_masked(advantage, flat(mask))
        normalise = self.policy.network.normalise_value
        return Rows(
            obs={name: flat(batch[name][:-1]) for name in self.policy.observation_names},
            action=flat(batch["action"][:-1]),
            log_prob=flat(batch["log_prob"][:-1]),
            value=normalise(flat(batch["value"][:-1])),
            advantage=advantage,
            target=normalise(flat(returns)),
        )

    def _learn_epoch(
        self, rows: Rows, keep: Tensor, learning_rate: float, clip: float
    ) -> dict[str, float]:
        """One pass over the rows of `keep`, `[M] int64`, in minibatches of nearly equal sizes."""
        order = keep[torch.randperm(len(keep), generator=self._shuffle).to(keep.device)]
        names, measured = [], []
        for index in order.tensor_split(-(-len(keep) // self.config.minibatch_size)):
            loss, metrics = self.loss(rows.select(index), clip)
            self._adam.zero_grad()
            loss.backward()
            metrics["grad_norm"] = self._adam.clip(self.config.max_grad_norm)
            self._adam.step(learning_rate)
            self.updates += 1
            names = list(metrics)
            measured.append(torch.stack(list(metrics.values())))
        table = torch.stack(measured)
        drift = float(table[0, names.index("log_prob_drift")])
        return dict(zip(names, table.mean(0).tolist(), strict=True)) | {"log_prob_drift": drift}

    def save(self) -> Arrays:
        """Weights, Adam's moments, counters and random generators, as copies."""
        return {name: array_of(x).copy() for name, x in self._state().items()}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned; raises CheckpointError naming what does not fit."""
        own = self._state()
        load_arrays(own, state)
        self.updates = int(own["updates"])
        self._shuffle.set_state(own["shuffle"])
        self.policy.load({"generator": array_of(own["generator"])})

    def _state(self) -> dict[str, Tensor]:
        """All that `save` keeps: the tensors in use, and copies of the rest."""
        return self._tensors | {
            "updates": torch.tensor(self.updates),
            "shuffle": self._shuffle.get_state(),
            "generator": torch.from_numpy(self.policy.save()["generator"]),
        }
