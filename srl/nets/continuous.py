"""How real-valued actions are learned from replay: what SAC and TD3 share.

Windows of n + 1 rows are drawn from the replay buffer: a state, the action taken there, the rewards of n
steps, and the state after them. Policy and critics see features of the states, which hold numbers and
categories. They deal in actions scaled to -1..1; rows have those of the env, between its bounds.

Several trainers learn one minibatch together: each its share, and every sum is over all.

Axes: `B` windows drawn, `M` of a minibatch, `N` lanes that act, `D` features, `A` numbers of an action,
`C` critics.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Generic, NamedTuple, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor, nn

from srl.core.algorithm import Records
from srl.core.collective import Collective
from srl.core.compute import Compute
from srl.core.env import AgentSpec, Box
from srl.core.errors import ConfigError
from srl.core.options import check_one_of, check_options
from srl.core.replay import ReplayConfig, Window
from srl.core.spec import Spec
from srl.nets.chunks import Chunks
from srl.nets.critics import Critics
from srl.nets.encoder import Encoder, is_image
from srl.nets.heads import POLICY_GAIN
from srl.nets.learner import NetworkLearner
from srl.nets.mlp import Activation, Linear, Mlp
from srl.nets.optimiser import Adam, Follower
from srl.nets.policy import NetworkPolicy
from srl.nets.precision import layer_precision
from srl.nets.tensors import array_of, tensor_of
from srl.ops.returns import n_step_returns
from srl.ops.schedules import Schedule, scheduled

REPLAY = ReplayConfig(capacity=1_000_000, batch=256, warm_up=1000, samples_per_insert=256)
"""One optimiser step for every step of a lane."""


@dataclass(frozen=True, kw_only=True)
class ContinuousConfig:
    """Options that SAC and TD3 share."""

    algorithm_name: ClassVar[str]

    rollout: int = 8
    """Steps of each lane in a block."""
    replay: ReplayConfig = REPLAY
    """What is kept, and how often it is learned from."""
    learning_rate: float = 3e-4
    """Step size of Adam."""
    actor_learning_rate: float | None = None
    """That of the policy; None: the same."""
    learning_rate_schedule: Schedule = "constant"
    """Whether step sizes stay, or fall to 0 over the run."""
    discount: float = 0.99
    """Discount of one step (γ)."""
    n_step: int = 1
    """Steps whose rewards are added up before a value is trusted."""
    target_rate: float = 0.005
    """How far target networks go to those they follow, after an update (τ)."""
    critics: int = 2
    """Critics, of which the lowest counts."""
    random_warm_up: bool = True
    """Take actions at random, all alike, until the first batch is learned."""
    normalise_observations: bool = False
    """Scale observations (but not categories) by the running mean and variance of those drawn."""
    hidden: tuple[int, ...] = (256, 256)
    """Layer sizes of the policy and of each critic."""
    activation: Activation = "relu"
    """Nonlinearity of these layers."""
    max_grad_norm: float | None = None
    """Longer gradients are scaled down to this norm; None: none are."""
    adam_epsilon: float = 1e-8
    """Adam's ε."""

    def __post_init__(self) -> None:
        positive = ("learning_rate", "actor_learning_rate", "max_grad_norm", "adam_epsilon")
        check_options(self, ">= 1", lambda x: x >= 1, "rollout", "n_step", "critics")
        check_options(self, "> 0", lambda x: x > 0, *positive)
        check_options(self, "in 0..1", lambda x: 0 <= x <= 1, "discount")
        check_options(self, "> 0 and at most 1", lambda x: 0 < x <= 1, "target_rate")
        check_options(self, "sizes >= 1", lambda sizes: all(n >= 1 for n in sizes), "hidden")
        check_one_of(self, get_args(Activation), "activation")
        check_one_of(self, get_args(Schedule), "learning_rate_schedule")

    @property
    def window(self) -> Window:
        """One row and n more."""
        return Window(ahead=self.n_step)

    @property
    def batch_size(self) -> int:
        """Rows that are learned together."""
        return self.replay.drawn

    def records(self, agent: AgentSpec) -> Records:
        """The action; raises ConfigError where the agent's spaces do not fit."""
        name, action = self.algorithm_name, agent.action
        if not isinstance(action, Box):
            raise ConfigError(
                f"algorithm {name} learns actions that are real numbers (Box), and this agent's are "
                f"{type(action).__name__}: use dqn for one choice (Discrete), ppo for any"
            )
        if not np.isfinite([*action.low, *action.high]).all() or not action.low:
            raise ConfigError(
                f"algorithm {name} needs actions with finite bounds, and this agent's are "
                f"{list(action.low)} to {list(action.high)}: give them bounds by a wrapper, or use ppo"
            )
        if not np.less(action.low, action.high).all():
            raise ConfigError(
                f"algorithm {name} needs actions that can be chosen, and of this agent's, {list(action.low)} to "
                f"{list(action.high)}, one has the same lowest and highest value: leave it out by a wrapper"
            )
        if not agent.observations:
            raise ConfigError(f"algorithm {name} needs an agent that observes something")
        images = [o.name for o in agent.observations if is_image(o)]
        if images:
            raise ConfigError(
                f"algorithm {name} sees numbers and categories, and {images[0]!r} is an image: use ppo"
            )
        return Records(Spec((action.field,)))


