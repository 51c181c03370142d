"""Which worker goes to which host of a cluster."""

import heapq
import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from srl.core.errors import ConfigError
from srl.launch.graph.plan import LATE, Plan, WorkerPlan, deal_gpus

_ORDER = ("trainer", "policy", "evaluator", "actor")
"""Who is placed first, after those for whom nodes were named: what there is least room for. Buffers come with their trainers."""
_SHOWN = 8
"""Nodes in a message."""
_SECTIONS = {
    "trainer": "trainers",
    "buffer": "buffers",
    "policy": "policies",
    "actor": "actors",
}


@dataclass(frozen=True)
class Node:
    """A host of a cluster, and what is free there."""

    id: str
    """Its name in the cluster."""
    address: str
    cores: float
    gpus: float = 0.0
    marks: frozenset[str] = frozenset()
    """What it can be asked for by: names of its own resources."""
    is_here: bool = False
    """The controller is there."""

    @property
    def words(self) -> str:
        """What it has, for a message."""
        gpus = f", {self.gpus:g} GPUs" if self.gpus else ""
        return f"{self.address} ({self.cores:g} cores{gpus})"

    def is_one_of(self, names: Collection[str]) -> bool:
        """Whether it has one of these addresses or marks; any node has, where there are none."""
        return not names or not {self.address, self.id, *self.marks}.isdisjoint(names)


@dataclass
class Place:
    """A host of the run: a node, and its workers."""

    node: Node
    workers: list[str] = field(default_factory=list)
    cores: float = 0.0
    """Taken by its workers."""
    shares: list[float] = field(default_factory=list)
    """Of GPUs, that workers have to themselves."""

    @property
    def gpus(self) -> float:
        """GPUs to set aside for its workers: a part of one, or whole ones."""
        return deal_gpus(self.shares)[1]

    @property
    def free(self) -> float:
        """Cores nobody has taken."""
        return self.node.cores - self.cores


def place(plan: Plan, nodes: Sequence[Node], wanted: dict[str, tuple[str, ...]]) -> list[Place]:
    """The hosts of a run, the first one of which has its first trainer; raises ConfigError.

    Trainers and policy workers that compute on GPUs go where GPUs are, trainers to as few nodes as have room for
    them and the buffers that draw for them, which go there too, and if it can be for the policy workers that share
    their GPUs; actors to the nodes with most cores left. Every worker has the cores of its threads to itself.
    Actors that the run does not need to begin may be left over.

    Args:
        plan: whose workers.
        nodes: what there is.
        wanted: kind of workers to the addresses or marks of nodes for them; any, where it is missing.
    """
    places, late = [Place(node) for node in nodes], plan.late
    guests = _sharing(plan)
    room = sum(plan.threads(guest.kind) for guest in guests)
    beside = _Need(room, 0.0, False, frozenset(wanted.get("policy", ()) if guests else ()))
    first = {kind for kind, names in wanted.items() if names}
    if guests and first & {"trainer", "policy"}:  # whichever was named: the other goes with it
        first |= {"trainer", "policy"}
    workers = sorted(
        (worker for worker in plan.workers if worker.kind != "buffer"),
        key=lambda worker: (worker.kind not in first, _ORDER.index(worker.kind)),
    )
    for kind, alike in itertools.groupby(workers, lambda worker: worker.kind):
        named = wanted.get(kind, ())
        if kind == "actor":
            left = _spread_actors(plan, alike, places, named)
        else:
            left = _gather(plan, alike, places, named, beside if kind == "trainer" else None)
        for worker in left:
            if worker.name not in late:
                raise ConfigError(_too_few(plan, worker, places, wanted))
    used = [p for p in places if p.workers]
    trainer = plan.of_kind("trainer")[0].name
    return sorted(used, key=lambda p: (trainer not in p.workers, places.index(p)))


def check_sharing(plan: Plan, nodes: Sequence[Node], wanted: dict[str, tuple[str, ...]]) -> None:
    """Raise ConfigError where policy workers are to share trainers' GPUs and others than the trainers' were named for them."""
    trainers, policies = wanted.get("trainer", ()), wanted.get("policy", ())
    if not _sharing(plan):
        return
    theirs, ours = (
        {node.id for node in nodes if node.gpus and node.is_one_of(names)}
        for names in (trainers, policies)
    )
    if theirs and ours and theirs.isdisjoint(ours):
        raise ConfigError(
            f"--ray.policies {' '.join(policies)} names no node with GPUs that --ray.trainers {' '.join(trainers)} "
            "does, and with policies.gpus 0 policy workers share a trainer's GPU: use --policies.gpus 1, or a "
            "fraction, or name the same node for both"
        )


def _gather(
    plan: Plan,
    workers: Iterable[WorkerPlan],
    places: Sequence[Place],
    named: Sequence[str],
    guests: "_Need | None",
) -> list[WorkerPlan]:
    """Place workers that want to be together, trainers with their buffers, and if there is room for `guests`, with them.

    Returns:
        The first that has no room, if any.
    """
    for worker in workers:
        need, buffers = _need(plan, worker, named), plan.buffers_of(worker)
        if not any(need.fits(p) for p in places):
            return [worker]
        behind = sum(plan.threads(buffer.kind) for buffer in buffers)
        fit = [p for p in places if need.fits(p, behind)]
        if not fit:
            return buffers[:1]
        cores = need.cores + behind
        welcome = [p for p in fit if guests is not None and guests.fits(p, cores)]
        # where others are (but actors, whose hosts may be lost), where the controller is, where most cores are left
        chosen = max(welcome or fit, key=lambda p: (_is_core(plan, p), p.node.is_here, p.free))
        chosen.workers += [one.name for one in (worker, *buffers)]
        chosen.cores += cores
        if need.gpus:
            chosen.shares.append(need.gpus)
    return []


