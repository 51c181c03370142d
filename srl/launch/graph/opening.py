"""Opens runs that are there: to look at, to go on with, to play against."""

from pathlib import Path
from typing import Any

import msgspec

from srl.core.errors import ConfigError
from srl.core.experiment import Experiment
from srl.launch.evaluate import load_players, players_of
from srl.launch.folder import RunFolder
from srl.launch.graph.config import decode_experiment, encode_experiment
from srl.launch.graph.plan import Opponent, Plan, make_plan
from srl.launch.graph.pool import FrozenPolicy, read_pinned
from srl.learning.checkpoint import list_checkpoints, read_checkpoint, read_manifest
from srl.rollout.match import Player


def read_experiment(folder: RunFolder) -> Experiment[Any]:
    """The experiment of a run."""
    data = folder.read("config.json")
    try:
        return decode_experiment(data)
    except ConfigError as error:
        raise ConfigError(f"{folder.path / 'config.json'}: {error}") from error


def plan_run(folder: RunFolder, experiment: Experiment[Any]) -> Plan:
    """The plan of a run that is there: its frozen policies are those it has pinned."""
    frozen = {
        route.policy: [member.opponent for member in read_pinned(folder.path, route.policy)]
        for route in experiment.routes
        if route.frozen
    }
    plan = make_plan(experiment, frozen)
    return msgspec.structs.replace(plan, folder=str(folder.path.resolve()))


def open_run(path: Path) -> tuple[RunFolder, Experiment[Any], Plan]:
    """A run that is there, to look at."""
    folder = RunFolder.open(path)
    experiment = read_experiment(folder)
    return folder, experiment, plan_run(folder, experiment)


def find_opponents(experiment: Experiment[Any]) -> dict[str, list[FrozenPolicy]]:
    """Policy to what it is made of, for those that are frozen; read from the runs they name."""
    return {
        route.policy: [find_opponent(source, route.policy) for source in route.frozen]
        for route in experiment.routes
        if route.frozen
    }


def find_opponent(source: str, policy: str) -> FrozenPolicy:
    """The policy that RUN, RUN@VERSION or RUN@TAG names.

    Of a run with several, the one called `policy`, or else the first that learns. Raises ConfigError
    or CheckpointError where there is none.
    """
    path, _, version = source.rpartition("@") if "@" in source else (source, "", "")
    folder, experiment, plan = open_run(Path(path))
    learning = [route.policy for route in plan.learning]
    name = policy if policy in learning else learning[0]
    found = _players(folder, experiment, plan, version, name)
    player = next(p for p in found if p.name == name)
    algorithm = encode_experiment(experiment)["algorithm"]
    opponent = Opponent(source, algorithm, player.agent.to_dict())
    return FrozenPolicy(opponent, {k: v.copy() for k, v in player.policy.weights().items()})


def _players(
    folder: RunFolder, experiment: Experiment[Any], plan: Plan, version: str, policy: str
) -> list[Player]:
    """The policies of a checkpoint with this version of one, of the newest, or of those kept."""
    if version.isascii() and version.isdigit():
        for path in list_checkpoints(folder.checkpoints):
            if int(version) == read_manifest(path)["versions"].get(policy):
                return players_of(experiment, plan, read_checkpoint(path))
    return load_players(experiment, plan, folder, version or None)
