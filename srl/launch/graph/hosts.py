"""What each host of a run holds: its workers, its memory, and ends of streams that other hosts find.

A stream between two workers goes over shared memory where both are on one host, and over the network
where they are not, or where that was asked for.
"""

from srl.core.block import Layout
from srl.launch.graph.plan import LATE, Plan, RoutePlan, WorkerPlan, worker_name
from srl.learning.drawing import SLOTS
from srl.streams.parameters.shm import parameter_arena_bytes
from srl.transport.blocks import block_arena_bytes

RELAY = "relay"
"""The process of each host that brings parameters to it, or from it to others."""


def hosts_of(plan: Plan) -> list[int]:
    """The hosts of a run; `LATE` for those that may join."""
    return plan.all_hosts


def is_source(plan: Plan, route: RoutePlan, host: int) -> bool:
    """Whether the parameters of a route come from a host: its first trainer publishes them there."""
    return plan.host_of(worker_name("trainer", route.policy, 0)) == host


def parameters_end(route: RoutePlan) -> str:
    """The end where hosts fetch the parameters of a route."""
    return f"parameters/{route.policy}"


def workers_of(plan: Plan, host: int) -> list[str]:
    """The workers of a host."""
    return [worker.name for worker in plan.on_host(host)]


def actors_on(plan: Plan, host: int) -> list[int]:
    """The actors of a host."""
    return [worker.index for worker in plan.on_host(host) if worker.kind == "actor"]


def taker_of(plan: Plan, actor: int) -> int:
    """Which trainer of each policy, or which buffer, takes an actor's blocks."""
    return actor % plan.num_takers


def sends_over(plan: Plan, route: RoutePlan, actor: int) -> str:
    """How an actor's blocks come to their trainer or buffer: shm or tcp."""
    taker = plan.takers(route.policy)[taker_of(plan, actor)].name
    is_near = plan.host_of(taker) == plan.host_of(worker_name("actor", "", actor))
    return "shm" if is_near and plan.samples != "tcp" else "tcp"


def asks_over(plan: Plan, route: RoutePlan, actor: int) -> tuple[str, list[int]]:
    """How an actor asks for actions, and which policy workers: those of its host, if there are any.

    Unless others would then have nobody to answer: all ask all of them.
    """
    if plan.answers_itself(actor):
        return "inline", []
    everyone = range(plan.experiment["policies"]["count"])
    places = [plan.host_of(worker_name("policy", route.policy, i)) for i in everyone]
    asking = plan.asking_hosts - {LATE}
    has_idle = asking <= set(places) and not set(places) <= asking
    host = plan.host_of(worker_name("actor", "", actor))
    near = [i for i in everyone if places[i] == host]
    if near and not has_idle and plan.inference != "tcp":
        return "shm", near
    return "tcp", [*everyone]


def taken_by(plan: Plan, route: RoutePlan, host: int) -> list[int]:
    """Actors whose blocks lie in a host's sample arena: its workers take them (or nobody does)."""
    if route.is_frozen:
        return actors_on(plan, host)
    takers = {worker.index for worker in _takers_on(plan, route, host)}
    actors = range(plan.experiment["actors"]["count"])
    return [a for a in actors if taker_of(plan, a) in takers] if takers else []


def buffers_on(plan: Plan, route: RoutePlan, host: int) -> list[int]:
    """Buffers of a route on a host; there, too, is the trainer of each."""
    return [worker.index for worker in _takers_on(plan, route, host) if worker.kind == "buffer"]


def draw_streams(plan: Plan, route: RoutePlan) -> dict[str, tuple[Layout, int]]:
    """Streams between the buffers of a route and its trainers: name to layout, and how many consumers."""
    if route.replay is None or not plan.num_buffers:
        return {}
    found = {"draws": (route.draw_layout(), plan.num_ranks)}
    if route.replay.is_prioritised:
        found["priorities"] = route.priority_layout(), plan.num_buffers
    return found


def sent_from(plan: Plan, route: RoutePlan, host: int) -> list[int]:
    """Actors of a host whose blocks leave it, or at least go over the network."""
    if route.is_frozen:
        return []
    return [a for a in actors_on(plan, host) if sends_over(plan, route, a) == "tcp"]


