"""Deep Q-learning (Mnih et al. 2015, https://doi.org/10.1038/nature14236) and what was added to it.

Loss of a minibatch of windows, over the rows that are learned, with importance weights w:

    mean w · ℓ(Q(s_t, a_t), R_t + γⁿ · Q⁻(s_{t+n}, a*))        ℓ: Huber's loss

where R_t are the rewards of n steps, Q⁻ the target network, and a* the action that is best by Q⁻, or with
`double` by Q (van Hasselt et al. 2016). Options, each alone or together:

    dueling         values of state and actions in two streams (Wang et al. 2016)
    n_step          returns of several steps
    replay.kind     prioritised: windows with large errors are drawn more often (Schaul et al. 2016)
    distribution    c51 (Bellemare et al. 2017) or quantiles (Dabney et al. 2018) of the return
    noisy           noise in the weights explores (Fortunato et al. 2018)
                    all of these: Rainbow (Hessel et al. 2018)
    ladder          of each episode its own share of random actions (Ape-X, Horgan et al. 2018)
    memory          windows are sequences, from a recorded state, after a burn-in, and with `rescale` the
                    values of returns of any size (R2D2, Kapturowski et al. 2019)

Recorded in every row: `action`; with a ladder or a memory also the state.

Axes: `B` windows drawn, `b` of a minibatch, `R` rows of a window, `T` of them learned, `M` = `T·b`,
`A` actions, `n` numbers for each (1, atoms or quantiles), `N` lanes that act.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from srl.core.algorithm import Records
from srl.core.collective import Collective
from srl.core.compute import Compute
from srl.core.env import AgentSpec, Discrete
from srl.core.errors import ConfigError
from srl.core.options import check_memory_options, check_one_of, check_options
from srl.core.replay import ReplayConfig, Window
from srl.core.spec import Field, Spec
from srl.nets.chunks import Chunks
from srl.nets.encoder import EncoderKind, EncoderOptions, check_encoder
from srl.nets.graphs import GraphedByShape
from srl.nets.learner import NetworkLearner
from srl.nets.memory import MemoryOptions
from srl.nets.mlp import Activation
from srl.nets.optimiser import Adam, Follower
from srl.nets.policy import NetworkPolicy
from srl.nets.q_network import QNetwork
from srl.nets.tensors import array_of, tensor_of
from srl.ops.q_values import (
    categorical_projection,
    importance_weights,
    quantile_loss,
    rescale,
    unscale,
)
from srl.ops.returns import n_step_returns
from srl.ops.schedules import Schedule, scheduled

Distribution = Literal["none", "c51", "quantiles"]
RecurrentKind = Literal["none", "lstm", "gru"]
LADDER = Spec((Field("state.ladder", (), "float32", "chunk"),))
"""Where on the ladder a lane stands in this episode, 0..1."""
ROWS_A_NOISE = 32
"""Rows that are learned with the same noise in the weights: a batch of the paper's. One noise for a larger batch would
be most of its gradient's variance, however large it is; one for each row takes longer to draw than to learn."""
OUTCOMES = ("reward", "terminated", "truncated")
MASKS = ("first", "valid", "acting")
TOLD = ("action", "returns", "discounts", "weight")


