"""Plays a policy and says how well it does."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from srl.core.algorithm import Learner, Policy
from srl.core.arrays import subset
from srl.core.collective import Alone
from srl.core.compute import Compute
from srl.core.errors import CheckpointError, ConfigError
from srl.core.experiment import Experiment
from srl.core.spec import spec_of
from srl.core.telemetry import Telemetry
from srl.launch.folder import RunFolder
from srl.launch.graph.env_factory import evaluation_lanes, recovery_of
from srl.launch.graph.plan import Plan, RoutePlan, worker_name
from srl.launch.graph.pool import make_pool, pinned_weights
from srl.learning.checkpoint import Checkpoint, latest_checkpoint, read_checkpoint
from srl.learning.versions import LATEST, VersionStore
from srl.rollout.match import Match, Player
from srl.rollout.quarantine import Quarantine


@dataclass(frozen=True)
class Evaluation:
    """Raw returns of whole episodes."""

    by_policy: dict[str, list[float]]
    is_complete: bool
    """Whether every env played its share: otherwise long episodes are missing."""

    @property
    def returns(self) -> list[float]:
        """Those of every policy."""
        return [value for returns in self.by_policy.values() for value in returns]

    @property
    def mean(self) -> float | None:
        """Their mean; None where it would be of short episodes alone."""
        return float(np.mean(self.returns)) if self.is_complete and self.returns else None


def load_policy(experiment: Experiment[Any], route: RoutePlan, checkpoint: Checkpoint) -> Policy:
    """The policy of a checkpoint, on the CPU; raises CheckpointError where it does not fit."""
    trainer = worker_name("trainer", route.policy, 0)
    if trainer not in checkpoint.sections:
        raise CheckpointError(f"{checkpoint.path} holds no state of {trainer}")
    learner: Learner = experiment.algorithm.make_learner(
        route.agent_spec(), seed=0, compute=Compute(), ranks=Alone()
    )
    learner.load(subset(checkpoint.sections[trainer], "learner."))
    return learner.policy


def load_version(
    experiment: Experiment[Any], route: RoutePlan, store: VersionStore, version: str | int
) -> Policy:
    """A version that was kept, by number or tag, on the CPU."""
    name = str(version)
    if name.isascii() and name.isdigit():
        found = store.get(route.policy, int(name))
    else:
        found = store.tagged(name, policy=route.policy)
    weights = store.weights(found)
    wanted = route.weights_spec()
    difference = wanted.difference(spec_of({n: weights[n] for n in wanted.names if n in weights}))
    if difference is not None:
        raise CheckpointError(f"{store.folder / found.file} does not fit the policy: {difference}")
    policy: Policy = experiment.algorithm.make_policy(route.agent_spec(), seed=0, compute=Compute())
    policy.load_weights(weights)
    return policy


def load_players(
    experiment: Experiment[Any], plan: Plan, folder: RunFolder, version: str | int | None = None
) -> list[Player]:
    """The policies of a run: of its newest checkpoint, or a version that was kept."""
    if version is None or version == LATEST:
        return players_of(experiment, plan, read_checkpoint(latest_checkpoint(folder.checkpoints)))
    store = VersionStore(folder.versions)
    return [
        _player(
            plan,
            route,
            None if route.is_frozen else load_version(experiment, route, store, version),
        )
        for route in plan.routes
    ]


def players_of(experiment: Experiment[Any], plan: Plan, checkpoint: Checkpoint) -> list[Player]:
    """The policies of a checkpoint."""
    return [
        _player(
            plan, route, None if route.is_frozen else load_policy(experiment, route, checkpoint)
        )
        for route in plan.routes
    ]


def _player(plan: Plan, route: RoutePlan, policy: Policy | None) -> Player:
    """A policy that learned, or the frozen one of a route."""
    if policy is None:
        policy = make_pool(route.opponents, seed=0, compute=Compute())
        policy.load_weights(pinned_weights(Path(plan.folder), route.policy))
    counts = not route.is_frozen
    return Player(route.policy, route.agent_spec(), policy, route.agents, counts=counts)


def evaluate(
    experiment: Experiment[Any],
    plan: Plan,
    players: Sequence[Player],
    *,
    episodes: int,
    seconds: float,
    on_step: Callable[[int], bool] = lambda _: True,
    telemetry: Telemetry | None = None,
) -> Evaluation:
    """Play `episodes` episodes, the same number in each of up to 20 envs, with likely actions.

    Args:
        experiment: whose env.
        plan: its plan.
        players: who plays.
        episodes: how many in all.
        seconds: when to give up.
        on_step: told the number of episodes played, after every step; False gives up.
        telemetry: where the time of every step is counted, as `play`, and envs that failed.

    Raises:
        EnvError: where the env keeps failing.
    """
    if episodes < 1:
        raise ConfigError(f"episodes must be at least 1, got {episodes}")
    num_envs, per_lane = evaluation_lanes(episodes)
    sets = tuple(route.agents for route in plan.routes)
    telemetry = telemetry or Telemetry()
    recovery = recovery_of(experiment.env, experiment.seed, num_envs=num_envs, sets=sets)
    match = Match(
        recovery.make(recovery.origin(0, 0)),
        players,
        episodes_per_lane=per_lane,
        quarantine=Quarantine(recovery, telemetry, 0, num_envs),
    )
    deadline = time.monotonic() + seconds
    playing = telemetry.time("play")
    try:
        with playing:
            match.begin()
        with limited_threads(experiment.threads):
            while time.monotonic() < deadline:
                with playing:
                    moved = match.step()
                if not moved:
                    break
                played = sum(len(returns) for returns in match.returns().values())
                if not on_step(played):
                    break
    finally:
        match.env.close()
    return Evaluation(match.returns(), match.is_done)


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """Compute with `count` threads: small batches on all cores are slower, not faster."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
