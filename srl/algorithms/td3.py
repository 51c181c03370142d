"""Twin delayed deep deterministic policy gradients (Fujimoto et al. 2018, https://arxiv.org/abs/1802.09477).

Losses of a minibatch of windows, with importance weights w:

    critics   mean w · ½ (Q_i(s_t, a_t) − y)²,   y = R_t + γⁿ · min_i Q⁻_i(s_{t+n}, a')
    policy    mean −Q_1(s_t, μ(s_t)), once in `policy_delay` updates

where R_t are the rewards of n steps, Q⁻ and μ⁻ follow Q and μ slowly, and a' = μ⁻(s_{t+n}) with clipped
noise. Actors add noise to μ. Recorded in every row: `action`. Weights that travel to actors are the policy's
alone.

With one critic, a delay of 1 and no noise in a' this is DDPG (Lillicrap et al. 2016,
https://arxiv.org/abs/1509.02971).

How windows are read and learned, by one or several trainers: `srl/nets/continuous.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

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
from srl.nets.optimiser import Follower


@dataclass(frozen=True, kw_only=True)
class TD3Config(ContinuousConfig):
    """Options of TD3."""

    algorithm_name: ClassVar[str] = "td3"

    exploration_noise: float = 0.1
    """Deviation of the noise that actors add, of actions in -1..1."""
    policy_delay: int = 2
    """Updates of the critics for one of the policy and of all that follows."""
    target_noise: float = 0.2
    """Deviation of the noise in the actions that targets are made of; 0: none."""
    target_noise_clip: float = 0.5
    """Largest such noise."""

    def __post_init__(self) -> None:
        super().__post_init__()
        noise = ("exploration_noise", "target_noise", "target_noise_clip")
        check_options(self, ">= 0", lambda x: x >= 0, *noise)
        check_options(self, ">= 1", lambda x: x >= 1, "policy_delay")

    def make_policy(self, agent: AgentSpec, *, seed: int, compute: Compute) -> "TD3Policy":
        """A policy with fresh weights."""
        return TD3Policy(self, agent, seed=seed, compute=compute)

    def make_learner(
        self, agent: AgentSpec, *, seed: int, compute: Compute, ranks: Collective
    ) -> "TD3":
        """A learner with fresh weights, one of several that learn together."""
        return TD3(self, agent, seed=seed, compute=compute, ranks=ranks)


class TD3Policy(ContinuousPolicy):
    """One action for each state, and noise."""

    num_outputs = 1

    def __init__(self, config: TD3Config, agent: AgentSpec, *, seed: int, compute: Compute) -> None:
        super().__init__(config, agent, seed=seed, compute=compute)
        self._noise = config.exploration_noise

    def explore(self, features: Tensor, noise: Tensor) -> Tensor:
        """The best action and noise."""
        return (self.best(features) + self._noise * noise).clamp(-1, 1)

    def best(self, features: Tensor) -> Tensor:
        """The action."""
        return self.network(features).tanh()


class TD3(ContinuousLearner[TD3Config, TD3Policy]):
    """Learns a deterministic policy by critics that do not overestimate it."""

    measured = ("critic_loss", "value")

    def __init__(
        self, config: TD3Config, agent: AgentSpec, *, seed: int, compute: Compute, ranks: Collective
    ) -> None:
        policy = config.make_policy(agent, seed=seed, compute=compute)
        super().__init__(config, policy, agent, seed=seed, compute=compute, ranks=ranks)
        self.target_actor = Follower(policy.network, self.actor_adam)
        self.keep(target_actor=dict(self.target_actor.network.named_parameters()))

    def begin_with(self, weights: Mapping[str, np.ndarray]) -> None:
        """Take over the policy of another run, also as the target's."""
        super().begin_with(weights)
        self.target_actor.copy()

    def step(self, rows: Transitions, rate: Tensor, actor_rate: Tensor) -> tuple[Tensor, Tensor]:
        """Learn the critics, and now and then the policy by the first of them."""
        target = self.target(rows)
        critic_loss, errors = self.learn_critics(rows, target, rate)
        if (self.updates + 1) % self.config.policy_delay == 0:
            self._learn_policy(rows, actor_rate)
        value = (rows.share * (errors[0] + target)).sum()
        return torch.stack((critic_loss, value)), errors

    @torch.no_grad()
    def target(self, rows: Transitions) -> Tensor:
        """What the critics should say, `[M]`."""
        config = self.config
        action = self.target_actor.network(rows.next_features).tanh()
        if config.target_noise:
            noise = config.target_noise * rows.next_noise
            noise = noise.clamp(-config.target_noise_clip, config.target_noise_clip)
            action = (action + noise).clamp(-1, 1)
        value = self.target_critics.network(rows.next_features, action).amin(0)
        return rows.returns + rows.discounts * value

    def _learn_policy(self, rows: Transitions, rate: Tensor) -> None:
        action = self.policy.best(rows.features)
        value = self.critics(rows.features, action, fixed=True, count=1)[0]
        self.descend(-(rows.share * value).sum(), self.actor_adam, rate)
        self.target_actor.follow(self.config.target_rate)
        self.target_critics.follow(self.config.target_rate)