@dataclass(frozen=True, kw_only=True)
class DQNConfig:
    """Options of DQN."""

    rollout: int = 16
    """Steps of each lane in a block."""
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    """What is kept, and how often it is learned from."""
    learning_rate: float = 1e-3
    """Step size of Adam."""
    learning_rate_schedule: Schedule = "constant"
    """Whether the step size stays, or falls to 0 over the run."""
    discount: float = 0.99
    """Discount of one step (γ)."""
    n_step: int = 1
    """Steps whose rewards are added up before a value is trusted."""
    double: bool = True
    """Choose the action by one network and value it by the other."""
    dueling: bool = False
    """Values of the state and of the actions in two streams."""
    distribution: Distribution = "none"
    """Learn the mean of the return, or its distribution: of fixed atoms (c51), or by quantiles."""
    atoms: int = 51
    """With a distribution: atoms or quantiles of each action."""
    value_range: tuple[float, float] = (-10.0, 10.0)
    """With c51: the lowest and the highest atom."""
    noisy: float | None = None
    """Scale of the noise in the weights to begin with, as 0.5; None: no noise."""
    epsilon_start: float = 1.0
    """Share of actions taken at random, at first."""
    epsilon_end: float = 0.05
    """Share of actions taken at random, at last."""
    epsilon_fraction: float = 0.2
    """Part of the run over which it falls to that."""
    ladder: float = 0.0
    """Every episode's own share of random actions is epsilon ** (1 + ladder · x), with x from 0 to 1."""
    target_interval: int = 1
    """Updates between two steps of the target network."""
    target_rate: float = 0.005
    """How far it goes to the network then: 1 copies it (τ)."""
    huber: float = 1.0
    """Errors up to this are squared, larger ones count linearly (not with a distribution)."""
    max_grad_norm: float = 10.0
    """Longer gradients are scaled down to this norm."""
    rescale: bool = False
    """Learn values of returns squashed by h(x) = sign(x)(√(|x| + 1) − 1) + x/1000."""
    network: str | None = None
    """Your own encoder of observations, module:Object or file.py:Object; None: by their shapes."""
    encoder: EncoderKind = "nature"
    """Images by Nature's network, a light one, or IMPALA's deeper resnet; entities: sets of them."""
    hidden: tuple[int, ...] = (128, 128)
    """Layer sizes of each stream."""
    activation: Activation = "relu"
    """Nonlinearity of these layers."""
    memory: RecurrentKind = "none"
    """A recurrent layer after the encoder."""
    memory_size: int = 64
    """Numbers it remembers."""
    chunk: int = 16
    """With a memory: rows of a window that are learned; rollout is a multiple of it."""
    burn_in: int = 0
    """With a memory: rows before these that bring it up to date with the newest weights."""
    priority_mix: float = 0.9
    """With a memory: the priority of a window is this times its largest error, and the rest its mean."""
    adam_epsilon: float = 1e-8
    """Adam's ε."""

    def __post_init__(self) -> None:
        counts = ("rollout", "n_step", "target_interval", "memory_size", "chunk")
        check_options(self, ">= 1", lambda x: x >= 1, *counts)
        check_options(self, ">= 2", lambda x: x >= 2, "atoms")
        positive = ("learning_rate", "huber", "max_grad_norm", "noisy", "adam_epsilon")
        check_options(self, "> 0", lambda x: x > 0, *positive)
        check_options(self, ">= 0", lambda x: x >= 0, "ladder", "burn_in")
        shares = ("discount", "epsilon_start", "epsilon_end", "priority_mix")
        check_options(self, "in 0..1", lambda x: 0 <= x <= 1, *shares, "epsilon_fraction")
        check_options(self, "> 0 and at most 1", lambda x: 0 < x <= 1, "target_rate")
        check_options(self, "sizes >= 1", lambda sizes: all(n >= 1 for n in sizes), "hidden")
        check_options(self, "two numbers, rising", lambda x: x[0] < x[1], "value_range")
        check_one_of(self, get_args(Distribution), "distribution")
        check_one_of(self, get_args(RecurrentKind), "memory")
        check_one_of(self, get_args(Activation), "activation")
        check_one_of(self, get_args(EncoderKind), "encoder")
        if self.network is not None:
            check_options(self, "nature with algorithm.network", lambda x: x == "nature", "encoder")
        check_one_of(self, get_args(Schedule), "learning_rate_schedule")
        remembered = ("burn_in", "chunk", "memory_size", "priority_mix")
        check_memory_options(self, get_args(RecurrentKind), *remembered)
        if self.memory != "none":
            divisor = f"a divisor of algorithm.rollout ({self.rollout})"
            check_options(self, divisor, lambda x: self.rollout % x == 0, "chunk")
        if self.rescale and self.distribution != "none":
            raise ConfigError(
                "algorithm.rescale is of plain values: not with algorithm.distribution"
            )

    @property
    def window(self) -> Window:
        """One row and n more, or a chunk of rows with what comes before and after."""
        if self.memory == "none":
            return Window(ahead=self.n_step)
        return Window(self.chunk, self.n_step, self.burn_in, stride=self.chunk)

    @property
    def batch_size(self) -> int:
        """Rows that are learned together."""
        return self.replay.drawn * self.window.length

    def records(self, agent: AgentSpec) -> Records:
        """The action; the state of the memory, and the place on the ladder."""
        if not isinstance(agent.action, Discrete):
            kind = type(agent.action).__name__
            raise ConfigError(
                f"algorithm dqn values every choice of one Discrete action, and this agent's are {kind}: "
                "use sac or td3 for real numbers (Box), ppo for several choices (MultiDiscrete)"
            )
        if not agent.observations:
            raise ConfigError("algorithm dqn needs an agent that observes something")
        check_encoder(agent.observations, self.encoder)
        memory = self.memory_options()
        state = Spec(()) if memory is None else memory.state
        if self.ladder:
            state += LADDER
        return Records(Spec((agent.action.field,)), state, 1 if memory is None else self.chunk)

    def memory_options(self) -> MemoryOptions | None:
        """What the memory is, if there is one."""
        return None if self.memory == "none" else MemoryOptions(self.memory, self.memory_size)

    def make_policy(self, agent: AgentSpec, *, seed: int, compute: Compute) -> "DQNPolicy":
        """A policy with fresh weights."""
        return DQNPolicy(self, agent, seed=seed, compute=compute)

    def make_learner(
        self, agent: AgentSpec, *, seed: int, compute: Compute, ranks: Collective
    ) -> "DQN":
        """A learner with fresh weights, one of several that learn together."""
        return DQN(self, agent, seed=seed, compute=compute, ranks=ranks)


