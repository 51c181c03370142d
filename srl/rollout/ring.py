"""A group is the envs of an actor that step together; an actor's groups form its ring.

While one group waits for its actions the next one steps, so inference is hidden where
inference latency <= step time x (groups - 1).
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from srl.core.arrays import Arrays, subset
from srl.core.env import Env, Quarantines
from srl.core.fault import EnvFault
from srl.core.telemetry import Episode
from srl.rollout.lanes import Lanes, RouteEnds
from srl.rollout.quarantine import Quarantine, recover, replace_env


class Group:
    """One env batch and its lanes on every route; implements `srl.rollout.quarantine.Plays`."""

    def __init__(
        self,
        index: int,
        env: Env,
        routes: Sequence[RouteEnds],
        first_env: int,
        quarantine: Quarantine | None = None,
    ) -> None:
        """With a `quarantine` the group goes on where envs fail; without, it raises what they do."""
        self.env = env
        self.quarantine = quarantine
        self.last_error: BaseException | None = None
        num_agents = len(env.spec.agents)
        self.index = index
        self.is_out = False
        """All of its envs are parked: it does nothing any more."""
        self._first_env = first_env
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
        self._reset_row: int | None = None
        """The row, in the block being filled, that the batch was reset at; None: in one before."""

    def reset(self) -> None:
        """Begin an episode in every env."""
        rows = [lanes.carry_rows() for lanes in self.lanes]
        self._reset_row = self.burn_in
        try:
            self.env.reset(rows)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything
            recover(self, error, -1, rows)

    def begin(self) -> bool:
        """Begin a block on every route; False while one of them has no leave to."""
        if self.is_out:
            return False
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

    def step(self) -> bool:
        """Act: row `t` gets its outcome, row `t + 1` its observation; False: the group is out."""
        t = self.row
        try:
            self.env.step(
                [lanes.actions(t) for lanes in self.lanes],
                [lanes.outcome_rows(t) for lanes in self.lanes],
                [lanes.observation_rows(t + 1) for lanes in self.lanes],
            )
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything
            recover(self, error, t, [lanes.observation_rows(t + 1) for lanes in self.lanes])
        return not self.is_out

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
        self.parked, self._reset_row = True, None

    def locate(self, variables: Mapping[str, Any], what: str) -> EnvFault:
        """The batch, which hangs in a method called by this."""
        t = int(variables.get("t", -1))
        return self.batch_fault(what, "hang", t)

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
        if self.quarantine is not None:
            failures = self.quarantine.save()
            state |= {f"quarantine.{name}": array for name, array in failures.items()}
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
        if self.quarantine is not None:
            self.quarantine.load(subset(state, "quarantine."))
            if self.quarantine.rebuilds:
                replace_env(self, self.quarantine.remake(), self.burn_in)
                self._reset_row = None
            self.park(np.flatnonzero(self.quarantine.parked).tolist())
        if self.is_out:
            return True
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

    def forget(self, envs: np.ndarray, t: int) -> None:
        """Nothing came of row `t` in these envs, `[E]` bool: their episodes under way are lost."""
        if t < 0:
            return
        for lanes in self.lanes:
            ends = lanes.outcome_rows(t)
            for array in (ends.reward, ends.terminated, ends.truncated):
                array[envs] = 0
        living = reduce(np.logical_or, [lanes.living(t) for lanes in self.lanes])
        for lanes in self.lanes:
            lanes.forget(envs & living, t)

    def park(self, envs: Sequence[int]) -> None:
        """Play these envs no more; where none is left the group is out, and gives its blocks back."""
        if self.quarantine is None or not len(envs):
            return
        if isinstance(self.env, Quarantines):
            for e in envs:
                self.env.park(e)
        self.is_out = bool(self.quarantine.parked.all())
        if self.is_out:
            for lanes in self.lanes:
                lanes.give_back()
            self.parked, self.unanswered = True, 0
            self.env.close()

    def take_env(self, env: Env, row: int) -> None:
        """Go on with another batch, which shows its first observations at `row`."""
        self.env, self._reset_row = env, row

    def episodes_at(self, t: int) -> np.ndarray:
        """`[E]`: number of the episode of each env at row `t`."""
        episodes = [
            lanes.carry["episode"] if lanes.grant is None else lanes.block.episodes_at(t)
            for lanes in self.lanes
        ]
        by_env = [n.reshape(self.env.spec.num_envs, -1) for n in episodes]
        return np.concatenate(by_env, axis=1).max(axis=1)

    def batch_fault(self, what: str, kind: str, t: int) -> EnvFault:
        """What is wrong with the whole batch: of its actions, those that this block holds."""
        spec, start = self.env.spec, self._reset_row or self.burn_in
        columns: dict[int, np.ndarray] = {}
        for lanes in self.lanes:
            for column, agent in enumerate(lanes.ends.agents):
                taken = [lanes.actions(row)[:, column] for row in range(start, t + 1)]
                shape = (len(taken), spec.num_envs, *lanes.ends.agent.action.field.shape)
                columns[agent] = np.array(taken).reshape(shape)
        actions = {name: columns[number] for number, name in enumerate(spec.agents)}
        seed = self.quarantine.origin.seed if self.quarantine is not None else -1
        last = self._first_env + spec.num_envs - 1
        return EnvFault(
            env=None,
            kind=kind,
            what=what,
            message=(
                f"env {spec.name!r} {what}; they are envs {self._first_env} to {last} of the run "
                f"(lanes 0 to {spec.num_envs - 1} of their batch, stepped together), seed {seed} of "
                f"the batch, row {t} of its block"
            ),
            seed=seed,
            episode=0,
            step=max(t + 1 - start, 0),
            actions=actions,
            note=""
            if self._reset_row is not None
            else "the batch is older than the block whose actions are here",
        )
