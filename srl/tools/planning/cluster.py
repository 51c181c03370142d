"""A cluster in words, and an experiment's workers on it.

    latency_ms = 0.1            # between two hosts, one way
    gbit = 25                   # of a host, each way

    [[nodes]]
    count = 60
    cores = 256

    [[nodes]]
    count = 4
    cores = 128
    gpus = 8
    marks = ["big"]             # as --ray.trainers big asks for it

Nodes with the same `machine = "NAME"` share its cores, of which `[machines] NAME = 2` says how many there are:
network namespaces and containers are such.
"""

import math
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from srl.core.errors import ConfigError
from srl.core.experiment import Experiment
from srl.launch.graph.config import encode_experiment
from srl.launch.graph.hosts import asks_over, sends_over
from srl.launch.graph.placing import Node, hosts_of_places, place
from srl.launch.graph.plan import Plan, RoutePlan, plan_workers
from srl.tools.bench.report import gpus, num_cores
from srl.tools.planning.model import Crew, Setup, Team


class NodesWords(msgspec.Struct, forbid_unknown_fields=True):
    """Nodes that are alike."""

    cores: float
    count: int = 1
    gpus: float = 0.0
    marks: list[str] = []
    machine: str | None = None


class ClusterWords(msgspec.Struct, forbid_unknown_fields=True):
    """A whole file."""

    nodes: list[NodesWords]
    latency_ms: float = 0.1
    gbit: float = 10.0
    machines: dict[str, float] = {}


@dataclass(frozen=True)
class Cluster:
    """What there is."""

    nodes: tuple[Node, ...]
    machine_of: dict[str, str]
    """Node to its machine."""
    machines: dict[str, float]
    """Machine to its cores."""
    latency_seconds: float = 0.0
    bandwidth: float = 0.0
    """Bytes a second of a host, each way."""
    is_this_host: bool = False

    @property
    def cores(self) -> float:
        """Of all machines."""
        return sum(self.machines.values())

    @property
    def gpus(self) -> float:
        """Of all nodes."""
        return sum(node.gpus for node in self.nodes)


def this_host() -> Cluster:
    """The cluster that this host is."""
    cores = float(num_cores())
    node = Node("here", "127.0.0.1", cores=1e9, gpus=float(len(gpus())), is_here=True)
    return Cluster((node,), {"here": "here"}, {"here": cores}, bandwidth=1e12, is_this_host=True)


def read_cluster(path: Path) -> Cluster:
    """A cluster from a file; raises ConfigError where it is not one."""
    try:
        words = msgspec.convert(tomllib.loads(path.read_text()), ClusterWords)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path} does not describe a cluster: {error}") from error
    if wrong := next(_wrong(words), None):
        raise ConfigError(f"{path}: {wrong}")
    nodes, machine_of, machines = list[Node](), dict[str, str](), dict(words.machines)
    for kind in words.nodes:
        for _ in range(kind.count):
            name = f"node-{len(nodes)}"
            marks = frozenset(kind.marks)
            nodes.append(Node(name, name, kind.cores, kind.gpus, marks, is_here=not nodes))
            machine_of[name] = kind.machine or name
            if kind.machine is None:
                machines[name] = kind.cores
            elif kind.machine not in machines:
                raise ConfigError(f"{path}: [machines] says nothing about {kind.machine!r}")
    if not nodes:
        raise ConfigError(f"{path}: a cluster has at least one node")
    seconds, bandwidth = words.latency_ms / 1000, words.gbit * 1e9 / 8
    return Cluster(tuple(nodes), machine_of, machines, seconds, bandwidth)