def _sharing(plan: Plan) -> list[WorkerPlan]:
    """Policy workers that compute on a trainer's GPU."""
    return [one for one in plan.of_kind("policy") if plan.needs_gpu(one) and not plan.gpus(one)]


def _is_core(plan: Plan, at: Place) -> bool:
    """Whether others than actors are there."""
    return any(plan.worker(name).kind != "actor" for name in at.workers)


def _spread_actors(
    plan: Plan, workers: Iterable[WorkerPlan], places: Sequence[Place], named: Sequence[str]
) -> list[WorkerPlan]:
    """Place actors, each where most cores are left; returns those without room.

    They are thousands, and all alike: a heap finds the place without a look at every node.
    """
    actors = list(workers)
    need = _need(plan, actors[0], named)
    heap = [(-p.free, i) for i, p in enumerate(places) if need.fits(p)]
    heapq.heapify(heap)
    for done, actor in enumerate(actors):
        if not heap:
            return actors[done:]
        at = places[heap[0][1]]
        at.workers.append(actor.name)
        at.cores += need.cores
        if at.free < need.cores:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (-at.free, heap[0][1]))
    return []


def hosts_of_places(plan: Plan, places: Sequence[Place]) -> dict[str, int]:
    """Worker to the number of its host, as a plan has it."""
    placed = {name: host for host, p in enumerate(places) for name in p.workers}
    found = {worker.name: placed.get(worker.name, LATE) for worker in plan.workers}
    return {name: host for name, host in found.items() if host}


def place_late(
    plan: Plan, workers: Sequence[str], nodes: Sequence[Node], wanted: Sequence[str]
) -> list[Place]:
    """Hosts for actors that were left over, on nodes that have joined; as many of them as have room."""
    places, left = [], list(workers)
    for node in nodes:
        at = Place(node)
        while left and _need(plan, plan.worker(left[0]), wanted).fits(at):
            at.workers.append(left.pop(0))
            at.cores += plan.threads("actor")
        if at.workers:
            places.append(at)
    return places


@dataclass(frozen=True)
class _Need:
    """What a worker must find at a place."""

    cores: float
    gpus: float
    shares_gpu: bool
    """It computes on a GPU that is set aside for others."""
    named: frozenset[str]
    """Addresses or marks, one of which the node has; any node, where there are none."""

    def fits(self, at: Place, cores: float = 0.0) -> bool:
        """Whether there is room, also for so many cores more."""
        if not at.node.is_one_of(self.named) or at.free < self.cores + cores:
            return False
        if self.shares_gpu:
            return bool(at.shares)
        return not self.gpus or at.node.gpus >= deal_gpus([*at.shares, self.gpus])[1] - 1e-9


def _need(plan: Plan, worker: WorkerPlan, named: Sequence[str]) -> _Need:
    gpus = plan.gpus(worker)
    shares = plan.needs_gpu(worker) and not gpus
    return _Need(plan.threads(worker.kind), gpus, shares, frozenset(named))


def _too_few(
    plan: Plan, worker: WorkerPlan, places: Sequence[Place], wanted: dict[str, tuple[str, ...]]
) -> str:
    """What is missing, and what to do."""
    kind, threads, gpus = worker.kind, plan.threads(worker.kind), plan.gpus(worker)
    option = _SECTIONS.get(kind, "evaluation")
    names = {p.node.address for p in places} | {mark for p in places for mark in p.node.marks}
    names |= {p.node.id for p in places}
    if (asked := wanted.get(kind)) and not names & set(asked):
        marks = sorted({mark for p in places for mark in p.node.marks})
        return (
            f"no node of the cluster has the address or mark that --ray.{option} asks for "
            f"({', '.join(asked)}); its nodes are {_nodes(places)}, their marks "
            f"{', '.join(marks) or 'none'}: start one with `ray start --resources`, or name another"
        )
    placed = sum(name.startswith(kind) for p in places for name in p.workers)
    late = plan.late
    needed = [one for one in plan.workers if one.name not in late]
    of_kind = sum(one.kind == kind for one in needed)
    need = f"{threads:g} core{'s' * (threads != 1)}"
    if plan.needs_gpu(worker):
        need += f" and {gpus:g} GPUs" if gpus else " beside a trainer's GPU"
    words = (
        f"the cluster has too little for {of_kind} {kind} worker{'s' * (of_kind != 1)} of {need} "
        f"each: there was room for {placed}"
    )
    if kind == "buffer":
        words += " beside their trainers"
    if asked:
        words += f" on {', '.join(asked)}"
    in_all = f"{sum(plan.threads(w.kind) for w in needed):g} cores"
    less = f"a smaller --{option}.count or fewer --threads"
    if gpus:
        in_all += f" and {deal_gpus([g for w in needed if (g := plan.gpus(w))])[1]:g} GPUs"
        less = f"a smaller --{option}.count or --{option}.gpus"
    less = f"use {less}, " if of_kind > 1 or threads > 1 or gpus else ""
    if plan.needs_gpu(worker) and not gpus:
        less += f"give each GPUs of its own (--{option}.gpus 1, or a fraction), "
    return (
        f"{words}; its nodes are {_nodes(places)}; all workers together need {in_all}: {less}add nodes, or start Ray so "
        "that it counts more cores than a node has (`ray start --head --num-cpus N`)"
    )


def _nodes(places: Sequence[Place]) -> str:
    """Some of them, for a message."""
    shown = ", ".join(p.node.words for p in places[:_SHOWN]) or "none"
    return shown + (f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else "")
