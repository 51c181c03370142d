"""A group is the envs of an actor that step together; an actor's groups form its ring.

While one group waits for its actions the next one steps, so inference is hidden where
inference latency <= step time x (groups - 1).
"""

from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np

from srl.core.arrays import Arrays, subset
from srl.core.env import Env
from srl.core.telemetry import Episode
from srl.rollout.lanes import Lanes, RouteEnds


class Group:
    """One env batch and its lanes on every route."""

    def __init__(self, index: int, env: Env, routes: Sequence[RouteEnds], first_env: int) -> None:
        num_agents = len(env.spec.agents)
        self.index = index
        self.env = env
        self.row = 0
        self.burn_in = 0
        """Rows that begin a block already filled; the same on every route."""
        self.last_row = 0
        self.lanes = []
        for ends in routes:
            envs = first_env + np.arange(env.spec.num_envs)
            lane_ids = (envs[:, None] * num_agents + np.array(ends.agents)).reshape(-1)
            self.lanes.append(Lanes(ends, lane_ids))
            self.burn_in = ends.records.burn_in
            self.last_row = ends.layout.rows - 1
        self.unanswered = 0
        """Routes whose actions have not come yet."""
        self.parked = True
        """Waits for leave to begin a block."""

    def reset(self) -> None:
        """Begin an episode in every env."""
        self.env.reset([lanes.carry_rows() for lanes in self.lanes])

    def begin(self) -> bool:
        """Begin a block on every route; False while one of them has no leave to."""
        granted = [lanes.acquire() for lanes in self.lanes]  # every route, also after a refusal
        if not all(granted):
            return False
        self.parked, self.row = False, self.burn_in
        self.ask()
        return True

    def ask(self) -> None:
        """Ask for the actions of the current row on every route."""
        self.unanswered = len(self.lanes)
        for lanes in self.lanes:
            lanes.ask(self.index, self.row)

    def step(self) -> None:
        """Act: row `t` gets its outcome, row `t + 1` its observation."""
        t = self.row
        self.env.step(
            [lanes.actions(t) for lanes in self.lanes],
            [lanes.outcome_rows(t) for lanes in self.lanes],
            [lanes.observation_rows(t + 1) for lanes in self.lanes],
        )

    def observe(self) -> list[Episode]:
        """Take in what the step brought; returns the episodes that ended."""
        finished = []
        for lanes in self.lanes:
            finished += lanes.observe(self.row)
        self.row += 1
        return finished

    def transitions(self) -> tuple[int, int]:
        """Env and agent transitions of the row just stepped (final rows are none)."""
        t, num_envs = self.row - 1, self.env.spec.num_envs
        alive: list[np.ndarray] = []
        agent_steps = 0
        for lanes in self.lanes:
            fields = lanes.block.fields
            valid = fields["valid"][t]
            agent_steps += int(np.count_nonzero(valid & fields["acting"][t]))
            is_alone = len(valid) == num_envs
            alive.append(valid if is_alone else valid.reshape(num_envs, -1).any(axis=1))
        return int(np.count_nonzero(reduce(np.logical_or, alive))), agent_steps

    def cut(self) -> None:
        """Send the full blocks and wait for leave to begin the next."""
        for lanes in self.lanes:
            lanes.cut()
        self.parked = True

    def save(self) -> Arrays:
        """Env, carried rows, place in the block, episode accounts."""
        state: Arrays = {f"env.{name}": array for name, array in self.env.save().items()}
        state["place"] = np.array([self.row, self.unanswered, self.parked], np.int64)
        for number, lanes in enumerate(self.lanes):
            slot = -1 if lanes.grant is None else lanes.grant.slot
            min_version = -1 if lanes.grant is None else lanes.grant.min_version
            state[f"{number}.grant"] = np.array([slot, min_version], np.int64)
            state[f"{number}.carry"] = lanes.carry.buffer.copy()
            episodes = lanes.episodes.save()
            state |= {f"{number}.episodes.{name}": array for name, array in episodes.items()}
            opponents = lanes.opponents.save()
            state |= {f"{number}.opponents.{name}": array for name, array in opponents.items()}
        return state

    def load(self, state: Mapping[str, np.ndarray]) -> bool:
        """Take over what `save` returned; False where the env could not be brought back."""
        self.row, self.unanswered = (int(n) for n in state["place"][:2])
        self.parked = bool(state["place"][2])
        for number, lanes in enumerate(self.lanes):
            slot, min_version = (int(n) for n in state[f"{number}.grant"])
            if slot >= 0:
                lanes.grant = lanes.ends.producer.resume(slot, min_version)
            np.copyto(lanes.carry.buffer, state[f"{number}.carry"])
            lanes.episodes.load(subset(state, f"{number}.episodes."))
            lanes.opponents.load(subset(state, f"{number}.opponents."))
        seen = [
            lanes.carry_rows() if lanes.grant is None else lanes.observation_rows(self.row)
            for lanes in self.lanes
        ]
        if self.env.load(subset(state, "env."), seen):
            return True
        self._start_over()
        return False

    def _start_over(self) -> None:
        """The episodes under way are gone: give the half-filled blocks back and reset."""
        for lanes in self.lanes:
            lanes.start_over(self.row)
        self.parked, self.unanswered = True, 0
        self.reset()
