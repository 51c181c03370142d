"""Toy envs: tasks of a few lines that tell, in seconds, whether a system learns.

Every number is a function of (run seed, env, agent, episode, step), so there is no generator to
save, and all lanes move in a few NumPy calls. Options common to all: `agents`, how many alike.
Axes: `E` envs, `A` agents.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Protocol

import numpy as np

from srl.core.env import (
    AgentSpec,
    Box,
    Discrete,
    EnvRequest,
    EnvSpec,
    Observation,
    ObservationRows,
    OutcomeRows,
    agent_sets,
)
from srl.core.errors import ConfigError
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

    def choice(self, n: int) -> np.ndarray:
        """[E, A] int64: one of `n` values, alike likely."""
        return (self._bits() % np.uint64(n)).astype(np.int64)

    def uniform(self) -> np.ndarray:
        """[E, A] float32 in [-1, 1]."""
        return (self._bits().astype(np.float64) / 2**63 - 1).astype(np.float32)

    def _bits(self) -> np.ndarray:
        """[E, A] uint64: splitmix64 (Steele et al., 2014) over what names the moment."""
        bits = np.full((len(self.env), self.agent.shape[1]), self.seed, np.uint64)
        for word in (self.env, self.agent, self.episode, self.step):
            bits = bits + word.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
            bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            bits = bits ^ (bits >> np.uint64(31))
        return bits


class Game(Protocol):
    """The rules of a toy: pure functions over all lanes; `state` is one number a lane."""

    @property
    def agent(self) -> AgentSpec:
        """What each agent sees and does."""
        ...

    @property
    def limit(self) -> int:
        """Steps after which an episode that has not terminated is truncated."""
        ...

    def start(self, now: Moment) -> np.ndarray:
        """[E, A] float32: the state in which an episode begins."""
        ...

    def play(
        self, state: np.ndarray, action: np.ndarray, now: Moment, after: Moment
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The next state `[E, A]`, the reward `[E, A]`, and which envs terminate `[E]`."""
        ...

    def show(self, state: np.ndarray, now: Moment) -> np.ndarray:
        """[E, A, *shape]: what each agent sees."""
        ...


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Name the symbol that is shown: reward 1 where right; truncated after `length` steps."""

    choices: int = 4
    length: int = 16
    shown: Literal["vector", "integer"] = "vector"
    """The symbol as a one-hot float32 vector, or as a categorical int64."""

    @staticmethod
    def make_batch(request: EnvRequest) -> "ToyEnv":
        """Build a batch of this toy; its options are the fields above."""
        return _make(Identity, request)

    @property
    def agent(self) -> AgentSpec:
        """What each agent sees and does."""
        vector = Observation("obs", (self.choices,), "float32")
        integer = Observation("obs", (), "int64", (self.choices,))
        return AgentSpec((vector if self.shown == "vector" else integer,), Discrete(self.choices))

    @property
    def limit(self) -> int:
        """Steps of an episode."""
        return self.length

    def start(self, now: Moment) -> np.ndarray:
        """A random symbol."""
        return now.choice(self.choices).astype(np.float32)

    def play(
        self, state: np.ndarray, action: np.ndarray, now: Moment, after: Moment
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Reward the symbol, draw the next."""
        return self.start(after), (action == state).astype(np.float32), _nowhere(now)

    def show(self, state: np.ndarray, now: Moment) -> np.ndarray:
        """The symbol."""
        if self.shown == "integer":
            return state.astype(np.int64)
        return (state[..., None] == np.arange(self.choices)).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class Pixels:
    """Identity in pictures: `[size, size, 1]` uint8, the symbol is the place of a bright stripe."""

    choices: int = 4
    length: int = 16
    size: int = 36
    """Pixels a side; 36 is the least that the three convolutions of the Nature DQN accept."""

    @staticmethod
    def make_batch(request: EnvRequest) -> "ToyEnv":
        """Build a batch of this toy; its options are the fields above."""
        return _make(Pixels, request)

    @property
    def agent(self) -> AgentSpec:
        """What each agent sees and does."""
        picture = Observation("obs", (self.size, self.size, 1), "uint8")
        return AgentSpec((picture,), Discrete(self.choices))

    @property
    def limit(self) -> int:
        """Steps of an episode."""
        return self.length

    def start(self, now: Moment) -> np.ndarray:
        """A random symbol."""
        return now.choice(self.choices).astype(np.float32)

    def play(
        self, state: np.ndarray, action: np.ndarray, now: Moment, after: Moment
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Reward the symbol, draw the next."""
        return self.start(after), (action == state).astype(np.float32), _nowhere(now)

    def show(self, state: np.ndarray, now: Moment) -> np.ndarray:
        """The picture of the symbol."""
        stripe = np.arange(self.size) * self.choices // self.size
        columns = np.where(state[..., None] == stripe, np.uint8(255), np.uint8(0))
        picture = columns[..., None, :, None]
        return np.broadcast_to(picture, (*state.shape, self.size, self.size, 1))


@dataclass(frozen=True, kw_only=True)
class Chain:
    """A corridor: action 1 goes right, 0 left; the far end pays 1 and terminates.

    Standing still at the left end pays `bait` a step, so that only an agent that looks ahead
    walks. With several agents the first at its end terminates the episode of all.
    """

    length: int = 8
    bait: float = 0.001
    steps: int = 64
    """Steps after which an episode is truncated."""

    @staticmethod
    def make_batch(request: EnvRequest) -> "ToyEnv":
        """Build a batch of this toy; its options are the fields above."""
        return _make(Chain, request)

    @property
    def agent(self) -> AgentSpec:
        """What each agent sees and does."""
        return AgentSpec((Observation("obs", (self.length,), "float32"),), Discrete(2))

    @property
    def limit(self) -> int:
        """Steps after which an episode is truncated."""
        return self.steps

    def start(self, now: Moment) -> np.ndarray:
        """The left end."""
        return np.zeros((len(now.env), now.agent.shape[1]), np.float32)

    def play(
        self, state: np.ndarray, action: np.ndarray, now: Moment, after: Moment
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Walk, and pay."""
        place = np.clip(state + np.where(action == 1, 1, -1), 0, self.length - 1)
        goal = place == self.length - 1
        stayed = (state == 0) & (place == 0)
        reward = np.where(goal, 1.0, np.where(stayed, self.bait, 0.0))
        return place.astype(np.float32), reward.astype(np.float32), goal.any(1)

    def show(self, state: np.ndarray, now: Moment) -> np.ndarray:
        """The place, one-hot."""
        return (state[..., None] == np.arange(self.length)).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class Target:
    """Answer the number that is shown: reward -|action - number|; truncated after `length`."""

    length: int = 16

    @staticmethod
    def make_batch(request: EnvRequest) -> "ToyEnv":
        """Build a batch of this toy; its options are the fields above."""
        return _make(Target, request)

    @property
    def agent(self) -> AgentSpec:
        """What each agent sees and does."""
        return AgentSpec((Observation("obs", (1,), "float32"),), Box((1,), (-1.0,), (1.0,)))

    @property
    def limit(self) -> int:
        """Steps of an episode."""
        return self.length

    def start(self, now: Moment) -> np.ndarray:
        """A random number."""
        return now.uniform()

    def play(
        self, state: np.ndarray, action: np.ndarray, now: Moment, after: Moment
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Reward closeness, draw the next."""
        answer = np.clip(action[..., 0], -1, 1)
        return self.start(after), -np.abs(answer - state), _nowhere(now)

    def show(self, state: np.ndarray, now: Moment) -> np.ndarray:
        """The number."""
        return state[..., None]


@dataclass(frozen=True, kw_only=True)
class Counter:
    """Shows `[step, episode, env, agent]`, rewards the step's number; ends after `length` steps.

    For exact tests of rows, masks and episode boundaries: nothing depends on actions or seed.
    """

    length: int = 5
    ends: Literal["terminated", "truncated"] = "terminated"

    @staticmethod
    def make_batch(request: EnvRequest) -> "ToyEnv":
        """Build a batch of this toy; its options are the fields above."""
        return _make(Counter, request)

    @property
    def agent(self) -> AgentSpec:
        """What each agent sees and does."""
        return AgentSpec((Observation("obs", (4,), "float32"),), Discrete(2))

    @property
    def limit(self) -> int:
        """Steps of an episode."""
        return self.length

    def start(self, now: Moment) -> np.ndarray:
        """Nothing to remember."""
        return np.zeros((len(now.env), now.agent.shape[1]), np.float32)

    def play(
        self, state: np.ndarray, action: np.ndarray, now: Moment, after: Moment
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Count."""
        reward = np.broadcast_to(now.step, state.shape).astype(np.float32)
        at_end = after.step[:, 0] >= self.length
        return state, reward, at_end & (self.ends == "terminated")

    def show(self, state: np.ndarray, now: Moment) -> np.ndarray:
        """Step, episode, env and agent."""
        numbers = np.broadcast_arrays(now.step, now.episode, now.env, now.agent)
        return np.stack(numbers, -1).astype(np.float32)


TOYS: dict[str, type[Game]] = {
    "identity": Identity,
    "pixels": Pixels,
    "chain": Chain,
    "target": Target,
    "counter": Counter,
}


class ToyFamily:
    """Builds batches of toys by name: `toy/chain` is `Chain`."""

    @staticmethod
    def make_batch(request: EnvRequest) -> "ToyEnv":
        """Build `request.name`, one of `TOYS`; its options are the fields of the toy."""
        if request.name not in TOYS:
            hint = nearest(request.name, list(TOYS)) or f": there are {', '.join(TOYS)}"
            raise ConfigError(f"there is no toy env {request.name!r}{hint}")
        return _make(TOYS[request.name], request)


class ToyEnv:
    """A batch of one toy; implements `srl.core.env.Env`."""

    def __init__(self, game: Game, agents: int, request: EnvRequest) -> None:
        self._game = game
        self._sets = [list(members) for members in agent_sets(request, agents)]
        self.spec = EnvSpec(
            name=request.name,
            num_envs=request.num_envs,
            agents={f"agent_{a}": game.agent for a in range(agents)},
            restores="everything, exactly",
        )
        column = np.zeros((request.num_envs, 1), np.int64)
        self._now = Moment(
            seed=request.seed,
            env=request.first_env + np.arange(request.num_envs)[:, None],
            agent=np.arange(agents)[None],
            episode=column - 1,
            step=column,
        )
        self._state = game.start(self._now)
        self._ended = np.ones(request.num_envs, np.bool_)

    def reset(self, out: Sequence[ObservationRows]) -> None:
        """Begin an episode in every env and write its first observations."""
        now = self._now
        self._now = replace(now, episode=now.episode + 1, step=np.zeros_like(now.step))
        self._state = self._game.start(self._now)
        self._ended = np.zeros_like(self._ended)
        self._write(out)

    def step(
        self,
        actions: Sequence[np.ndarray],
        outcome: Sequence[OutcomeRows],
        out: Sequence[ObservationRows],
    ) -> None:
        """Play one step in every env; those that ended begin an episode instead."""
        game, now, begins = self._game, self._now, self._ended[:, None]
        after = replace(now, episode=now.episode + begins, step=np.where(begins, 0, now.step + 1))
        state, reward, terminated = game.play(self._state, self._joined(actions), now, after)
        self._state = np.where(begins, game.start(after), state)
        terminated = terminated & ~self._ended
        truncated = (after.step[:, 0] >= game.limit) & ~terminated & ~self._ended
        for members, rows in zip(self._sets, outcome, strict=True):
            rows.reward[:] = np.where(begins, 0, reward)[:, members]
            rows.terminated[:] = terminated[:, None]
            rows.truncated[:] = truncated[:, None]
        self._now, self._ended = after, terminated | truncated
        self._write(out)

    def save(self) -> dict[str, np.ndarray]:
        """Everything that is not in the request: `[E]`, and the state `[E, A]`."""
        return {
            "episode": self._now.episode[:, 0].copy(),
            "step": self._now.step[:, 0].copy(),
            "ended": self._ended.copy(),
            "state": self._state.copy(),
        }

    def load(self, state: Mapping[str, np.ndarray], seen: Sequence[ObservationRows]) -> bool:
        """Bring back a saved state; False where what was `seen` belongs to another."""
        if state["state"].shape != self._state.shape:
            return False
        self._now = replace(
            self._now, episode=state["episode"][:, None].copy(), step=state["step"][:, None].copy()
        )
        self._state, self._ended = state["state"].copy(), state["ended"].copy()
        shown = self._game.show(self._state, self._now)
        pairs = zip(self._sets, seen, strict=True)
        same = all(np.array_equal(shown[:, members], rows.obs["obs"]) for members, rows in pairs)
        self._ended |= not same
        return same

    def close(self) -> None:
        """Nothing to free."""

    def _joined(self, actions: Sequence[np.ndarray]) -> np.ndarray:
        """The actions of all sets as `[E, A, *shape]`."""
        lead = (self.spec.num_envs, len(self.spec.agents))
        action = self._game.agent.action.field
        joined = np.zeros(lead + action.shape, action.dtype)
        for members, taken in zip(self._sets, actions, strict=True):
            joined[:, members] = taken
        return joined

    def _write(self, out: Sequence[ObservationRows]) -> None:
        shown = self._game.show(self._state, self._now)
        for members, rows in zip(self._sets, out, strict=True):
            rows.obs["obs"][:] = shown[:, members]
            rows.first[:] = self._now.step == 0
            rows.valid[:] = ~self._ended[:, None]
            rows.acting[:] = True


def _make(toy: type[Any], request: EnvRequest) -> ToyEnv:
    """Build a batch of `toy`, with the request's options as its fields."""
    if request.wrappers:
        raise ConfigError(f"toy env {request.name!r} takes no wrappers: {request.wrappers}")
    options = dict(request.options)
    agents = options.pop("agents", 1)
    known = ["agents", *(entry.name for entry in fields(toy))]
    for name in options:
        if name not in known:
            hint = nearest(name, known) or f": it has {', '.join(known)}"
            raise ConfigError(f"toy env {request.name!r} has no option {name!r}{hint}")
    numbers = {"agents": agents} | {k: v for k, v in options.items() if isinstance(v, int)}
    for name, value in numbers.items():
        if value < 1:
            raise ConfigError(f"toy env {request.name!r}: {name} is {value}, must be at least 1")
    return ToyEnv(toy(**options), agents, request)


def _nowhere(now: Moment) -> np.ndarray:
    """[E] bool: no env terminates."""
    return np.zeros(len(now.env), np.bool_)