class DQNPolicy(NetworkPolicy[QNetwork]):
    """Takes the best action by the network, or now and then any."""

    def __init__(self, config: DQNConfig, agent: AgentSpec, *, seed: int, compute: Compute) -> None:
        def make_network() -> QNetwork:
            return QNetwork(
                agent,
                network=config.network,
                encoder=EncoderOptions(config.encoder),
                hidden=config.hidden,
                activation=config.activation,
                memory=config.memory_options(),
                dueling=config.dueling,
                noise=config.noisy,
                numbers=1 if config.distribution == "none" else config.atoms,
                epsilon=0.0 if config.noisy else config.epsilon_start,
                compute=compute,
            )

        super().__init__(make_network, agent, config.records(agent), seed=seed, compute=compute)
        self._config = config
        lowest, highest = config.value_range
        self.support = torch.linspace(lowest, highest, config.atoms, device=self.device)
        """The atoms of c51."""

    def expected(self, values: Tensor) -> Tensor:
        """Means, `[M, A]`, of what the network says, `[M, A, n]`."""
        if self._config.distribution == "c51":
            return values.softmax(-1) @ self.support
        return values.mean(-1) if values.shape[-1] > 1 else values.squeeze(-1)

    def _draw(self, num_lanes: int) -> dict[str, Tensor]:
        network, generator = self.network, self.generator
        drawn = {"random": torch.rand(num_lanes, network.num_actions + 2, generator=generator)}
        if network.num_noise:
            drawn["noise"] = torch.randn(num_lanes, network.num_noise, generator=generator)
        return drawn

    def _sample(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        action, state = self._best(inputs)
        any_action, explore, place = inputs["random"].split([self.network.num_actions, 1, 1], -1)
        epsilon = self.network.epsilon
        if self._config.ladder:
            stands = torch.where(inputs["first"], place[:, 0], inputs["state.ladder"])
            epsilon = epsilon ** (1 + self._config.ladder * stands)
            state["state.ladder"] = stands
        other = self.network.best(any_action, inputs)
        return {"action": torch.where(explore[:, 0] < epsilon, other, action), **state}

    def _take_best(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        action, state = self._best(inputs)
        if self._config.ladder:
            state["state.ladder"] = inputs["state.ladder"]
        return {"action": action, **state}

    def _best(self, inputs: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        values, state = self.network(*self.observed(inputs), noise=inputs.get("noise"))
        return self.network.best(self.expected(values), inputs), state


class Windows(NamedTuple):
    """All that was drawn."""

    chunks: Chunks
    fields: dict[str, Tensor]
    """`[T, B]` each: `action`, `returns`, `discounts` and `weight` as a Minibatch has them; `known`: whether
    there is something to learn; and where it is bootstrapped from: the row, counted from the end of
    the burn-in, in `ends`, and its place among all rows of `chunks` in `after`."""
    first: Tensor
    """`[R, B]`"""
    state: dict[str, Tensor]
    """Of the memory before the first row, each `[B, *shape]`."""
    lanes: Tensor
    """`[B]`: 0, 1, 2, ..."""


class Shown(NamedTuple):
    """What the networks are shown of `b` windows."""

    obs: dict[str, Tensor]
    """Without a memory of the rows that are learned, `[M]`; with one of all rows, `[R·b]`."""
    next_obs: dict[str, Tensor]
    """`[M]`, of the rows that these are bootstrapped from; with a memory only what is forbidden there."""
    first: Tensor
    """`[R, b]`; without a memory `[1, b]`."""
    state: dict[str, Tensor]
    """Of the memory before the first row, each `[b, *shape]`."""
    place: Tensor | None
    """`[M]`, with a memory: where among the rows after the burn-in these are bootstrapped from."""
    noise: tuple[Tensor | None, ...]
    """Of each pass of a network, `[rows / ROWS_A_NOISE, num_noise]`."""
    told: dict[str, Tensor]
    """Action, returns, discounts and weight as a Minibatch has them."""


class Minibatch(NamedTuple):
    """What is learned of `b` windows, `[M]` each."""

    values: Tensor
    """`[M, A, n]`, by the network."""
    action: Tensor
    returns: Tensor
    """Rewards of n steps."""
    discounts: Tensor
    """Of the value after them."""
    next_values: Tensor
    """`[M, A, n]`, after them, by which the best action is chosen: those of the network with `double`,
    else the target network's."""
    next_targets: Tensor
    """`[M, A, n]`, by the target network."""
    next_obs: dict[str, Tensor]
    weight: Tensor
    """Importance weights; 0 where there is nothing to learn."""


class DQN(NetworkLearner[DQNPolicy]):
    """Learns a DQNPolicy from windows of a replay buffer."""

    def __init__(
        self, config: DQNConfig, agent: AgentSpec, *, seed: int, compute: Compute, ranks: Collective
    ) -> None:
        policy = DQNPolicy(config, agent, seed=seed, compute=compute)
        super().__init__(policy, seed=seed, ranks=ranks)
        self.config = config
        self.priorities = np.zeros(0)
        """Of the windows learned last, `[B]`."""
        self._agent = agent
        self._recorded = replace(policy.records, burn_in=config.burn_in)
        self._adam = Adam(policy.network, epsilon=config.adam_epsilon)
        self._follower = Follower(policy.network, self._adam)
        self.target = self._follower.network
        self.keep(adam=self._adam.tensors, target=self.target.state_dict())
        is_graph = policy.device.type == "cuda" and config.memory == "none" and ranks.size == 1
        self._descend = GraphedByShape(self._step) if is_graph else self._step

    def begin_with(self, weights: Mapping[str, np.ndarray]) -> None:
        """Take over the weights of another run, but not how little it explored at its end."""
        super().begin_with({**weights, "epsilon": array_of(self.policy.network.epsilon)})
        self._follower.copy()

    def loss(self, rows: Minibatch) -> tuple[Tensor, Tensor]:
        """The loss of each row, and its error for priorities, `[M]` each."""
        config, expected = self.config, self.policy.expected
        best = self.policy.network.best(expected(rows.next_values), rows.next_obs)
        taken, after = _of_action(rows.values, rows.action), _of_action(rows.next_targets, best)
        if config.distribution == "c51":
            target = categorical_projection(
                after.softmax(-1), rows.returns, rows.discounts, support=self.policy.support
            )
            loss = -(target * taken.log_softmax(-1)).sum(-1)
            divergence = loss.detach() + torch.xlogy(target, target).sum(-1)  # Kullback-Leibler's
            return loss, divergence.clamp(min=0)
        if config.distribution == "quantiles":
            target = rows.returns[:, None] + rows.discounts[:, None] * after
            loss = quantile_loss(taken, target)
            return loss, (target.mean(-1) - taken.detach().mean(-1)).abs()
        value = unscale(after[:, 0]) if config.rescale else after[:, 0]
        target = rows.returns + rows.discounts * value
        target = rescale(target) if config.rescale else target
        loss = huber_loss(taken[:, 0], target, reduction="none", delta=config.huber)
        return loss, (target - taken[:, 0].detach()).abs()

    def learn(self, batch: Mapping[str, np.ndarray], progress: float) -> dict[str, float]:
        """Learn `replay.steps` minibatches of windows."""
        config = self.config
        learning_rate = scheduled(config.learning_rate, config.learning_rate_schedule, progress)
        self._explore(progress)
        windows = self._windows(batch, progress)
        known, steps = windows.fields["known"], config.replay.steps
        # every so many-th, and not neighbours: prioritised windows are drawn in the order they lie
        parts = [slice(i, None, steps) for i in range(steps)]
        counts = torch.stack([known[:, part].sum() for part in parts]).float()
        self.ranks.sum_(counts)
        rate = torch.tensor(learning_rate, device=self.policy.device)
        errors, losses, norms = torch.zeros_like(windows.fields["weight"]), [], []
        values = errors[:, :0]
        for part, count in zip(parts, counts.clamp(min=1), strict=True):
            error, values, loss, norm = self._descend(self._shown(windows, part), count, rate)
            errors[:, part] = error.reshape(errors[:, part].shape)
            losses.append(loss.clone())  # a graph writes over what it returned before
            norms.append(norm.clone())
            self.updates += 1
            if not self.updates % config.target_interval:
                self._follower.follow(config.target_rate)
        errors *= known
        largest, mean = errors.amax(0), errors.sum(0) / known.sum(0).clamp(min=1)
        self.priorities = array_of(mean + config.priority_mix * (largest - mean))
        value = self.policy.expected(values).mean(-1) @ known[:, parts[-1]].reshape(-1).float()
        measured = torch.stack([torch.stack(losses).mean(), errors.sum(), value])
        self.ranks.sum_(measured)
        loss, error, value = measured.tolist()
        samples = float(counts.sum())
        return {
            "loss": loss,
            "td_error": error / max(1.0, samples),
            "value": value / max(1.0, float(counts[-1])),
            "grad_norm": float(torch.stack(norms).mean()),
            "epsilon": float(self.policy.network.epsilon),
            "learning_rate": learning_rate,
            "train_samples": samples,
        }

    def _windows(self, batch: Mapping[str, np.ndarray], progress: float) -> Windows:
        """What was drawn, with the returns of its rows."""
        config, device = self.config, self.policy.device
        learned = {name: batch[name][config.burn_in :] for name in (*OUTCOMES, *MASKS)}
        sums, discounts, ends, known = n_step_returns(
            *(learned[name] for name in OUTCOMES),
            **{name: learned[name] for name in MASKS},
            steps=config.n_step,
            gamma=config.discount,
        )
        action = batch["action"][config.burn_in : config.burn_in + config.window.length]
        arrays = {"action": action, "returns": sums, "discounts": discounts}
        arrays |= {"ends": ends, "known": known}
        fields = {name: tensor_of(x, device) for name, x in arrays.items()}
        fields["weight"] = fields["known"] * self._importance(batch["chance"], progress)
        chunks = Chunks(batch, self._agent, self._recorded, device)
        lanes = torch.arange(chunks.num_lanes, device=device)
        fields["after"] = (fields["ends"] + config.burn_in) * chunks.num_lanes + lanes
        memory = self.policy.network.memory
        names = () if memory is None else memory.names
        return Windows(
            chunks,
            fields,
            tensor_of(batch["first"], device),
            {name: tensor_of(batch[name][0], device) for name in names},
            lanes,
        )

    def _importance(self, chances: np.ndarray, progress: float) -> Tensor:
        """Weights of windows, `[B]`; the largest, over all ranks, is 1."""
        config = self.config.replay
        if config.kind != "prioritised":
            return torch.ones(len(chances), device=self.policy.device)
        exponent = config.importance_exponent + (1 - config.importance_exponent) * progress
        rarest = min(self.ranks.gather([float(chances.min())]))[0]
        return importance_weights(tensor_of(chances, self.policy.device), exponent, rarest=rarest)

    def _shown(self, windows: Windows, part: slice) -> Shown:
        """What both networks are shown of some windows."""
        online, observe = self.policy.network, windows.chunks.observe
        seen = self._agent.observation_names
        fields = {name: x[:, part] for name, x in windows.fields.items()}
        first, lanes = windows.first[:, part], windows.lanes[part]
        after = fields["after"].reshape(-1)
        told = {name: fields[name].reshape(-1) for name in TOLD}
        if online.memory is None:
            passes = 3 if self.config.double else 2
            noise = tuple(self._noise(len(after)) for _ in range(passes))
            obs, next_obs = observe(lanes, seen), observe(after, seen)
            return Shown(obs, next_obs, first[:1], {}, None, noise, told)
        next_obs = observe(after, () if online.mask_name is None else (online.mask_name,))
        times = torch.arange(len(first), device=lanes.device)[:, None]
        obs = observe((times * len(windows.lanes) + lanes).reshape(-1), seen)
        state = {name: x[part] for name, x in windows.state.items()}
        place = (fields["ends"] * len(lanes) + windows.lanes[: len(lanes)]).reshape(-1)
        num_judged = (len(first) - self.config.burn_in) * first.shape[1]
        noise = tuple(self._noise(num_judged) for _ in range(2))
        return Shown(obs, next_obs, first, state, place, noise, told)

    def _noise(self, num_rows: int) -> Tensor | None:
        """For one pass of a network over so many rows, drawn for every `ROWS_A_NOISE` of them."""
        if not self.policy.network.num_noise:
            return None
        shape = -(-num_rows // ROWS_A_NOISE), self.policy.network.num_noise
        return torch.randn(shape, generator=self.generator).to(self.policy.device)

    def _step(
        self, shown: Shown, count: Tensor, learning_rate: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Learn this rank's windows of a minibatch of `count` rows.

        Returns:
            Errors, `[M]`; values, `[M, A, n]`; this rank's part of the loss; and the gradient's norm.
        """
        rows = self._judged(shown)
        self._adam.zero_grad()
        losses, error = self.loss(rows)
        loss = rows.weight @ losses / count
        loss.backward()
        self.ranks.sum_(self._adam.gradient)
        norm = self._adam.clip(self.config.max_grad_norm)
        self._adam.step(learning_rate)
        return error, rows.values.detach(), loss.detach(), norm

    def _judged(self, shown: Shown) -> Minibatch:
        """What both networks say."""
        online, double = self.policy.network, self.config.double
        obs, next_obs, first, state, place, noise, told = shown
        if place is None:
            values = self._judge(online, obs, first, state, noise[0])
            with torch.no_grad():
                next_targets = next_values = self._judge(
                    self.target, next_obs, first, state, noise[1]
                )
                if double:
                    next_values = self._judge(online, next_obs, first, state, noise[2])
        else:
            judged = self._judge(online, obs, first, state, noise[0])
            values = judged[: len(place)]
            with torch.no_grad():
                next_targets = self._judge(self.target, obs, first, state, noise[1])[place]
                next_values = judged.detach()[place] if double else next_targets
        return Minibatch(
            values=values,
            next_values=next_values,
            next_targets=next_targets,
            next_obs=next_obs,
            **told,
        )

    def _judge(
        self,
        network: QNetwork,
        obs: dict[str, Tensor],
        first: Tensor,
        state: Mapping[str, Tensor],
        noise: Tensor | None,
    ) -> Tensor:
        """What a network says of rows after the burn-in."""
        if noise is not None:
            num_rows = (len(first) - self.config.burn_in) * first.shape[1]
            noise = noise[torch.arange(num_rows, device=noise.device) % len(noise)]
        return network(obs, first, state, self.config.burn_in, noise=noise)[0]

    @torch.no_grad()
    def _explore(self, progress: float) -> None:
        """Let actors take as many actions at random as it is time for."""
        config = self.config
        if config.noisy is None:
            fraction = config.epsilon_fraction
            done = min(1.0, progress / fraction) if fraction else 1.0
            epsilon = config.epsilon_start + (config.epsilon_end - config.epsilon_start) * done
            self.policy.network.epsilon.fill_(epsilon)


def _of_action(values: Tensor, action: Tensor) -> Tensor:
    """`[M, n]`: of `values`, `[M, A, n]`, those of the actions, `[M]`."""
    index = action[:, None, None].expand(-1, 1, values.shape[-1])
    return values.gather(1, index).squeeze(1)