def arenas(plan: Plan, host: int = 0) -> dict[str, int]:
    """Shared memory of a host: name to bytes."""
    found = {}
    for route in plan.routes:
        policy = route.policy
        if held := taken_by(plan, route, host):
            shape = plan.experiment["actors"]["count"], route.slots, plan.num_takers
            size = block_arena_bytes(route.layout(), *shape, num_held=len(held))
            found[f"samples/{policy}"] = size
        if buffers := buffers_on(plan, route, host):
            for name, (layout, consumers) in draw_streams(plan, route).items():
                shape = plan.num_buffers, SLOTS, consumers
                size = block_arena_bytes(layout, *shape, num_held=len(buffers))
                found[f"{name}/{policy}"] = size
        for actor in sent_from(plan, route, host):
            found[f"sending/{policy}/{actor}"] = block_arena_bytes(route.layout(), 1, route.slots)
        if not route.is_frozen and _needs_parameters(plan, route, host):
            found[f"parameters/{policy}"] = parameter_arena_bytes(route.weights_spec())
        for index in _answers_here(plan, route, host):
            found[f"replies/{policy}/{index}"] = plan.replies(route).nbytes
    return found


def listeners(plan: Plan, host: int = 0) -> dict[str, str]:
    """Ends of streams on a host that are found over the network: name to worker."""
    found = {}
    actors = range(plan.experiment["actors"]["count"])
    for route in plan.routes:
        takers = {worker.index: worker.name for worker in _takers_on(plan, route, host)}
        if takers:
            asked = {taker_of(plan, a) for a in actors if sends_over(plan, route, a) == "tcp"}
            for taker in sorted(asked & takers.keys()):
                for receiver in range(plan.experiment["network"]["receivers"]):
                    found[f"samples/{route.policy}/{taker}/{receiver}"] = takers[taker]
        policies = {
            worker.index: worker.name
            for worker in plan.on_host(host)
            if (worker.kind, worker.policy) == ("policy", route.policy)
        }
        if policies:
            asked = {i for a in actors for i in _asked_over_tcp(plan, route, a)}
            for index in sorted(asked & policies.keys()):
                found[inference_end(route, index)] = policies[index]
        first = worker_name("trainer", route.policy, 0)
        is_here = not route.is_frozen and plan.host_of(first) == host
        if is_here and (end := ranks_end(plan, route.policy)) is not None:
            found[end] = first
    for route in plan.learning:
        if is_source(plan, route, host) and len(hosts_of(plan)) > 1:
            found[parameters_end(route)] = RELAY
    return found


def _takers_on(plan: Plan, route: RoutePlan, host: int) -> list[WorkerPlan]:
    """The workers of a host that take blocks of a route."""
    return [w for w in plan.takers(route.policy) if plan.host_of(w.name) == host]


def ranks_end(plan: Plan, policy: str) -> str | None:
    """The end where the trainers of a policy find each other; None where they are on one host."""
    trainers = [worker.name for worker in plan.of_kind("trainer") if worker.policy == policy]
    return f"ranks/{policy}" if len({plan.host_of(name) for name in trainers}) > 1 else None


def receiver_of(plan: Plan, route: RoutePlan, actor: int) -> str:
    """The end that an actor sends its blocks to over the network."""
    receiver = actor // plan.num_takers % plan.experiment["network"]["receivers"]
    return f"samples/{route.policy}/{taker_of(plan, actor)}/{receiver}"


def asked_ends(plan: Plan, worker: str) -> list[str]:
    """Ends of policy workers that a worker asks over the network."""
    planned = plan.worker(worker)
    if planned.kind != "actor":
        return []
    return [
        inference_end(route, index)
        for route in plan.routes
        for index in _asked_over_tcp(plan, route, planned.index)
    ]


def inference_end(route: RoutePlan, index: int) -> str:
    """The end where a policy worker is asked."""
    return f"inference/{route.policy}/{index}"


def _asked_over_tcp(plan: Plan, route: RoutePlan, actor: int) -> list[int]:
    substrate, workers = asks_over(plan, route, actor)
    return workers if substrate == "tcp" else []


def _answers_here(plan: Plan, route: RoutePlan, host: int) -> list[int]:
    """Policy workers of a host that actors of it ask over shared memory."""
    found = set[int]()
    for actor in actors_on(plan, host):
        substrate, workers = asks_over(plan, route, actor)
        if substrate == "shm":
            found |= set(workers)
    return sorted(found)


def _needs_parameters(plan: Plan, route: RoutePlan, host: int) -> bool:
    if is_source(plan, route, host):
        return True
    here = plan.on_host(host)
    if any(w.kind == "actor" and plan.answers_itself(w.index) for w in here):
        return True
    return any(w.kind == "evaluator" or w.policy == route.policy for w in here)
