"""The actor: steps envs, asks for actions, fills blocks. Never imports torch by itself."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from srl.core.arrays import Arrays, subset
from srl.core.env import Env
from srl.core.errors import EnvError
from srl.core.telemetry import Telemetry
from srl.rollout.lanes import RouteEnds
from srl.rollout.quarantine import Quarantine, Recovery
from srl.rollout.ring import Group


class Actor:
    """A ring of groups of envs.

    reads: actions, by an inference stream
    writes: blocks, to a sample stream
    waits for: actions; leave to begin a block
    unblocked by: policy workers; the trainer's gate
    """

    def __init__(
        self,
        name: str,
        envs: Sequence[Env],
        routes: Sequence[RouteEnds],
        *,
        first_env: int,
        recovery: Recovery | None = None,
    ) -> None:
        """Step `envs`, one batch a group; by a `recovery` those that fail are built again."""
        self.name = name
        self.telemetry = Telemetry()
        self.waiting = "wait_for_credit"
        self._routes = routes
        self._is_restored = False
        self._ring: list[Group] = []
        for index, env in enumerate(envs):
            num_envs = env.spec.num_envs
            quarantine = recovery and Quarantine(recovery, self.telemetry, index, num_envs)
            self._ring.append(Group(index, env, routes, first_env, quarantine))
            first_env += num_envs

    def open(self) -> None:
        """Begin the first episodes, unless they were brought back."""
        if not self._is_restored:
            for group in self._ring:
                with self.telemetry.time("env"):
                    group.reset()
        self._check_out()

    def step(self) -> bool:
        """Move every group on that can move; False where all of them wait."""
        with self.telemetry.time("inference"):
            self._poll()
        moved = False
        for group in self._ring:
            if group.parked:
                moved |= self._begin(group)
            elif not group.unanswered:
                self._advance(group)
                moved = True
        self.waiting = "wait_for_credit" if self._all_parked() else "wait_for_action"
        return moved

    def pollables(self) -> Sequence[Any]:
        """Every connection of every route."""
        ends = [end for route in self._routes for end in (route.producer, route.inference)]
        return [pollable for end in ends for pollable in end.pollables()]

    def close(self) -> None:
        """Close envs and streams."""
        for group in self._ring:
            group.env.close()
        for route in self._routes:
            route.inference.close()
            route.producer.close()

    def save(self) -> Arrays:
        """Groups and policies that live here."""
        state: Arrays = {}
        for group in self._ring:
            state |= {f"group{group.index}.{k}": v for k, v in group.save().items()}
        for number, route in enumerate(self._routes):
            state |= {f"inference{number}.{k}": v for k, v in route.inference.save().items()}
        return state

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned."""
        self._is_restored = True
        for group in self._ring:
            if not group.load(subset(state, f"group{group.index}.")):
                self.telemetry.counters["envs_not_restored"] += group.env.spec.num_envs
        for number, route in enumerate(self._routes):
            route.inference.load(subset(state, f"inference{number}."))

    def _poll(self) -> None:
        for route in self._routes:
            route.producer.poll()
            for index in route.inference.poll():
                self._ring[index].unanswered -= 1

    def _begin(self, group: Group) -> bool:
        with self.telemetry.time("inference"):
            return group.begin()

    def _advance(self, group: Group) -> None:
        """Step the env, observe, and ask for the next actions or send the full block."""
        telemetry = self.telemetry
        with telemetry.time("env"):
            goes_on = group.step()
        if not goes_on:
            self._check_out()
            return
        with telemetry.time("observe"):
            telemetry.episodes += group.observe()
            env_steps, agent_steps = group.transitions()
            telemetry.counters["env_steps"] += env_steps
            telemetry.counters["agent_steps"] += agent_steps
        if group.row == group.last_row:
            with telemetry.time("send"):
                group.cut()
            self._begin(group)
        else:
            with telemetry.time("inference"):
                group.ask()

    def _all_parked(self) -> bool:
        return all(group.parked for group in self._ring)

    def _check_out(self) -> None:
        """Raise EnvError where no group has an env left to play."""
        if all(group.is_out for group in self._ring):
            num_envs = sum(group.env.spec.num_envs for group in self._ring)
            last = next((g.last_error for g in self._ring if g.last_error is not None), None)
            raise EnvError(
                f"all {num_envs} envs of {self.name} keep failing and are parked; mend the env "
                "(errors/ has files for srl repro), or raise --env.max-failures; the last failure: "
                f"{last}"
            ) from last
