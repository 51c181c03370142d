"""A match: one env batch played by given policies until every lane has played its episodes.

A fixed number a lane, because the first N to finish would favour short episodes. Nobody wants its
samples: the lanes of a policy lie in two rows that take turns. An episode in which an env fails is not
counted: the env is built again and plays another one instead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from srl.core.algorithm import Policy
from srl.core.arrays import Arrays, subset
from srl.core.block import Block, input_names, route_layout
from srl.core.env import AgentSpec, Env
from srl.core.errors import EnvError
from srl.core.fault import EnvFault
from srl.core.telemetry import Episode
from srl.rollout.episodes import Episodes
from srl.rollout.opponents import Opponents
from srl.rollout.quarantine import Quarantine, recover, replace_env


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

    def forget(self, envs: np.ndarray) -> None:
        """Nothing came of row 0 in these envs, `[E]` bool: their episodes are lost."""
        lanes = np.repeat(envs, len(self.player.agents))
        for name in ("reward", "terminated", "truncated", "valid"):
            self.block[name][0][lanes] = 0
        self.episodes.start_over(lanes)

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
    """Steps one env batch; `env`, which is another one after a failure, is the caller's to close.

    Implements `srl.rollout.quarantine.Plays`.
    """

    def __init__(
        self,
        env: Env,
        players: Sequence[Player],
        *,
        episodes_per_lane: int,
        sampled: bool = False,
        quarantine: Quarantine | None = None,
    ) -> None:
        """Play with the most likely actions, or with sampled ones."""
        self.env = env
        self.quarantine = quarantine
        self.last_error: BaseException | None = None
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
        out = [s.block.observation_rows(s.player.agent, 0) for s in self._seats]
        try:
            self.env.reset(out)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything
            recover(self, error, -1, out)

    def step(self) -> bool:
        """Play one step in every env; False when all have played enough."""
        if self.is_done:
            return False
        actions = [seat.act() for seat in self._seats]
        outcome = [seat.block.outcome_rows(0) for seat in self._seats]
        out = [seat.block.observation_rows(seat.player.agent, 1) for seat in self._seats]
        try:
            self.env.step(actions, outcome, out)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything
            recover(self, error, 0, out)
        for seat in self._seats:
            seat.advance()
        return True

    def save(self) -> Arrays:
        """Env and lanes, between two steps."""
        state = {f"env.{name}": array for name, array in self.env.save().items()}
        for number, seat in enumerate(self._seats):
            state |= {f"{number}.{name}": array for name, array in seat.save().items()}
        if self.quarantine is not None:
            failures = self.quarantine.save()
            state |= {f"quarantine.{name}": array for name, array in failures.items()}
        return state

    def load(self, state: Mapping[str, np.ndarray]) -> bool:
        """Take over what `save` returned; False where the env could not be brought back."""
        for number, seat in enumerate(self._seats):
            seat.load(subset(state, f"{number}."))
        if self.quarantine is not None:
            self.quarantine.load(subset(state, "quarantine."))
            if self.quarantine.rebuilds:
                replace_env(self, self.quarantine.remake(), 0)
        seen = [seat.block.observation_rows(seat.player.agent, 0) for seat in self._seats]
        return self.env.load(subset(state, "env."), seen)

    def forget(self, envs: np.ndarray, t: int) -> None:
        """Nothing came of row `t` in these envs, `[E]` bool: their episodes are lost."""
        if t >= 0:
            for seat in self._seats:
                seat.forget(envs)

    def park(self, envs: Sequence[int]) -> None:
        """Without an env its lanes cannot play their episodes."""
        if len(envs):
            raise EnvError(f"{self.last_error}; it keeps failing") from self.last_error

    def take_env(self, env: Env, row: int) -> None:
        """Go on with another batch."""
        self.env = env

    def episodes_at(self, t: int) -> np.ndarray:
        """`[E]`: number of the episode of each env."""
        episodes = [s.block["episode"].reshape(s.block.layout.envs, -1) for s in self._seats]
        return np.concatenate(episodes, axis=1).max(axis=1)

    def batch_fault(self, what: str, kind: str, t: int) -> EnvFault:
        """What is wrong with the whole batch; its actions are not known."""
        spec = self.env.spec
        seed = self.quarantine.origin.seed if self.quarantine is not None else -1
        return EnvFault(
            env=None,
            kind=kind,
            what=what,
            message=f"env {spec.name!r} {what}; it is a batch of {spec.num_envs}, seed {seed}",
            seed=seed,
            episode=0,
            step=0,
            actions={name: np.zeros((0, spec.num_envs)) for name in spec.agents},
            note="the actions of an evaluation are not kept",
        )
