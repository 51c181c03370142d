"""Whether what a checkpoint has of replay buffers is of use to the run that is to go on from it."""

from srl.core.arrays import subset
from srl.core.errors import CheckpointError
from srl.launch.graph.plan import Plan, RoutePlan
from srl.learning.checkpoint import Checkpoint
from srl.learning.replay.replay import check_fits
from srl.learning.replay.table import TableShape

_OF_TRAINERS, _OF_BUFFERS = "staging.replay.", "replay."


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
            f"{', '.join(sorted(keepers))}: resume with the same launcher and --buffers.count, or fill it anew "
            "with --algorithm.replay.saved False"
        )
    for name, worker in keepers.items():
        state = subset(checkpoint.sections[name], prefixes[worker.kind])
        route = plan.route(worker.policy)
        assert route.replay is not None
        check_fits(state, route.replay.config, _shape(plan, route))


def _shape(plan: Plan, route: RoutePlan) -> TableShape:
    assert route.replay is not None
    actors, shards = plan.experiment["actors"], route.replay.shards
    tracks = actors["count"] * actors["groups"] * route.lanes // shards
    return TableShape(tracks, route.replay.rows // (tracks * shards), route.rollout, route.lanes)