class Actor(nn.Module):
    """From features to what a policy makes its actions of; all that acting needs."""

    explores: Tensor
    bounds: Tensor

    def __init__(
        self, config: ContinuousConfig, agent: AgentSpec, compute: Compute, num_outputs: int
    ) -> None:
        """With `num_outputs` numbers for each of an action."""
        super().__init__()
        assert isinstance(agent.action, Box)
        self._precision = layer_precision(compute)
        self.encoder = Encoder(agent.observations, normalise=config.normalise_observations)
        self.body = Mlp(self.encoder.num_features, config.hidden, config.activation)
        self.num_actions = len(agent.action.low)
        self.head = Linear(self.body.num_features, num_outputs * self.num_actions, POLICY_GAIN)
        # a buffer, so that actors hear with the weights when it is over
        self.register_buffer("explores", torch.tensor(float(config.random_warm_up)))
        bounds = torch.tensor([agent.action.low, agent.action.high])
        self.register_buffer("bounds", bounds, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """`[M, D]` to `[M, num_outputs · A]`."""
        with self._precision:
            x = self.body(features)
        return self.head(x.float())

    def to_env(self, action: Tensor) -> Tensor:
        """From -1..1 to the bounds of the env, `[M, A]`."""
        low, high = self.bounds.unbind()
        return low + (action + 1) * (0.5 * (high - low))

    def from_env(self, action: Tensor) -> Tensor:
        """From the bounds of the env to -1..1, `[M, A]`."""
        low, high = self.bounds.unbind()
        return ((action - low) * (2 / (high - low)) - 1).clamp(-1, 1)


class ContinuousPolicy(NetworkPolicy[Actor]):
    """Explores at random until the first batch is learned, then as its algorithm says."""

    num_outputs: ClassVar[int]
    """Of the network, for each number of an action."""

    def __init__(
        self, config: ContinuousConfig, agent: AgentSpec, *, seed: int, compute: Compute
    ) -> None:
        records = config.records(agent)

        def make_network() -> Actor:
            return Actor(config, agent, compute, self.num_outputs)

        super().__init__(make_network, agent, records, seed=seed, compute=compute)
        self.observation_names = tuple(o.name for o in agent.observations)
        self._shape = records.outputs["action"].shape

    @abstractmethod
    def explore(self, features: Tensor, noise: Tensor) -> Tensor:
        """Actions `[N, A]` in -1..1 by normal `noise`, `[N, A]`."""

    @abstractmethod
    def best(self, features: Tensor) -> Tensor:
        """Actions `[M, A]` in -1..1."""

    def _draw(self, num_lanes: int) -> dict[str, Tensor]:
        noise = torch.empty(num_lanes, self.network.num_actions)
        return {"noise": noise.normal_(generator=self.generator)}

    def _sample(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        noise = inputs["noise"]
        uniform = (noise * math.sqrt(0.5)).erf()  # twice the normal distribution function, less 1
        chosen = self.explore(self.network.encoder(inputs), noise)
        return self._answer(torch.where(self.network.explores > 0, uniform, chosen))

    def _take_best(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return self._answer(self.best(self.network.encoder(inputs)))

    def _answer(self, action: Tensor) -> dict[str, Tensor]:
        return {"action": self.network.to_env(action).reshape(-1, *self._shape)}


class Transitions(NamedTuple):
    """What is learned of windows, `[M, ...]` each."""

    features: Tensor
    """`[M, D]`"""
    action: Tensor
    """`[M, A]`, in -1..1."""
    returns: Tensor
    """Rewards of n steps."""
    discounts: Tensor
    """Of the value after them."""
    next_features: Tensor
    """`[M, D]`, after them."""
    share: Tensor
    """Part of the mean over the minibatch, of all ranks: 0 where there is nothing to learn."""
    weight: Tensor
    """The same times the importance weight."""
    noise: Tensor
    """`[M, A]` normal numbers."""
    next_noise: Tensor
    """`[M, A]` more of them."""


ConfigT = TypeVar("ConfigT", bound=ContinuousConfig)
PolicyT = TypeVar("PolicyT", bound=ContinuousPolicy)


class ContinuousLearner(NetworkLearner[PolicyT], Generic[ConfigT, PolicyT]):
    """Critics, those that follow them, and the policy, learned from windows."""

    measured: ClassVar[tuple[str, ...]]
    """What `step` returns."""

    def __init__(
        self,
        config: ConfigT,
        policy: PolicyT,
        agent: AgentSpec,
        *,
        seed: int,
        compute: Compute,
        ranks: Collective,
    ) -> None:
        super().__init__(policy, seed=seed, ranks=ranks)
        self.config = config
        self.priorities = np.zeros(0, np.float32)
        """Of the windows learned last, `[B]`: the mean error of the critics."""
        self._agent = agent
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed + 1)
            self.critics = Critics(
                config.critics,
                num_features=policy.network.encoder.num_features,
                num_actions=policy.network.num_actions,
                hidden=config.hidden,
                activation=config.activation,
                compute=compute,
            ).to(policy.device)
        self.actor_adam = Adam(policy.network, epsilon=config.adam_epsilon)
        self.critic_adam = Adam(self.critics, epsilon=config.adam_epsilon)
        self.target_critics = Follower(self.critics, self.critic_adam)
        self.keep(
            actor_adam=self.actor_adam.tensors,
            critics=self.critics.state_dict(),
            critic_adam=self.critic_adam.tensors,
            target_critics=self.target_critics.network.state_dict(),
        )

    def begin_with(self, weights: Mapping[str, np.ndarray]) -> None:
        """Take over the policy of another run: `random_warm_up` is still this run's; critics are fresh."""
        super().begin_with({**weights, "explores": array_of(self.policy.network.explores)})

    @abstractmethod
    def step(self, rows: Transitions, rate: Tensor, actor_rate: Tensor) -> tuple[Tensor, Tensor]:
        """Learn a minibatch; this rank's part of what is `measured`, and errors of critics `[C, M]`."""

    def learn(self, batch: Mapping[str, np.ndarray], progress: float) -> dict[str, float]:
        """Learn `replay.steps` minibatches of windows; what is reported are means over them."""
        config, device = self.config, self.policy.device
        rates = [
            scheduled(rate or config.learning_rate, config.learning_rate_schedule, progress)
            for rate in (config.learning_rate, config.actor_learning_rate)
        ]
        minibatches, count = self._read(batch, progress)
        self.policy.network.explores.zero_()
        rate, actor_rate = (torch.tensor(x, device=device) for x in rates)
        measured, errors = [], []
        for rows in minibatches:
            values, error = self.step(rows, rate, actor_rate)
            self.updates += 1
            measured.append(values)
            errors.append(error)
        table = torch.stack(measured).mean(0)
        self.ranks.sum_(table)
        self.priorities = array_of(torch.stack(errors, -1).abs().mean(0).reshape(-1))
        metrics = dict(zip(self.measured, table.tolist(), strict=True))
        return metrics | {"learning_rate": rates[0], "train_samples": count}

    def descend(self, loss: Tensor, adam: Adam, rate: Tensor) -> None:
        """Take one step down a loss, of which this is a rank's part."""
        adam.zero_grad()
        loss.backward()
        self.ranks.sum_(adam.gradient)
        if self.config.max_grad_norm is not None:
            adam.clip(self.config.max_grad_norm)
        adam.step(rate)

    def learn_critics(
        self, rows: Transitions, target: Tensor, rate: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Take one step to the targets `[M]`: the loss `[]`, and values less targets `[C, M]`."""
        error = self.critics(rows.features, rows.action) - target
        loss = 0.5 * (rows.weight * error.square()).sum()
        self.descend(loss, self.critic_adam, rate)
        return loss.detach(), error.detach()

    def noise(self, count: int) -> Tensor:
        """`[2, count, A]` normal numbers, of this rank's own."""
        shape = 2, count, self.policy.network.num_actions
        return torch.empty(shape).normal_(generator=self.generator).to(self.policy.device)

    def _read(
        self, batch: Mapping[str, np.ndarray], progress: float
    ) -> tuple[list[Transitions], float]:
        """The minibatches of a draw, and how many rows of them there are on all ranks.

        Prioritised windows come in the order they lie: of neighbours, each minibatch gets one.
        """
        config, device, network = self.config, self.policy.device, self.policy.network
        returns, discounts, ends, known = n_step_returns(
            *(batch[name] for name in ("reward", "terminated", "truncated")),
            **{name: batch[name] for name in ("first", "valid", "acting")},
            steps=config.n_step,
            gamma=config.discount,
        )
        chunks = Chunks(batch, self._agent, self.policy.records, device)
        num_windows = chunks.num_lanes
        lanes = torch.arange(num_windows, device=device)
        after = tensor_of(ends[0], device) * num_windows + lanes
        seen, seen_after = (chunks.observe(x, network.encoder.names) for x in (lanes, after))
        is_known = tensor_of(known[0], device)
        steps = config.replay.steps
        counts = is_known.reshape(-1, steps).sum(0).double()
        self.ranks.sum_(counts)
        with torch.no_grad():
            if config.normalise_observations:
                learned = {name: x[is_known] for name, x in seen.items()}
                network.encoder.count_in(learned, self.ranks.sum_)
            share = (is_known.reshape(-1, steps) / counts.clamp(min=1)).float().reshape(-1)
            rows = Transitions(
                network.encoder(seen),
                network.from_env(tensor_of(batch["action"][0], device).reshape(num_windows, -1)),
                tensor_of(returns[0], device),
                tensor_of(discounts[0], device),
                network.encoder(seen_after),
                share,
                self._importance(batch["chance"], progress) * share,
                *self.noise(num_windows),
            )
        minibatches = [Transitions(*(x[number::steps] for x in rows)) for number in range(steps)]
        return minibatches, float(counts.sum())

    def _importance(self, chances: np.ndarray, progress: float) -> Tensor:
        """`[B]` weights that undo that windows were not drawn alike; of all ranks the largest is 1."""
        if self.config.replay.kind != "prioritised":
            return torch.ones(len(chances), device=self.policy.device)
        beta = self.config.replay.importance_exponent
        weights = chances ** -(beta + (1 - beta) * progress)
        largest = max(x for theirs in self.ranks.gather([float(weights.max())]) for x in theirs)
        return tensor_of((weights / largest).astype(np.float32), self.policy.device)
