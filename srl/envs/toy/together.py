"""Toys in which agents meet: they compete, take turns, die before others. `E` envs, `A` agents."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from srl.core.env import AgentSpec, Discrete, Observation
from srl.envs.toy.base import Game, Moment, nobody, one_hot


@dataclass(frozen=True, kw_only=True)
class Match(Game):
    """Red against blue: whoever names the symbol shown to it, where the others do not, wins.

    The reward is the share of the own team that is right, less that of the other team, plus
    `share` where the agent itself is right. A team that learned gets about 1 - 1 / `choices` a
    step from one that acts at random; of two that learned, each agent gets `share` a step.
    """

    agents: int = 1
    """Agents a team: `red_0`, ..., `blue_0`, ..."""
    choices: int = 4
    length: int = 16
    share: float = 0.1
    central: bool = False
    """Show all symbols, as `state`, to a central critic."""

    LEAST: ClassVar[Mapping[str, float]] = {"share": 0}

    @property
    def names(self) -> tuple[str, ...]:
        """The agents' names, in lane order."""
        return tuple(f"{team}_{a}" for team in ("red", "blue") for a in range(self.agents))

    @property
    def agent(self) -> AgentSpec:
        """What each agent sees and does."""
        symbol = Observation("obs", (self.choices,), "float32")
        symbols = Observation("state", (len(self.names) * self.choices,), "float32")
        return AgentSpec((symbol,), Discrete(self.choices), (symbols,) if self.central else ())

    @property
    def limit(self) -> int:
        """Steps of an episode."""
        return self.length

    def start(self, now: Moment) -> np.ndarray:
        """A random symbol an agent."""
        return now.choice(self.choices).astype(np.float32)

    def play(
        self, state: np.ndarray, action: np.ndarray, now: Moment, after: Moment
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Compare the teams, draw the next symbols."""
        right = (action == state).astype(np.float32)
        red, blue = right[:, : self.agents].mean(1), right[:, self.agents :].mean(1)
        lead = np.repeat(np.stack([red - blue, blue - red], 1), self.agents, 1)
        return self.start(after), lead + np.float32(self.share) * right, nobody(now)

    def show(self, state: np.ndarray, now: Moment) -> dict[str, np.ndarray]:
        """The own symbol."""
        return {"obs": one_hot(state, self.choices)}

    def shared(self, state: np.ndarray, now: Moment) -> dict[str, np.ndarray]:
        """The symbols of all."""
        symbols = one_hot(state, self.choices).reshape(len(state), -1)
        return {"state": symbols} if self.central else {}


@dataclass(frozen=True, kw_only=True)
class Turns(Game):
    """Agents name their symbol in turn, and are paid 1 for it when the next one has moved.

    Who waits sees its symbol too, and does not act. An episode terminates after a random number of
    steps; what is owed then is paid.
    """

    agents: int = 2
    choices: int = 4
    length: int = 6
    """Steps of an episode, at least."""
    jitter: int = 6
    """Steps an episode may be longer; how many is random."""

    LEAST: ClassVar[Mapping[str, float]] = {"jitter": 0}

    @property
    def agent(self) -> AgentSpec:
        """What each agent sees and does."""
        return AgentSpec((Observation("obs", (self.choices,), "float32"),), Discrete(self.choices))

    @property
    def limit(self) -> int:
        """More than any episode has: all terminate."""
        return self.length + self.jitter + 1

    def play(
        self, state: np.ndarray, action: np.ndarray, now: Moment, after: Moment
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Pay for the move before; the state is what each agent is owed."""
        owed = (self.acting(now) & (action == now.choice(self.choices))).astype(np.float32)
        longer = now.beginning.choice(self.jitter + 1, draw=1)[:, :1]
        ends = after.step >= self.length + longer
        return owed, np.where(ends, state + owed, state), ends

    def show(self, state: np.ndarray, now: Moment) -> dict[str, np.ndarray]:
        """The own symbol, new at every step."""
        return {"obs": one_hot(now.choice(self.choices), self.choices)}

    def acting(self, now: Moment) -> np.ndarray:
        """[E, A] bool: who is to move."""
        return now.agent == now.step % self.agents


@dataclass(frozen=True, kw_only=True)
class Mortal(Game):
    """Name the symbol that is shown, as long as you live: reward 1 where right.

    Each agent dies after a random number of steps, 1 to twice `length`; who lives at `length` is
    truncated. The others go on without the dead.
    """

    agents: int = 3
    choices: int = 4
    length: int = 8

    @property
    def agent(self) -> AgentSpec:
        """What each agent sees and does."""
        return AgentSpec((Observation("obs", (self.choices,), "float32"),), Discrete(self.choices))

    @property
    def limit(self) -> int:
        """Steps of an episode at most."""
        return self.length

    def play(
        self, state: np.ndarray, action: np.ndarray, now: Moment, after: Moment
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Reward the symbol; some die."""
        life = 1 + now.beginning.choice(2 * self.length, draw=1)
        right = action == now.choice(self.choices)
        return state, right.astype(np.float32), after.step >= life

    def show(self, state: np.ndarray, now: Moment) -> dict[str, np.ndarray]:
        """The own symbol, new at every step."""
        return {"obs": one_hot(now.choice(self.choices), self.choices)}
