"""What each part of a step costs alone: one process, one thread, one part after the other.

    python -m srl.tools.bench.alone < ORDER > COSTS

Every part is the code that a run uses, on the envs, blocks and batches of the experiment: an actor
steps real envs and fills real blocks, a staging copies them, a learner learns them. It runs in a
process of its own, started as workers are, so that threads and memory are as they have them.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from srl.core.algorithm import Learner, Records
from srl.core.arrays import Arrays
from srl.core.block import Block, Layout, input_names, route_layout
from srl.core.collective import Alone
from srl.core.experiment import Experiment
from srl.core.streams import Grant, InferenceClient, Request
from srl.core.worker import Worker
from srl.launch.graph.config import decode_experiment
from srl.launch.graph.connect import (
    InlineConnector,
    build_worker,
    make_acting_policy,
    make_learner,
    make_staging,
    worker_seed,
)
from srl.launch.graph.opening import find_opponents
from srl.launch.graph.plan import Plan, RoutePlan, make_plan
from srl.launch.graph.pool import pin
from srl.launch.host.process import use_allocator, use_threads
from srl.learning.staging import HostMemory, Memory, Staging
from srl.streams.parameters.inline import InlineParameters
from srl.tools.bench.clock import Clock, Spent, cost, repeat
from srl.transport.arena import Arena
from srl.workers.policy import HostGather, PolicyWorker

BATCHES = (1, 4, 16, 64, 256, 1024)
"""Batch sizes of inference, besides the workload's own."""
MINIBATCHES = (64, 256, 1024, 4096)
"""Minibatch sizes of the update, besides the workload's own."""
_ROUNDS_SHARE, _INFERENCE_SHARE, _UPDATE_SHARE = 0.55, 0.15, 0.3
_LEAST_ROWS = 1024
"""Rows of a batch that the update is measured on, at least."""


class Order(msgspec.Struct):
    """What to measure."""

    experiment: dict[str, Any]
    seconds: float


def measure(experiment: Experiment[Any], seconds: float) -> dict[str, Any]:
    """Costs in microseconds; takes about `seconds`."""
    with _planned(experiment) as plan:
        bench = _Bench(plan, env_threads=env_threads(experiment))
        rounds = bench.rounds(seconds * _ROUNDS_SHARE)
        routes = {}
        for number, route in enumerate(plan.learning):
            share = 1 / len(plan.learning)
            learning = bench.learning[number]
            batch = learning.batch
            routes[route.policy] = {
                "lanes_an_env": route.lanes // route.envs,
                "served": route.lanes * experiment.actors.count,
                "inference": list(
                    _inference(experiment, bench, route, batch, seconds * _INFERENCE_SHARE * share)
                ),
                "update": list(_update(plan, route, learning, seconds * _UPDATE_SHARE * share)),
            }
        bench.actor.close()
    return {"parts": rounds, "policies": routes}


def env_threads(experiment: Experiment[Any]) -> int:
    """Threads that step the envs of one group: native envs say so by an option."""
    threads = experiment.env.keywords().get("num_threads", 1)
    return threads if isinstance(threads, int) and threads > 0 else 64


def warms_up(plan: Plan) -> bool:
    """Whether first calls cost more than others: networks are compiled, or graphs captured."""
    on_gpu = any(plan.experiment[kind]["device"] != "cpu" for kind in ("policies", "trainers"))
    return on_gpu or plan.experiment["compile"]


@contextmanager
def _planned(experiment: Experiment[Any]) -> Iterator[Plan]:
    """The plan of the experiment with one actor and one trainer."""
    one = replace(
        experiment,
        actors=replace(experiment.actors, count=1),
        trainers=replace(experiment.trainers, count=1),
    )
    frozen = find_opponents(one)
    plan = make_plan(one, {p: [f.opponent for f in found] for p, found in frozen.items()})
    with tempfile.TemporaryDirectory() as folder:
        pin(Path(folder), frozen)
        yield msgspec.structs.replace(plan, folder=folder)


class _Learning:
    """One policy that learns: what a trainer is made of."""

    def __init__(self, plan: Plan, route: RoutePlan, connector: InlineConnector) -> None:
        self.clock = Clock()
        self.learner: Learner = make_learner(
            plan, route, plan.experiment["trainers"]["device"], Alone()
        )
        consumer = connector.consumer(route, 0)
        self.memory: Memory = HostMemory()
        device = plan.experiment["trainers"]["device"]
        if device != "cpu":
            self.memory = _gpu(connector.samples[route.policy].blocks.buffer).GpuMemory(device)
        self.staging: Staging = make_staging(plan, route, consumer, self.memory)
        self.staging.telemetry = self.clock
        self.rows = route.batch * route.rollout * route.lanes
        self.batch: Arrays = {}
        """The last one learned."""
        self._publisher = connector.publisher(route)
        self._version = 0
        self.publish()

    def publish(self) -> None:
        """Show the weights to the actor."""
        self._publisher.publish(self.learner.policy.weights(), self._version)

    def learn(self) -> None:
        """Learn the batch that is staged."""
        batch = self.staging.pop()
        assert batch is not None
        with self.clock.time("update"):
            self.learner.learn(batch.arrays, 0.0)
        self._version += 1
        with self.clock.time("publish"):
            self.publish()
        self.clock.counters["env_steps"] += batch.env_steps
        self.batch = {name: _on_host(array) for name, array in batch.arrays.items()}
        self.staging.learned(batch, self._version)


