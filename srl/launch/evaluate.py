"""Plays a checkpoint's policy and says how well it does."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from srl.core.algorithm import Learner, Policy
from srl.core.arrays import subset
from srl.core.errors import CheckpointError
from srl.core.experiment import Experiment
from srl.launch.env_factory import make_env
from srl.launch.plan import Plan, RoutePlan
from srl.learning.checkpoint import Checkpoint
from srl.workers.evaluator import Evaluator

_FIRST_ENV = 1_000_000  # seeds that no actor uses
_LANES = 20
_MAX_SECONDS = 600.0


@dataclass(frozen=True)
class Evaluation:
    """Raw returns of whole episodes played with the most likely actions."""

    returns: list[float]

    @property
    def mean(self) -> float:
        """Their mean."""
        return float(np.mean(self.returns)) if self.returns else math.nan


def load_policy(experiment: Experiment[Any], route: RoutePlan, checkpoint: Checkpoint) -> Policy:
    """The policy of a checkpoint, on the CPU; raises CheckpointError where it does not fit."""
    trainer = "trainer-0" if route.policy == "main" else f"trainer-{route.policy}-0"
    if trainer not in checkpoint.sections:
        raise CheckpointError(f"{checkpoint.path} holds no state of {trainer}")
    learner: Learner = experiment.algorithm.make_learner(route.agent_spec(), seed=0, device="cpu")
    learner.load(subset(checkpoint.sections[trainer], "learner."))
    return learner.policy


def evaluate(
    experiment: Experiment[Any], plan: Plan, checkpoint: Checkpoint, *, episodes: int = 100
) -> Evaluation:
    """Play `episodes` episodes, the same number in each of up to 20 envs."""
    num_envs = min(_LANES, episodes)
    sets = tuple(route.agents for route in plan.routes)
    env = make_env(
        experiment.env, experiment.seed, num_envs=num_envs, first_env=_FIRST_ENV, sets=sets
    )
    evaluator = Evaluator(
        "evaluator-0",
        env,
        [
            (route.agent_spec(), load_policy(experiment, route, checkpoint), len(route.agents))
            for route in plan.routes
        ],
        episodes_per_lane=math.ceil(episodes / num_envs),
    )
    deadline = time.monotonic() + _MAX_SECONDS
    try:
        evaluator.open()
        with _threads(experiment.threads):
            while time.monotonic() < deadline and evaluator.step():
                pass
    finally:
        evaluator.close()
    return Evaluation(evaluator.returns())


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