def _wrong(words: ClusterWords) -> Iterator[str]:
    """Numbers that no cluster has."""
    if not 0 <= words.latency_ms < math.inf:
        yield f"latency_ms must be at least 0 and finite, got {words.latency_ms:g}"
    if not 0 < words.gbit < math.inf:
        yield f"gbit must be more than 0 and finite, got {words.gbit:g}"
    cores = {f"nodes[{i}].cores": kind.cores for i, kind in enumerate(words.nodes)}
    cores |= {f"machines.{name}": number for name, number in words.machines.items()}
    for name, number in cores.items():
        if not 0 < number < math.inf:
            yield f"{name} must be more than 0 and finite, got {number:g}"
    for i, kind in enumerate(words.nodes):
        if kind.count < 1:
            yield f"nodes[{i}].count must be at least 1, got {kind.count}"
        if not 0 <= kind.gpus < math.inf:
            yield f"nodes[{i}].gpus must be at least 0 and finite, got {kind.gpus:g}"


def on_cluster(experiment: Experiment[Any], cluster: Cluster, one: Plan) -> Setup:
    """The workers of an experiment on a cluster; raises ConfigError where they do not fit.

    Args:
        experiment: how many there are of each kind.
        cluster: where.
        one: the plan of it with one actor, which says all that does not depend on numbers.
    """
    plan = msgspec.structs.replace(
        one,
        experiment=encode_experiment(experiment),
        inference=experiment.inference_substrate,
        workers=tuple(plan_workers(experiment, one.routes)),
        num_ranks=experiment.num_ranks,
        needed_actors=None,
    )
    wanted = {
        "trainer": experiment.ray.trainers,
        "policy": experiment.ray.policies,
        "actor": experiment.ray.actors,
    }
    places = place(plan, cluster.nodes, wanted if len(cluster.nodes) > 1 else {})
    plan = msgspec.structs.replace(plan, hosts=hosts_of_places(plan, places))
    machines = sorted({cluster.machine_of[at.node.id] for at in places})
    route, algorithm = plan.learning[0], experiment.algorithm
    servers = _teams(plan, "policy", route)
    batch = algorithm.batch_size // (route.lanes // route.envs)
    passes = getattr(algorithm, "epochs", 1)
    minibatch = getattr(algorithm, "minibatch_size", algorithm.batch_size)
    return Setup(
        crews=_crews(plan, route, servers),
        servers=servers,
        trainers=_teams(plan, "trainer", route),
        machines=tuple(cluster.machines[name] for name in machines),
        machine_of=tuple(machines.index(cluster.machine_of[at.node.id]) for at in places),
        groups=experiment.actors.groups,
        envs=experiment.actors.envs // experiment.actors.groups,
        batch=batch,
        rollout=route.rollout,
        minibatches=passes * -(-algorithm.batch_size // minibatch),
        minibatch=minibatch,
        max_staleness=experiment.max_staleness,
        trainer_threads=plan.threads("trainer"),
        latency_seconds=cluster.latency_seconds,
        bandwidth=cluster.bandwidth,
    )


def _teams(plan: Plan, kind: str, route: RoutePlan) -> tuple[Team, ...]:
    here = [w for w in plan.of_kind(kind) if w.policy == route.policy]
    counts = Counter(plan.host_of(worker.name) for worker in here)
    return tuple(Team(count, host) for host, count in sorted(counts.items()))


def _crews(plan: Plan, route: RoutePlan, servers: tuple[Team, ...]) -> tuple[Crew, ...]:
    """The actors, by host: those of one host ask the same policy workers."""
    hosts: dict[int, list[int]] = {}
    for worker in plan.of_kind("actor"):
        hosts.setdefault(plan.host_of(worker.name), []).append(worker.index)
    crews = []
    for host, actors in sorted(hosts.items()):
        substrate, _ = asks_over(plan, route, actors[0])
        far = sum(sends_over(plan, route, a) == "tcp" for a in actors) / len(actors)
        asked = tuple(
            i for i, team in enumerate(servers) if substrate == "tcp" or team.host == host
        )
        crew = Crew(len(actors), host, asked, is_far=substrate == "tcp", sends_far=far)
        crews.append(crew if substrate != "inline" else replace(crew, servers=(), is_far=False))
    return tuple(crews)
