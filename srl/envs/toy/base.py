"""What toys are made of: the rules of a game, and the batch of envs that plays them.

Every number is a function of (run seed, env, agent, episode, step), so there is no generator to
save, and all lanes move in a few NumPy calls. Axes: `E` envs, `A` agents.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from srl.core.env import (
    AgentSpec,
    EnvRequest,
    EnvSpec,
    ObservationRows,
    OutcomeRows,
    agent_sets,
)
from srl.core.errors import ConfigError, EnvError
from srl.core.names import nearest


@dataclass(frozen=True)
class Moment:
    """Where every lane is in its run, and the random numbers of that moment."""

    seed: int
    env: np.ndarray
    """[E, 1] int64: number of the env in the run."""
    agent: np.ndarray
    """[1, A] int64"""
    episode: np.ndarray
    """[E, 1] int64"""
    step: np.ndarray
    """[E, 1] int64: number of the step in its episode."""

    @property
    def shape(self) -> tuple[int, int]:
        """Of one number a lane, `[E, A]`."""
        return len(self.env), self.agent.shape[1]

    @property
    def beginning(self) -> "Moment":
        """The first moment of each episode under way."""
        return replace(self, step=np.zeros_like(self.step))

    def choice(self, n: int, draw: int = 0) -> np.ndarray:
        """[E, A] int64: one of `n` values, alike likely; another number for each `draw`."""
        return (self._bits(draw) % np.uint64(n)).astype(np.int64)

    def uniform(self, draw: int = 0) -> np.ndarray:
        """[E, A] float32 in [-1, 1]; another number for each `draw`."""
        return (self._bits(draw).astype(np.float64) / 2**63 - 1).astype(np.float32)

    def _bits(self, draw: int) -> np.ndarray:
        """[E, A] uint64: splitmix64 (Steele et al., 2014) over what names the moment."""
        bits = np.full(self.shape, self.seed, np.uint64)
        words = [self.env, self.agent, self.episode, self.step]
        for word in words + [np.array(draw)] * (draw > 0):
            bits = bits + word.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
            bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            bits = bits ^ (bits >> np.uint64(31))
        return bits


@dataclass(frozen=True, kw_only=True)
class Game:
    """The rules of a toy: pure functions over all lanes. Its fields are the env's options."""

    agents: int = 1
    """Agents an env, all alike."""

    LEAST: ClassVar[Mapping[str, float]] = {}
    """Lowest value of an option; 1 of any other whole number."""

    @classmethod
    def make_batch(cls, request: EnvRequest) -> "ToyEnv":
        """Build a batch of this toy; its options are the fields above."""
        return ToyEnv(_read_options(cls, request), request)

    @property
    def names(self) -> tuple[str, ...]:
        """The agents' names, in lane order."""
        return tuple(f"agent_{a}" for a in range(self.agents))

    @property
    def agent(self) -> AgentSpec:
        """What each agent sees and does."""
        raise NotImplementedError

    @property
    def limit(self) -> int:
        """Steps after which an episode that has not terminated is truncated."""
        raise NotImplementedError

    def start(self, now: Moment) -> np.ndarray:
        """[E, A] float32: the state in which an episode begins; by default nothing to remember."""
        return np.zeros(now.shape, np.float32)

    def play(
        self, state: np.ndarray, action: np.ndarray, now: Moment, after: Moment
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The next state `[E, A]`, the reward `[E, A]`, and who terminates `[E, 1]` or `[E, A]`."""
        raise NotImplementedError

    def show(self, state: np.ndarray, now: Moment) -> dict[str, np.ndarray]:
        """What each agent sees, `[E, A, *shape]`."""
        raise NotImplementedError

    def shared(self, state: np.ndarray, now: Moment) -> dict[str, np.ndarray]:
        """What the whole env shows to a central critic, `[E, *shape]`."""
        return {}

    def acting(self, now: Moment) -> np.ndarray:
        """[E, A] bool: who acts."""
        return np.ones(now.shape, np.bool_)


class ToyEnv:
    """A batch of one toy; implements `srl.core.env.Env`.

    An agent that ends before the others is out of the game: the row after its end shows its final
    observation, those after that show zeros, and none of them is valid or acting until a reset.
    """

    def __init__(self, game: Game, request: EnvRequest) -> None:
        self._game = game
        num_agents = len(game.names)
        self._sets = [list(members) for members in agent_sets(request, num_agents)]
        self.spec = EnvSpec(
            name=request.name,
            num_envs=request.num_envs,
            agents=dict.fromkeys(game.names, game.agent),
            restores="everything, exactly",
        )
        column = np.zeros((request.num_envs, 1), np.int64)
        self._now = Moment(
            seed=request.seed,
            env=request.first_env + np.arange(request.num_envs)[:, None],
            agent=np.arange(num_agents)[None],
            episode=column + request.first_episode - 1,
            step=column,
        )
        self._state = game.start(self._now)
        self._alive = np.zeros(self._now.shape, np.bool_)
        self._out = np.zeros(self._now.shape, np.bool_)
        """Who ended before the last step, and shows zeros."""

    def reset(self, out: Sequence[ObservationRows]) -> None:
        """Begin an episode in every env and write its first observations."""
        now = self._now
        self._now = replace(now, episode=now.episode + 1, step=np.zeros_like(now.step))
        self._state = self._game.start(self._now)
        self._alive, self._out = np.ones_like(self._alive), np.zeros_like(self._out)
        self._write(out)

    def step(
        self,
        actions: Sequence[np.ndarray],
        outcome: Sequence[OutcomeRows],
        out: Sequence[ObservationRows],
    ) -> None:
        """Play one step in every env; those that ended begin an episode instead."""
        game, now, alive = self._game, self._now, self._alive
        begins = ~alive.any(1, keepdims=True)
        after = replace(now, episode=now.episode + begins, step=np.where(begins, 0, now.step + 1))
        action = self._joined(actions)
        self._check_allowed(action)
        state, reward, terminated = game.play(self._state, action, now, after)
        terminated = terminated & alive
        truncated = (after.step >= game.limit) & alive & ~terminated
        for members, rows in zip(self._sets, outcome, strict=True):
            rows.reward[:] = np.where(alive, reward, 0)[:, members]
            rows.terminated[:] = terminated[:, members]
            rows.truncated[:] = truncated[:, members]
        self._now, self._state = after, np.where(begins, game.start(after), state)
        self._alive, self._out = (alive & ~terminated & ~truncated) | begins, ~alive & ~begins
        self._write(out)

    def save(self) -> dict[str, np.ndarray]:
        """Everything that is not in the request: `[E]`, and what is of an agent `[E, A]`."""
        return {
            "episode": self._now.episode[:, 0].copy(),
            "step": self._now.step[:, 0].copy(),
            "alive": self._alive.copy(),
            "out": self._out.copy(),
            "state": self._state.copy(),
        }

    def load(self, state: Mapping[str, np.ndarray], seen: Sequence[ObservationRows]) -> bool:
        """Bring back a saved state; False where what was `seen` belongs to another."""
        if state["state"].shape != self._state.shape:
            return False
        self._now = replace(
            self._now, episode=state["episode"][:, None].copy(), step=state["step"][:, None].copy()
        )
        self._state, self._alive = state["state"].copy(), state["alive"].copy()
        self._out = state["out"].copy()
        shown = self._shown()
        same = all(
            np.array_equal(values[:, members], rows.obs[name])
            for members, rows in zip(self._sets, seen, strict=True)
            for name, values in shown.items()
        )
        self._alive &= same
        return same

    def close(self) -> None:
        """Nothing to free."""

    def _joined(self, actions: Sequence[np.ndarray]) -> np.ndarray:
        """The actions of all sets as `[E, A, *shape]`."""
        action = self._game.agent.action.field
        joined = np.zeros(self._now.shape + action.shape, action.dtype)
        for members, taken in zip(self._sets, actions, strict=True):
            joined[:, members] = taken
        return joined

    def _check_allowed(self, action: np.ndarray) -> None:
        """Raise EnvError where an agent that acts does what its mask forbids."""
        mask = self._game.agent.action_mask
        if mask is None:
            return
        allowed = np.take_along_axis(self._shown()[mask.name], action[..., None], -1)[..., 0]
        wrong = self._alive & self._game.acting(self._now) & ~allowed.astype(np.bool_)
        if wrong.any():
            e, a = (int(i) for i in np.argwhere(wrong)[0])
            now, name = self._now, self._game.names[a]
            raise EnvError(
                f"env {self.spec.name!r} was given the action {action[e, a]}, which its mask "
                f"forbids; it is env {now.env[e, 0]} of the run (lane {e} of its batch), agent "
                f"{name!r}, seed {now.seed} of the run, episode {now.episode[e, 0]}, step "
                f"{now.step[e, 0]}"
            )

    def _shown(self) -> dict[str, np.ndarray]:
        """What each agent sees, `[E, A, *shape]`: zeros where it is out of the game."""
        shown = self._game.show(self._state, self._now)
        if not self._out.any():
            return shown
        return {
            name: np.where(self._out.reshape(self._out.shape + (1,) * (values.ndim - 2)), 0, values)
            for name, values in shown.items()
        }

    def _write(self, out: Sequence[ObservationRows]) -> None:
        shown, central = self._shown(), self._game.shared(self._state, self._now)
        alive = self._alive
        over = ~alive.any(1, keepdims=True)
        acting = (alive & self._game.acting(self._now)) | (over & ~self._out)
        for members, rows in zip(self._sets, out, strict=True):
            for name, values in shown.items():
                rows.obs[name][:] = values[:, members]
            for name, values in central.items():
                rows.central[name][:] = values
            rows.first[:] = self._now.step == 0
            rows.valid[:] = alive[:, members]
            rows.acting[:] = acting[:, members]


def nobody(now: Moment) -> np.ndarray:
    """[E, 1] bool: no agent terminates."""
    return np.zeros((len(now.env), 1), np.bool_)


def one_hot(values: np.ndarray, n: int) -> np.ndarray:
    """`[..., n]` float32 of values `[...]`."""
    return (values[..., None] == np.arange(n)).astype(np.float32)


def _read_options(toy: type[Game], request: EnvRequest) -> Game:
    """The game, with the request's options as its fields."""
    if request.wrappers:
        raise ConfigError(f"toy env {request.name!r} takes no wrappers: {request.wrappers}")
    known: dict[str, Any] = {entry.name: entry.default for entry in fields(toy)}
    for name, value in request.options.items():
        if name not in known:
            hint = nearest(name, list(known)) or f": it has {', '.join(known)}"
            raise ConfigError(f"toy env {request.name!r} has no option {name!r}{hint}")
        kind = type(known[name])
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise ConfigError(
                f"toy env {request.name!r}: {name} is {value!r}, must be of type {kind.__name__}"
            )
        least = toy.LEAST.get(name, 1 if kind is int else None)
        if least is not None and value < least:
            raise ConfigError(
                f"toy env {request.name!r}: {name} is {value}, must be at least {least}"
            )
    return toy(**request.options)
