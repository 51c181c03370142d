"""A match: one env batch played by given policies until every lane has played its episodes.

A fixed number a lane, because the first N to finish would favour short episodes. Nobody wants its
samples: the lanes of a policy lie in two rows that take turns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from srl.core.algorithm import Policy
from srl.core.arrays import Arrays, subset
from srl.core.block import Block, input_names, route_layout
from srl.core.env import AgentSpec, Env
from srl.core.telemetry import Episode
from srl.rollout.episodes import Episodes
from srl.rollout.opponents import Opponents


@dataclass(frozen=True)
class Player:
    """A policy that takes part."""

    name: str
    agent: AgentSpec
    """What its agents see and do."""
    policy: Policy
    agents: tuple[int, ...]
    """Indices, in the env, of the agents it plays."""
    counts: bool = True
    """Whether its returns are of interest: not those of a frozen opponent."""


class _Seat:
    """The lanes of one player."""

    def __init__(self, player: Player, num_envs: int, *, sampled: bool) -> None:
        num_lanes = num_envs * len(player.agents)
        records = replace(player.policy.records, chunk=1, burn_in=0)
        layout = route_layout(player.agent, records, rollout=1, lanes=num_lanes, envs=num_envs)
        self.player = player
        self.block = Block.allocate(layout)
        self.carry = Block.allocate(replace(layout, rows=1))
        self.episodes = Episodes(num_lanes, player.name)
        self.opponents = Opponents(records.members, num_lanes, 0)
        self.played: list[list[Episode]] = [[] for _ in range(num_lanes)]
        self._inputs = input_names(player.agent, records)
        self._act = player.policy.act if sampled else player.policy.act_greedy

    def act(self) -> np.ndarray:
        """Answer row 0; its actions, `[E, A, *shape]`."""
        self.opponents.show(self.block, 0)
        self.block.answer(self._act(self.block.inputs(self._inputs, 0)), 0)
        actions = self.block["action"][0]
        return actions.reshape(self.block.layout.envs, -1, *actions.shape[1:])

    def advance(self) -> None:
        """Count what row 0 brought; row 1 becomes row 0."""
        for lane, episode in self.episodes.observe(self.block, 0).items():
            self.played[lane].append(episode)
        self.carry.continue_from(self.block)
        self.block.begin_with(self.carry)

    def save(self) -> Arrays:
        """The row shown, the episodes under way and those played, copied."""
        state: Arrays = {f"under_way.{k}": v for k, v in self.episodes.save().items()}
        state |= {f"opponents.{k}": v for k, v in self.opponents.save().items()}
        played = [(e.agent_return, e.length) for lane in self.played for e in lane]
        return state | {
            "block": self.block.buffer.copy(),
            "played": np.array(played, np.float64).reshape(-1, 2),
            "played_by_lane": np.array([len(lane) for lane in self.played], np.int64),
        }

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned."""
        np.copyto(self.block.buffer, state["block"])
        self.episodes.load(subset(state, "under_way."))
        self.opponents.load(subset(state, "opponents."))
        rest = iter(state["played"])
        for lane, count in enumerate(state["played_by_lane"]):
            rows = [next(rest) for _ in range(int(count))]
            name = self.player.name
            self.played[lane] = [Episode(float(value), int(length), name) for value, length in rows]


class Match:
    """Steps one env batch; the env is the caller's to close."""

    def __init__(
        self, env: Env, players: Sequence[Player], *, episodes_per_lane: int, sampled: bool = False
    ) -> None:
        """Play with the most likely actions, or with sampled ones."""
        self.env = env
        self._wanted = episodes_per_lane
        self._seats = [_Seat(p, env.spec.num_envs, sampled=sampled) for p in players]
        self._counted = [seat for seat in self._seats if seat.player.counts]

    @property
    def is_done(self) -> bool:
        """Whether every lane that counts has played its episodes."""
        return all(len(lane) >= self._wanted for seat in self._counted for lane in seat.played)

    def episodes(self) -> dict[str, list[list[Episode]]]:
        """Player that counts to the episodes that count, by lane `[E, A]`."""
        return {
            seat.player.name: [lane[: self._wanted] for lane in seat.played]
            for seat in self._counted
        }

    def returns(self) -> dict[str, list[float]]:
        """Player to the raw returns of its episodes, over all of its lanes."""
        return {
            name: [episode.agent_return for lane in lanes for episode in lane]
            for name, lanes in self.episodes().items()
        }

    def begin(self) -> None:
        """Begin the first episodes."""
        self.env.reset([s.block.observation_rows(s.player.agent, 0) for s in self._seats])

    def step(self) -> bool:
        """Play one step in every env; False when all have played enough."""
        if self.is_done:
            return False
        self.env.step(
            [seat.act() for seat in self._seats],
            [seat.block.outcome_rows(0) for seat in self._seats],
            [seat.block.observation_rows(seat.player.agent, 1) for seat in self._seats],
        )
        for seat in self._seats:
            seat.advance()
        return True

    def save(self) -> Arrays:
        """Env and lanes, between two steps."""
        state = {f"env.{name}": array for name, array in self.env.save().items()}
        for number, seat in enumerate(self._seats):
            state |= {f"{number}.{name}": array for name, array in seat.save().items()}
        return state

    def load(self, state: Mapping[str, np.ndarray]) -> bool:
        """Take over what `save` returned; False where the env could not be brought back."""
        for number, seat in enumerate(self._seats):
            seat.load(subset(state, f"{number}."))
        seen = [seat.block.observation_rows(seat.player.agent, 0) for seat in self._seats]
        return self.env.load(subset(state, "env."), seen)
