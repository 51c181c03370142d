"""Plays a checkpoint's policy and says how well it does."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from srl.core.algorithm import Learner, Policy
from srl.core.arrays import subset
from srl.core.collective import Alone
from srl.core.errors import CheckpointError
from srl.core.experiment import Experiment
from srl.launch.env_factory import make_env
from srl.launch.plan import Plan, RoutePlan, worker_name
from srl.learning.checkpoint import Checkpoint
from srl.workers.evaluator import Evaluator

_FIRST_ENV = 1_000_000  # seeds that no actor uses
_LANES = 20


@dataclass(frozen=True)
class Evaluation:
    """Raw returns of whole episodes played with the most likely actions."""

    returns: list[float]
    is_complete: bool
    """Whether every env played its share: otherwise long episodes are missing."""

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
        route.agent_spec(), seed=0, device="cpu", ranks=Alone()
    )
    learner.load(subset(checkpoint.sections[trainer], "learner."))
    return learner.policy


def evaluate(
    experiment: Experiment[Any],
    plan: Plan,
    checkpoint: Checkpoint,
    *,
    episodes: int,
    seconds: float,
    on_step: Callable[[int], bool] = lambda _: True,
) -> Evaluation:
    """Play `episodes` episodes, the same number in each of up to 20 envs.

    Args:
        experiment: whose env and algorithm.
        plan: its plan.
        checkpoint: whose weights.
        episodes: how many in all.
        seconds: when to give up.
        on_step: told the number of episodes played, after every step; False gives up.

    Raises:
        EnvError: where the env does.
    """
    num_envs = max(n for n in range(1, _LANES + 1) if episodes % n == 0)
    sets = tuple(route.agents for route in plan.routes)
    policies = [
        (route.agent_spec(), load_policy(experiment, route, checkpoint), len(route.agents))
        for route in plan.routes
    ]
    env = make_env(
        experiment.env, experiment.seed, num_envs=num_envs, first_env=_FIRST_ENV, sets=sets
    )
    evaluator = Evaluator("evaluator-0", env, policies, episodes_per_lane=episodes // num_envs)
    deadline = time.monotonic() + seconds
    try:
        evaluator.open()
        with _threads(experiment.threads):
            while time.monotonic() < deadline and evaluator.step():
                if not on_step(len(evaluator.returns())):
                    break
    finally:
        evaluator.close()
    return Evaluation(evaluator.returns(), evaluator.is_done)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Compute with `count` threads: small batches on all cores are slower, not faster."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
