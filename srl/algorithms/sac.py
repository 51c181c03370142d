"""Soft actor-critic (Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905).

Losses of a minibatch of windows, with actions a' ~ π(·|s) and importance weights w:

    critics       mean w · ½ (Q_i(s_t, a_t) − y)²,   y = R_t + γⁿ · (min_i Q⁻_i(s_{t+n}, a') − α·log π(a'|s_{t+n}))
    policy        mean α·log π(a'|s_t) − min_i Q_i(s_t, a')
    temperature   mean −log α · (log π(a'|s_t) + H)

where R_t are the rewards of n steps, Q⁻ critics that follow Q slowly, and H is the entropy that the policy
should have. π is a Gaussian squashed by tanh. Recorded in every row: `action`. Weights that travel to
actors are the policy's alone.

How windows are read and learned, by one or several trainers: `srl/nets/continuous.py`.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from srl.core.collective import Collective
from srl.core.compute import Compute
from srl.core.env import AgentSpec
from srl.core.options import check_options
from srl.nets.continuous import (
    ContinuousConfig,
    ContinuousLearner,
    ContinuousPolicy,
    Transitions,
)
from srl.nets.optimiser import Adam
from srl.ops.distributions import SquashedGaussian

LOG_STD_BOUNDS = -20.0, 2.0
"""Of the Gaussian before it is squashed, as in the authors' code."""


@dataclass(frozen=True, kw_only=True)
class SACConfig(ContinuousConfig):
    """Options of SAC."""

    algorithm_name: ClassVar[str] = "sac"

    temperature: float = 1.0
    """What a unit of entropy is worth in units of reward (α), to begin with."""
    learn_temperature: bool = True
    """Change it so that the policy has the entropy that is wanted."""
    target_entropy: float | None = None
    """That entropy, of actions in -1..1; None: minus the numbers of an action (H)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self, "> 0", lambda x: x > 0, "temperature")
        check_options(self, "a finite number", lambda _: True, "target_entropy")

    def make_policy(self, agent: AgentSpec, *, seed: int, compute: Compute) -> "SACPolicy":
        """A policy with fresh weights."""
        return SACPolicy(self, agent, seed=seed, compute=compute)

    def make_learner(
        self, agent: AgentSpec, *, seed: int, compute: Compute, ranks: Collective
    ) -> "SAC":
        """A learner with fresh weights, one of several that learn together."""
        return SAC(self, agent, seed=seed, compute=compute, ranks=ranks)


class SACPolicy(ContinuousPolicy):
    """Samples from a squashed Gaussian."""

    num_outputs = 2  # mean and deviation

    def distribution(self, features: Tensor) -> SquashedGaussian:
        """Of actions in -1..1."""
        mean, log_std = self.network(features).chunk(2, -1)
        return SquashedGaussian(mean, log_std.clamp(*LOG_STD_BOUNDS))

    def explore(self, features: Tensor, noise: Tensor) -> Tensor:
        """A sample."""
        return self.distribution(features).sample(noise)

    def best(self, features: Tensor) -> Tensor:
        """The squashed mean."""
        return self.distribution(features).mode()


class Temperature(nn.Module):
    """What entropy is worth."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(value)))


class SAC(ContinuousLearner[SACConfig, SACPolicy]):
    """Learns a policy that is as random as it can afford to be."""

    measured = ("critic_loss", "policy_loss", "entropy", "value", "temperature")

    def __init__(
        self, config: SACConfig, agent: AgentSpec, *, seed: int, compute: Compute, ranks: Collective
    ) -> None:
        policy = config.make_policy(agent, seed=seed, compute=compute)
        super().__init__(config, policy, agent, seed=seed, compute=compute, ranks=ranks)
        self.temperature = Temperature(config.temperature).to(policy.device)
        self.temperature_adam = Adam(self.temperature, epsilon=config.adam_epsilon)
        self.keep(
            temperature=self.temperature.state_dict(),
            temperature_adam=self.temperature_adam.tensors,
        )
        wanted = config.target_entropy
        self.target_entropy = float(-policy.network.num_actions) if wanted is None else wanted

    def step(self, rows: Transitions, rate: Tensor, actor_rate: Tensor) -> tuple[Tensor, Tensor]:
        """Learn the temperature, the critics, and the policy by these."""
        alpha = self.temperature.log.detach().exp()
        action, log_prob = self.policy.distribution(rows.features).draw(rows.noise)
        entropy = -(rows.share * log_prob.detach()).sum()
        if self.config.learn_temperature:
            self._learn_temperature(rows, entropy, rate)
        target = self.target(rows, alpha)
        critic_loss, errors = self.learn_critics(rows, target, rate)
        value = self.critics(rows.features, action, fixed=True).amin(0)
        policy_loss = (rows.share * (alpha * log_prob - value)).sum()
        self.descend(policy_loss, self.actor_adam, actor_rate)
        self.target_critics.follow(self.config.target_rate)
        mean_value = (rows.share * value.detach()).sum()
        alpha_part = alpha / self.ranks.size  # what is measured is summed over ranks
        measured = (critic_loss, policy_loss.detach(), entropy, mean_value, alpha_part)
        return torch.stack(measured), errors

    @torch.no_grad()
    def target(self, rows: Transitions, alpha: Tensor) -> Tensor:
        """What the critics should say, `[M]`."""
        action, log_prob = self.policy.distribution(rows.next_features).draw(rows.next_noise)
        value = self.target_critics.network(rows.next_features, action).amin(0)
        return rows.returns + rows.discounts * (value - alpha * log_prob)

    def _learn_temperature(self, rows: Transitions, entropy: Tensor, rate: Tensor) -> None:
        """One step; the gradient of the loss to log α is the entropy there is, less what is wanted."""
        excess = entropy - rows.share.sum() * self.target_entropy
        self.temperature_adam.gradient.copy_(excess)
        self.ranks.sum_(self.temperature_adam.gradient)
        self.temperature_adam.step(rate)
