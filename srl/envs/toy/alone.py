"""Toys of agents that do not meet: each lane is a task of its own. Axes: `E` envs, `A` agents."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from srl.core.env import MASK_NAME, AgentSpec, Box, Discrete, Observation
from srl.envs.toy.base import Game, Moment, nobody, one_hot


@dataclass(frozen=True, kw_only=True)
class Identity(Game):
    """Name the symbol that is shown: reward 1 where right; truncated after `length` steps."""

    choices: int = 4
    length: int = 16
    shown: Literal["vector", "integer"] = "vector"
    """The symbol as a one-hot float32 vector, or as a categorical int64."""

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
        return self.start(after), (action == state).astype(np.float32), nobody(now)

    def show(self, state: np.ndarray, now: Moment) -> dict[str, np.ndarray]:
        """The symbol."""
        if self.shown == "integer":
            return {"obs": state.astype(np.int64)}
        return {"obs": one_hot(state, self.choices)}


@dataclass(frozen=True, kw_only=True)
class Pixels(Game):
    """Identity in pictures: `[size, size, 1]` uint8, the symbol is the place of a bright stripe."""

    choices: int = 4
    length: int = 16
    size: int = 36
    """Pixels a side; 36 is the least that the three convolutions of the Nature DQN accept."""

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
        return self.start(after), (action == state).astype(np.float32), nobody(now)

    def show(self, state: np.ndarray, now: Moment) -> dict[str, np.ndarray]:
        """The picture of the symbol."""
        stripe = np.arange(self.size) * self.choices // self.size
        columns = np.where(state[..., None] == stripe, np.uint8(255), np.uint8(0))
        picture = columns[..., None, :, None]
        return {"obs": np.broadcast_to(picture, (*state.shape, self.size, self.size, 1))}


@dataclass(frozen=True, kw_only=True)
class Chain(Game):
    """A corridor: action 1 goes right, 0 left; the far end pays 1 and terminates.

    Standing still at the left end pays `bait` a step, so that only an agent that looks ahead
    walks. With several agents the first at its end terminates the episode of all.
    """

    length: int = 8
    bait: float = 0.001
    steps: int = 64
    """Steps after which an episode is truncated."""

    @property
    def agent(self) -> AgentSpec:
        """What each agent sees and does."""
        return AgentSpec((Observation("obs", (self.length,), "float32"),), Discrete(2))

    @property
    def limit(self) -> int:
        """Steps after which an episode is truncated."""
        return self.steps

    def play(
        self, state: np.ndarray, action: np.ndarray, now: Moment, after: Moment
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Walk, and pay."""
        place = np.clip(state + np.where(action == 1, 1, -1), 0, self.length - 1)
        goal = place == self.length - 1
        stayed = (state == 0) & (place == 0)
        reward = np.where(goal, 1.0, np.where(stayed, self.bait, 0.0))
        return place.astype(np.float32), reward.astype(np.float32), goal.any(1, keepdims=True)

    def show(self, state: np.ndarray, now: Moment) -> dict[str, np.ndarray]:
        """The place, one-hot."""
        return {"obs": one_hot(state, self.length)}


@dataclass(frozen=True, kw_only=True)
class Target(Game):
    """Answer the number that is shown: reward -|action - number|; truncated after `length`."""

    length: int = 16

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
        return self.start(after), -np.abs(answer - state), nobody(now)

    def show(self, state: np.ndarray, now: Moment) -> dict[str, np.ndarray]:
        """The number."""
        return {"obs": state[..., None]}


