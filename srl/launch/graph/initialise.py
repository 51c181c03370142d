"""Begins a fresh run with the weights of another: its version 0 is a checkpoint of them."""

from pathlib import Path
from typing import Any

import numpy as np

from srl.core.algorithm import BeginsWith, Learner
from srl.core.arrays import Arrays
from srl.core.collective import Alone
from srl.core.compute import Compute
from srl.core.experiment import Experiment
from srl.launch.evaluate import load_policy
from srl.launch.folder import RunFolder
from srl.launch.graph.connect import worker_seed
from srl.launch.graph.plan import Plan
from srl.learning.checkpoint import (
    Checkpoint,
    begin_checkpoint,
    commit_checkpoint,
    latest_checkpoint,
    read_checkpoint,
    write_part,
)
from srl.telemetry.progress import Progress


def read_donor(path: Path) -> Checkpoint:
    """The newest checkpoint of the run whose weights are wanted."""
    return read_checkpoint(latest_checkpoint(RunFolder.open(path).checkpoints))


def fresh_sections(experiment: Experiment[Any], plan: Plan, donor: Checkpoint) -> dict[str, Arrays]:
    """Fresh trainers with the donor's weights; raises CheckpointError where they do not fit."""
    sections: dict[str, Arrays] = {}
    for worker in plan.of_kind("trainer"):
        if worker.index:
            continue  # every rank begins with what is rank 0's
        route = plan.route(worker.policy)
        learner: Learner = experiment.algorithm.make_learner(
            route.agent_spec(),
            seed=worker_seed(plan, "trainer", worker.index, route),
            compute=Compute(),
            ranks=Alone(),
        )
        weights = load_policy(experiment, route, donor).weights()
        if isinstance(learner, BeginsWith):
            learner.begin_with(weights)
        else:
            learner.policy.load_weights(weights)
        state = {f"learner.{name}": array for name, array in learner.save().items()}
        sections[worker.name] = state | {"counters": np.zeros(3, np.int64)}
    return sections


def write_initial(folder: RunFolder, sections: dict[str, Arrays], plan: Plan) -> Checkpoint:
    """Make them version 0 of a new run."""
    policies = [route.policy for route in plan.learning]
    manifest = {
        "seconds": 0.0,
        "progress": Progress(policies).to_dict(),
        "ledgers": {},
        "ledgers_before": {},
        "restored": ["weights of another run"],
        "not_restored": ["everything else: this run begins with it"],
    }
    aside = begin_checkpoint(folder.checkpoints, 0)
    part = write_part(aside, "initial", sections)
    versions = dict.fromkeys(policies, 0)
    path = commit_checkpoint(aside, [part], versions=versions, manifest=manifest, keep=1)
    return read_checkpoint(path)
