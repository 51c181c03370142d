"""What of a checkpoint is of use to the run that is to go on from it."""

import hashlib
import json
from dataclasses import replace
from typing import Any

from srl.core.arrays import subset
from srl.core.errors import CheckpointError
from srl.core.experiment import Experiment
from srl.launch.graph.config import encode_experiment, plain_numbers
from srl.launch.graph.plan import Plan, RoutePlan, WorkerPlan
from srl.learning.checkpoint import Checkpoint
from srl.learning.replay.replay import check_fits
from srl.learning.replay.table import rows_of_track

_OF_TRAINERS, _OF_BUFFERS = "staging.replay.", "replay."


def shape_of(experiment: Experiment[Any], plan: Plan) -> str:
    """A digest of what must be the same for blocks, envs and actors of a checkpoint to be of use."""
    actors = replace(experiment.actors, threads=None, min=None, memory_limit_mb=None)
    whole = encode_experiment(replace(experiment, actors=actors))
    parts = {name: whole[name] for name in ("launcher", "env", "actors", "routes", "max_staleness")}
    algorithm = experiment.algorithm
    of_blocks = (algorithm.rollout, algorithm.batch_size)
    recorded = [repr(algorithm.records(route.agent_spec())) for route in plan.learning]
    text = json.dumps([plain_numbers(parts), of_blocks, recorded], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def check_replay(plan: Plan, checkpoint: Checkpoint) -> None:
    """Raise CheckpointError where rows would be lost, or could not be taken over: before anything is changed."""
    prefixes = {"trainer": _OF_TRAINERS, "buffer": _OF_BUFFERS}
    keepers = {worker.name: worker for worker in plan.keepers()}
    holders = [
        name
        for name, state in checkpoint.sections.items()
        if any(f"{prefix}table.shape" in state for prefix in prefixes.values())
    ]
    if not holders or not keepers:
        return  # there are none to lose, or this run wants none
    if sorted(holders) != sorted(keepers):
        raise CheckpointError(
            f"replay: the checkpoint has rows of {', '.join(sorted(holders))}, and this run would keep them in "
            f"{', '.join(sorted(keepers))}: resume with the same launcher, --buffers.count and --trainers.count, or "
            "fill it anew with --algorithm.replay.saved False"
        )
    for name, worker in keepers.items():
        state = subset(checkpoint.sections[name], prefixes[worker.kind])
        route = plan.route(worker.policy)
        kept = route.replay
        assert kept is not None
        lanes = _first_lanes(plan, route, worker)
        tracks = len(lanes) * route.lanes
        rows = rows_of_track(kept.config.capacity // kept.shards, tracks, route.rollout)
        check_fits(state, kept.config, kept.window, route.layout(), tracks=tracks, rows=rows)
        if not lanes.issuperset(state["table.places"][:, 0].tolist()):
            raise CheckpointError(
                f"replay: the rows of {name} in the checkpoint are of other lanes than those that this run brings "
                "it: resume with the same actors, envs and groups, or fill it anew with --algorithm.replay.saved "
                "False"
            )


def _first_lanes(plan: Plan, route: RoutePlan, worker: WorkerPlan) -> set[int]:
    """Of each group of envs whose blocks a worker keeps: its first lane, as `rollout.ring` numbers them."""
    actors, shards = plan.experiment["actors"], plan.num_takers
    num_agents = sum(len(of.agents) for of in plan.routes)
    return {
        (actor * actors["envs"] + group * route.envs) * num_agents + route.agents[0]
        for actor in range(worker.index, actors["count"], shards)
        for group in range(actors["groups"])
    }