@dataclass(frozen=True, kw_only=True)
class Counter(Game):
    """Shows `[step, episode, env, agent]`, rewards the step's number; ends after `length` steps.

    For exact tests of rows, masks and episode boundaries: nothing depends on actions or seed.
    """

    length: int = 5
    ends: Literal["terminated", "truncated"] = "terminated"

    @property
    def agent(self) -> AgentSpec:
        """What each agent sees and does."""
        return AgentSpec((Observation("obs", (4,), "float32"),), Discrete(2))

    @property
    def limit(self) -> int:
        """Steps of an episode."""
        return self.length

    def play(
        self, state: np.ndarray, action: np.ndarray, now: Moment, after: Moment
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Count."""
        reward = np.broadcast_to(now.step, state.shape).astype(np.float32)
        return state, reward, (after.step >= self.length) & (self.ends == "terminated")

    def show(self, state: np.ndarray, now: Moment) -> dict[str, np.ndarray]:
        """Step, episode, env and agent."""
        numbers = np.broadcast_arrays(now.step, now.episode, now.env, now.agent)
        return {"obs": np.stack(numbers, -1).astype(np.float32)}


@dataclass(frozen=True, kw_only=True)
class Recall(Game):
    """Name, when told to go, the cue that only the first step showed: 1 where right, and over.

    Shown is `[cue one-hot, go]`. Actions before the go do nothing. Without memory the best mean
    return is 1 / `choices`.
    """

    choices: int = 4
    delay: int = 8
    """Steps from the cue to the go, at least."""
    jitter: int = 0
    """Steps the delay of an episode may be longer; how much is random."""

    LEAST: ClassVar[Mapping[str, float]] = {"jitter": 0}

    @property
    def agent(self) -> AgentSpec:
        """What each agent sees and does."""
        seen = Observation("obs", (self.choices + 1,), "float32")
        return AgentSpec((seen,), Discrete(self.choices))

    @property
    def limit(self) -> int:
        """More than any episode has: all terminate."""
        return self.delay + self.jitter + 2

    def start(self, now: Moment) -> np.ndarray:
        """A random cue."""
        return now.choice(self.choices).astype(np.float32)

    def play(
        self, state: np.ndarray, action: np.ndarray, now: Moment, after: Moment
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Reward the cue, at the go."""
        goes = self._goes(now)
        return state, ((action == state) & goes).astype(np.float32), goes

    def show(self, state: np.ndarray, now: Moment) -> dict[str, np.ndarray]:
        """The cue, nothing, the go."""
        cue = one_hot(state, self.choices) * (now.step == 0)[..., None]
        go = np.broadcast_to(self._goes(now), state.shape)[..., None]
        return {"obs": np.concatenate([cue, go.astype(np.float32)], -1)}

    def _goes(self, now: Moment) -> np.ndarray:
        """[E, 1] bool: the step at which the cue must be named; the same for agents of one env."""
        longer = now.beginning.choice(self.jitter + 1, draw=1)[:, :1]
        return now.step == self.delay + longer


@dataclass(frozen=True, kw_only=True)
class Masked(Game):
    """Choose the allowed action whose shown value is highest: 1 where right; `length` steps.

    Shown are a value an action, `obs`, and `action_mask`. An action that the mask forbids is an
    error: whoever plays this heeds masks.
    """

    choices: int = 5
    length: int = 16

    @property
    def agent(self) -> AgentSpec:
        """What each agent sees and does."""
        values = Observation("obs", (self.choices,), "float32")
        mask = Observation(MASK_NAME, (self.choices,), "bool")
        return AgentSpec((values, mask), Discrete(self.choices))

    @property
    def limit(self) -> int:
        """Steps of an episode."""
        return self.length

    def play(
        self, state: np.ndarray, action: np.ndarray, now: Moment, after: Moment
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Reward the best of what is allowed."""
        shown = self.show(state, now)
        best = np.where(shown[MASK_NAME], shown["obs"], -np.inf).argmax(-1)
        return state, (action == best).astype(np.float32), nobody(now)

    def show(self, state: np.ndarray, now: Moment) -> dict[str, np.ndarray]:
        """The values, and which of them can be had: one surely, any other as often as not."""
        draws = range(1, self.choices + 1)
        values = np.stack([now.uniform(draw) for draw in draws], -1)
        some = np.stack([now.choice(2, self.choices + draw) for draw in draws], -1) == 1
        surely = now.choice(self.choices)[..., None] == np.arange(self.choices)
        return {"obs": values, MASK_NAME: some | surely}
