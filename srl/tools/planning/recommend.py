"""Which setting would be fastest on a cluster, by the model."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from srl.core.errors import ConfigError
from srl.core.experiment import Experiment
from srl.launch.graph.plan import Plan
from srl.tools.planning.cluster import Cluster, on_cluster
from srl.tools.planning.model import Costs, Prediction, predict

_GROUPS = (1, 2, 3, 4, 6, 8)
_ENOUGH = 0.97
"""Of the fastest: the first setting that reaches this is simple enough to be preferred."""


@dataclass(frozen=True)
class Candidate:
    """A setting, and what would come of it."""

    options: dict[str, str]
    prediction: Prediction


def recommend(
    experiment: Experiment[Any], cluster: Cluster, one: Plan, costs: Costs
) -> list[Candidate]:
    """Settings from the recommended one on, fastest first; empty where none fits."""
    found = []
    for options, changed in _settings(experiment, cluster, one, costs):
        try:
            setup = on_cluster(changed, cluster, one)
        except ConfigError:
            continue
        found.append(Candidate(options, predict(setup, costs)))
    found.sort(key=lambda c: -c.prediction.env_steps_per_second)
    if not found:
        return []
    least = _ENOUGH * found[0].prediction.env_steps_per_second
    good = [c for c in found if c.prediction.env_steps_per_second >= least]
    best = min(good, key=lambda c: _size(c.options))
    return [best, *(c for c in found if c is not best)]


def _size(options: dict[str, str]) -> tuple[int, ...]:
    """How much of everything a setting takes."""
    names = ("trainers.count", "actors.count", "policies.count", "actors.groups")
    return tuple(int(options.get(name, 0)) for name in names)


def _settings(
    experiment: Experiment[Any], cluster: Cluster, one: Plan, costs: Costs
) -> Iterator[tuple[dict[str, str], Experiment[Any]]]:
    route = one.learning[0]
    per_group = route.envs
    threads = max(1, experiment.threads)
    on_gpu = experiment.trainers.device != "cpu"
    trainers = _doubling(int(cluster.gpus) if on_gpu else 4)
    places = ("inline", "shm") if experiment.policies.device == "cpu" else ("shm",)
    for ranks, inference, groups in itertools.product(trainers, places, _GROUPS):
        cores = int(cluster.cores) // threads
        for policies in _doubling(max(1, cores // 4)) if inference == "shm" else (0,):
            left = cores - ranks - policies
            for actors in sorted({_multiple(n, ranks) for n in (left // 2, left * 3 // 4, left)}):
                options = {
                    "trainers.count": str(ranks),
                    "inference": inference,
                    "policies.count": str(max(1, policies)),
                    "actors.count": str(actors),
                    "actors.groups": str(groups),
                    "actors.envs": str(per_group * groups),
                }
                batch = _batch(experiment, one, ranks, actors * groups)
                if batch != experiment.algorithm.batch_size:
                    options["algorithm.batch-size"] = str(batch)
                yield (
                    options,
                    replace(
                        experiment,
                        inference=inference,
                        trainers=replace(experiment.trainers, count=ranks),
                        policies=replace(experiment.policies, count=max(1, policies), min=None),
                        actors=replace(
                            experiment.actors,
                            count=actors,
                            min=None,
                            groups=groups,
                            envs=per_group * groups,
                        ),
                        algorithm=replace(experiment.algorithm, batch_size=batch),
                    ),
                )


def _batch(experiment: Experiment[Any], one: Plan, ranks: int, groups: int) -> int:
    """Rows of a batch: as asked for, or as many as all groups need to work at a time."""
    route = one.learning[0]
    rows = route.lanes * route.rollout
    ahead = experiment.max_staleness + 1
    blocks = max(experiment.algorithm.batch_size // rows, -(-groups // ahead), ranks)
    return -(-blocks // ranks) * ranks * rows


def _multiple(count: int, ranks: int) -> int:
    """So many actors, or fewer, that every trainer has as many; at least one each."""
    return max(1, count // ranks) * ranks


def _doubling(most: int) -> list[int]:
    """1, 2, 4 and so on, and the most."""
    found = [1]
    while found[-1] * 2 <= most:
        found.append(found[-1] * 2)
    return sorted({*found, max(1, most)})