def _on_host(array: Any) -> np.ndarray:
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()


def _staged(memory: Memory, layout: Layout, arrays: Arrays) -> Arrays:
    """A batch where a learner gets its batches."""
    staged: Arrays = {}
    for field in layout.spec:
        staged[field.name] = memory.zeros(field, arrays[field.name].shape)
        memory.copy(staged[field.name], arrays[field.name])
    memory.wait()
    return staged


class _Bench:
    """An actor and what learns from it, taking turns in one thread."""

    def __init__(self, plan: Plan, *, env_threads: int) -> None:
        self.plan = plan
        self.kept: list[Block] = []
        """Blocks whose pages a GPU may read as long as this process lives."""
        self.connector = InlineConnector(plan)
        self.actor: Worker = build_worker(plan, plan.of_kind("actor")[0].name, self.connector)
        self.clock = Clock()
        self.actor.telemetry = self.clock
        self.learning = [_Learning(plan, route, self.connector) for route in plan.learning]
        self._env_threads = env_threads
        self._warms_up = warms_up(plan)
        self._lanes = sum(route.lanes for route in plan.learning)
        self.actor.open()
        self.clock.take()  # the first resets are not of a step

    def rounds(self, seconds: float) -> dict[str, Any]:
        """Fill, stage and learn batches for about so long; costs of each part an env step."""
        rounds = []
        until = time.perf_counter() + seconds
        least = 2 if self._warms_up else 1
        while len(rounds) < least or time.perf_counter() < until:
            rounds.append(self._round())
        measured = rounds[1:] or rounds  # the first is a warm-up, unless there is time for one only
        return {name: self._summarise(name, [r[name] for r in measured]) for name in rounds[0]}

    def _round(self) -> dict[str, tuple[Spent, float, float]]:
        """Part to what it took, its env steps and its rows."""
        wall, cpu = time.perf_counter(), time.process_time()
        while any(learning.staging.front() is None for learning in self.learning):
            for learning in self.learning:
                learning.staging.pump()
            self.actor.step()
        loop = Spent(time.perf_counter() - wall, time.process_time() - cpu)
        for learning in self.learning:
            learning.learn()
        spent, counted = self.clock.take()
        env_steps, rows = counted["env_steps"], counted["calls.env"] * self._lanes
        parts = {
            "env": (_sum(spent["env"], spent["observe"]), env_steps, rows),
            "inference": (spent["inference"], env_steps, rows),
            "send": (spent.get("send", Spent(0, 0)), env_steps, rows),
        }
        inside = _sum(*spent.values())
        for learning in self.learning:
            theirs, counts = learning.clock.take()
            for name in ("stage", "update", "publish"):
                before, _, rows_before = parts.get(name, (Spent(0, 0), 0, 0))
                total = _sum(before, theirs[name])
                parts[name] = (total, counts["env_steps"], rows_before + learning.rows)
            inside = _sum(inside, theirs["stage"])
        rest = Spent(loop.wall - inside.wall, loop.cpu - inside.cpu)
        return {**parts, "loop": (rest, env_steps, rows)}

    def _summarise(self, name: str, samples: Sequence[tuple[Spent, float, float]]) -> Any:
        threads = self._env_threads if name == "env" else 1
        scaled = [Spent(s.wall / steps, s.cpu / steps) for s, steps, _ in samples]
        rows = [Spent(s.wall / rows, s.cpu / rows) for s, _, rows in samples]
        by_row = cost(rows, 1, threads=threads)["core_us"]
        return {**cost(scaled, 1, threads=threads), "core_us_a_row": by_row}


def _sum(*spent: Spent) -> Spent:
    return Spent(sum(s.wall for s in spent), sum(s.cpu for s in spent))


def _inference(
    experiment: Experiment[Any],
    bench: _Bench,
    route: RoutePlan,
    batch: Arrays,
    seconds: float,
) -> Iterator[dict[str, Any]]:
    """Costs a row by batch size, through what answers an actor or what a policy worker does."""
    agents = route.lanes // route.envs
    sizes = {max(1, n // agents) * agents for n in BATCHES}
    sizes |= {route.lanes, route.lanes * experiment.actors.count}
    for size in sorted(sizes):
        ask = _asking(experiment, bench, route, batch, size)
        calls = max(1, 256 // size)  # so many that the clock's own cost does not show

        def call(ask: Any = ask, calls: int = calls) -> None:
            for _ in range(calls):
                ask()

        samples = repeat(call, seconds / len(sizes), warms_up=warms_up(bench.plan))
        yield {"batch": size, **cost(samples, calls * size)}


def _asking(
    experiment: Experiment[Any], bench: _Bench, route: RoutePlan, batch: Arrays, size: int
) -> Any:
    """A call that answers one request of `size` lanes."""
    agent, records = route.agent_spec(), route.records()
    block = _shown(route, records, batch, size)
    inputs = input_names(agent, records)
    row = records.burn_in
    if experiment.inference_substrate == "inline":
        client: InferenceClient = bench.connector.client(route, 0)
        grant = Grant(0, block, 0)

        def ask() -> None:
            client.post(0, grant, row)
            client.poll()

        return ask
    device = experiment.policies.device
    policy = make_acting_policy(
        bench.plan,
        route,
        seed=worker_seed(bench.plan, "policy", 0, route),
        compute=bench.plan.compute(device),
    )
    parameters = InlineParameters()
    parameters.publish(policy.weights(), 0)
    bench.kept.append(block)
    gather = HostGather() if device == "cpu" else _gpu(block.buffer).GpuGather(device)
    return PolicyWorker("policy", policy, _Requests(block, inputs, row), parameters, gather).step


def _gpu(buffer: np.ndarray) -> Any:
    """What hosts with a GPU use, which may read these pages."""
    gpu = import_module("srl.learning.gpu")
    gpu.register(buffer)
    return gpu


def _shown(route: RoutePlan, records: Records, batch: Arrays, lanes: int) -> Block:
    """A block of `lanes` lanes whose rows are those of a batch that was recorded."""
    agents = route.lanes // route.envs
    layout = route_layout(
        route.agent_spec(), records, rollout=records.chunk, lanes=lanes, envs=lanes // agents
    )
    arena = Arena.create("bench", layout.nbytes)
    block = Block(layout, arena.buffer)
    arena.close()
    for name, array in resized(batch, layout, lanes).items():
        target = block[name]
        np.copyto(target, array if array.shape == target.shape else array[: len(target)])
    return block


def resized(batch: Mapping[str, np.ndarray], layout: Layout, lanes: int) -> Arrays:
    """A batch with another number of lanes: the first ones, or all of them again and again."""
    agents = layout.lanes // layout.envs
    resized: Arrays = {}
    for field in layout.spec:
        axis = 0 if field.per == "head" else 1
        array = batch[field.name]
        wanted = lanes // agents if field.per == "env" else lanes
        resized[field.name] = array.take(np.arange(wanted) % array.shape[axis], axis=axis)
    return resized


class _Requests:
    """A policy worker's end of an inference stream on which the same row is always asked for."""

    def __init__(self, block: Block, inputs: Sequence[str], row: int) -> None:
        self._request = Request(0, 0, 0, 0, block.shown(tuple(inputs), row), None)

    def recv(self) -> list[Request]:
        """The request."""
        return [self._request]

    def reply(self, request: Request, outputs: Mapping[str, np.ndarray], version: int) -> None:
        """Nobody reads it."""

    def pollables(self) -> Sequence[Any]:
        """Nothing to wait on."""
        return ()

    def close(self) -> None:
        """Nothing to free."""


def _update(
    plan: Plan, route: RoutePlan, learning: _Learning, seconds: float
) -> Iterator[dict[str, Any]]:
    """Costs a row and pass by minibatch size, of an update with one pass."""
    options = plan.experiment["algorithm"]
    if not {"minibatch_size", "epochs"} <= options.keys():
        return
    agents = route.lanes // route.envs
    own = options["minibatch_size"]
    sizes = sorted({*MINIBATCHES, own})
    for size in sizes:
        rows = max(size, _LEAST_ROWS) if size != own else plan.experiment["algorithm"]["batch_size"]
        lanes = max(agents, -(-rows // route.rollout // agents) * agents)
        changed = {**options, "minibatch_size": size, "epochs": 1}
        changed["batch_size"] = lanes * route.rollout
        other = msgspec.structs.replace(plan, experiment={**plan.experiment, "algorithm": changed})
        learner = make_learner(other, route, other.experiment["trainers"]["device"], Alone())
        layout = route.layout()
        arrays = _staged(learning.memory, layout, resized(learning.batch, layout, lanes))
        samples = repeat(
            lambda: learner.learn(arrays, 0.0),  # noqa: B023 - called here
            seconds / len(sizes),
            warms_up=warms_up(plan),
        )
        yield {"minibatch": size, **cost(samples, lanes * route.rollout)}


def main() -> int:
    """Entry point of the process that measures."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    out, sys.stdout = sys.stdout, sys.stderr  # envs may print
    experiment = decode_experiment(order.experiment)
    use_allocator(experiment.allocator)
    use_threads(1)
    for device in {experiment.policies.device, experiment.trainers.device} - {"cpu"}:
        import_module("srl.learning.gpu").use(device)
    costs = measure(experiment, order.seconds)
    out.write(json.dumps(costs) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
