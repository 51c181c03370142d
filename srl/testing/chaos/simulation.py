"""A whole run in one thread, under a clock of its own, by a schedule of faults drawn from a seed.

Workers, streams, slot tables and the supervisor are the real ones; sockets, time and processes are
simulated. A process may die at any call on a socket, around any write to a slot table, and in any
meeting of several trainers.
"""

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from unittest import mock

import numpy as np

from srl.core.arrays import Arrays
from srl.core.collective import Alone
from srl.core.errors import SrlError, StreamError
from srl.core.experiment import (
    ActorsConfig,
    EnvConfig,
    EvaluationConfig,
    Experiment,
    PoliciesConfig,
    RestartsConfig,
    TrainersConfig,
)
from srl.core.worker import Worker
from srl.launch.graph.connect import ProcessConnector, build_worker
from srl.launch.graph.hosts import arenas
from srl.launch.graph.plan import Plan, make_plan
from srl.launch.supervision import Supervisor
from srl.streams.inference import ends as inference
from srl.streams.parameters.shm import ShmPublisher, ShmSubscriber
from srl.streams.samples import ends as samples
from srl.testing.chaos import parts
from srl.testing.chaos.checker import Checker, Violation
from srl.testing.chaos.network import Clock, KilledError, Network, Process, Weather
from srl.testing.chaos.ranks import SimulatedGroup, SimulatedRank
from srl.transport.control import Failure
from srl.transport.slots import SlotTable
from srl.workers import trainer as trainers
from srl.workers.run import failure_of

_STEPS = 60_000
"""Of workers, in all: more than any schedule needs."""
_BUSY_SECONDS = 0.001
_IDLE_SECONDS = 0.05
_HARM = 0.1
"""Chance of a fault in a turn."""
_HOSTILE = Weather(lost=0.1, repeated=0.1, delay_seconds=0.05)


@dataclass(frozen=True)
class Topology:
    """What a simulated run is made of."""

    actors: int = 2
    groups: int = 1
    policies: int = 1
    """Policy workers; 0: inference in the actors."""
    max_staleness: int = 1
    trainers: int = 1


TOPOLOGIES = (
    Topology(),
    Topology(policies=0),
    Topology(policies=2, groups=2),
    Topology(policies=2, max_staleness=0),
    Topology(actors=1, groups=2, policies=0, max_staleness=2),
    Topology(trainers=2),
    Topology(actors=4, policies=0, trainers=2),
)


@dataclass(frozen=True)
class Outcome:
    """What became of one schedule."""

    seed: int
    topology: Topology
    versions: int
    faults: tuple[str, ...]
    violations: tuple[Violation, ...]
    seen: dict[str, int]
    """How often each rule was looked at."""


@dataclass
class _Life:
    """A worker in a process that lives."""

    worker: Worker
    process: Process
    incarnation: int
    asleep_until: float = 0.0
    slowness: int = 1
    """It is stepped once in so many turns."""
    rank: SimulatedRank | None = None
    """Of a trainer that is not alone."""

    @property
    def is_waiting(self) -> bool:
        """Whether it is in the middle of a call, for others to come to a meeting."""
        return self.rank is not None and self.rank.fiber.is_busy

    def call(self, do: Callable[[], Any]) -> Any:
        """Have it do something, or go on with what it is in the middle of; False while that waits."""
        return do() if self.rank is None else self.rank.fiber.run(do)

    def close(self) -> None:
        """End the thread that its calls run in."""
        if self.rank is not None:
            self.rank.close()


@cache
def plan_of(topology: Topology) -> Plan:
    """The plan of a run; made once, for it imports and probes."""
    experiment = Experiment(
        name="chaos",
        env=EnvConfig(name="srl.testing.chaos.parts:Numbers"),
        algorithm=parts.JudgeConfig(batch_size=3 * 2 * topology.actors),
        actors=ActorsConfig(
            count=topology.actors, envs=2 * topology.groups, groups=topology.groups
        ),
        policies=PoliciesConfig(count=max(1, topology.policies)),
        trainers=TrainersConfig(count=topology.trainers),
        evaluation=EvaluationConfig(episodes=0),
        inference="shm" if topology.policies else "inline",
        max_staleness=topology.max_staleness,
    )
    return make_plan(experiment)


def simulate(seed: int, *, faults: int = 6, versions: int = 6) -> Outcome:
    """Run one schedule: so many faults, and then so many versions more without any."""
    rng = random.Random(seed)
    topology = TOPOLOGIES[seed % len(TOPOLOGIES)]
    return Simulation(rng, topology).run(seed, faults, versions)


class Simulation:
    """One run."""

    def __init__(self, rng: random.Random, topology: Topology) -> None:
        self._rng = rng
        self._topology = topology
        self._plan = plan_of(topology)
        self._clock = Clock(100.0)
        self._network = Network(rng, self._clock)
        self._checker = Checker(topology.max_staleness, progress_at=self._clock.now)
        self._arenas = {n: np.zeros(size, np.uint8) for n, size in arenas(self._plan).items()}
        budget = RestartsConfig(
            actors=50, policies=50, trainers=50, wait_seconds=rng.choice([0.0, 0.3])
        )
        self._supervisor = Supervisor(self._plan, budget, {})
        self._lives: dict[str, _Life] = {}
        self._saved: Arrays | None = None
        self._save_at = self._clock.now
        self._faults: list[str] = []
        self._caller: Process | None = None
        """Whose code runs now."""
        shape = topology.actors, self._plan.routes[0].slots, topology.trainers
        self._table = SlotTable(self._arenas["samples/main"], *shape)

    def run(self, seed: int, faults: int, versions: int) -> Outcome:
        """Follow the schedule to its end."""
        parts.world = parts.World(self._checker)
        with self._patched():
            try:
                self._start([worker.name for worker in self._plan.workers], 1)
                self._play(faults, versions)
                self._stop()
            finally:
                for life in self._lives.values():
                    life.close()
                parts.world = None
        return Outcome(
            seed,
            self._topology,
            self._checker.latest + 1,
            tuple(self._faults),
            tuple(self._checker.violations),
            dict(self._checker.seen),
        )

    def _play(self, faults: int, versions: int) -> None:
        until: int | None = None
        for _ in range(_STEPS):
            if self._checker.violations:
                return
            if until is None and len(self._faults) >= faults:
                self._network.weather = Weather()
                until = self._checker.latest + versions
            if until is not None and self._checker.latest >= until:
                return
            moved = self._turn()
            if until is None and self._rng.random() < _HARM:
                self._harm()
            self._clock.now += _BUSY_SECONDS if moved else _IDLE_SECONDS
            self._network.deliver()
            self._supervise()
            self._checker.tick(self._clock.now)
        self._checker.must("ends", False, f"still runs after {_STEPS} turns")

    def _turn(self) -> bool:
        """Step every worker that is awake, in any order."""
        moved = False
        names = list(self._lives)
        self._rng.shuffle(names)
        for name in names:
            life = self._lives.get(name)
            if life is None or self._clock.now < life.asleep_until:
                continue
            if life.slowness > 1 and self._rng.randrange(life.slowness):
                continue
            moved |= bool(self._guard(name, life, life.worker.step))
            self._hear(name, life)
        return moved

    def _guard(self, name: str, life: _Life, do: Callable[[], Any]) -> Any:
        """Run code of a process: it may die, or raise."""
        self._caller = life.process
        try:
            return life.call(do)
        except KilledError:
            self._bury(name, life, Failure(name, "was killed", "", life.incarnation))
        except SrlError as error:
            is_left = life.rank is not None and life.rank.group.is_broken
            of_others = isinstance(error, StreamError) and is_left
            self._checker.must("raises", of_others, f"{name}: {error}")
            self._bury(name, life, failure_of(name, error, life.incarnation))
        finally:
            self._caller = None
        return False

    def _hear(self, name: str, life: _Life) -> None:
        """What a worker reports, as the controller hears it."""
        if name not in self._lives or life.is_waiting:
            return
        telemetry = life.worker.telemetry
        if telemetry.counters.get("env_steps") or telemetry.counters.get("requests"):
            self._supervisor.progressed(name, life.incarnation)
        for update in telemetry.take_updates():
            self._checker.learned(int(update["staleness_max"]))
        telemetry.take_episodes()
        if name == "trainer-0" and self._clock.now >= self._save_at:
            self._save_at = self._clock.now + self._rng.uniform(0.01, 0.3)
            try:
                self._saved = {k: v.copy() for k, v in life.worker.save().items()}
            except StreamError:  # the others left it in the middle of a version
                return
            self._supervisor.progressed(name, life.incarnation)
            self._checker.ledger(self._table.ledger(consumer_lives=True), "at a checkpoint")
            for other, rank in self._lives.items():
                if other.startswith("trainer") and not rank.is_waiting:
                    self._check_slots(rank.worker)

    def _check_slots(self, trainer: Any) -> None:
        """Between two steps, a block that was delivered was taken too."""
        consumer = trainer._staging._consumer
        arrived = {(delivery.producer, delivery.slot) for delivery in consumer._arrived}
        for (producer, slot), generation in consumer._noticed.items():
            leaked = (producer, slot) not in arrived and self._table.is_ready(
                producer, slot, generation
            )
            self._checker.must("slot", not leaked, f"slot {slot} of actor {producer} is not free")

    def _harm(self) -> None:
        """One fault, of any kind."""
        if not self._lives:
            return
        name = self._rng.choice(sorted(self._lives))
        life = self._lives[name]
        kind = self._rng.choice(["kill", "kill in a call", "sleep", "slow", "weather"])
        if kind == "kill":
            self._bury(name, life, Failure(name, "was killed", "", life.incarnation))
        elif kind == "kill in a call":
            life.process.calls_left = self._rng.randrange(12)
        elif kind == "sleep":
            life.asleep_until = self._clock.now + self._rng.uniform(0.1, 5.0)
        elif kind == "slow":
            life.slowness = self._rng.choice([1, 3, 20])
        else:
            self._network.weather = self._rng.choice(
                [Weather(), _HOSTILE, replace(_HOSTILE, lost=0.4)]
            )
        self._faults.append(f"{kind} {name}" if kind != "weather" else kind)

    def _bury(self, name: str, life: _Life, failure: Failure) -> None:
        self._network.bury(life.process)
        life.close()
        del self._lives[name]
        verdict = self._supervisor.died(failure, self._clock.now)
        self._checker.must(
            "ends", verdict.reason is None, f"the run was given up: {verdict.reason}"
        )

    def _supervise(self) -> None:
        for restart in self._supervisor.due(self._clock.now):
            for name in restart.workers:
                if name in self._lives:
                    life = self._lives.pop(name)
                    self._network.bury(life.process)
                    life.close()
            self._start(restart.workers, restart.incarnation)

    def _start(self, names: Sequence[str], incarnation: int) -> None:
        """Begin a life of workers, as `srl/workers/run.py` does."""
        group = SimulatedGroup(self._topology.trainers, self._rng)
        lives = {name: self._build(name, incarnation, group) for name in names}
        self._lives |= lives
        for name, life in lives.items():
            self._guard(name, life, life.worker.open)

    def _build(self, name: str, incarnation: int, group: SimulatedGroup) -> _Life:
        process = Process(name)
        plan, context = self._plan, self._network.context(process)
        is_rank = name.startswith("trainer") and group.size > 1
        rank = group.join(plan.worker(name).index, process) if is_rank else None
        connector = ProcessConnector(
            plan,
            self._arenas,
            "run",
            incarnation,
            rank or Alone(),
            context=context,  # pyright: ignore[reportArgumentType] - as much of one as is used
        )
        self._checker.must("raises", True, "")
        self._caller = process
        worker: Any = build_worker(plan, name, connector)
        if name.startswith("trainer"):
            spec = plan.routes[0].weights_spec()
            published = ShmSubscriber(self._arenas["parameters/main"], spec).latest()
            if self._saved is not None:
                worker.load(self._saved)
            worker.follow(published)
        self._caller = None
        return _Life(worker, process, incarnation, rank=rank)

    def _stop(self) -> None:
        """Stop in order, and see what is left."""
        for kind in ("actor", "policy", "trainer"):
            names = [name for name in self._lives if name.startswith(kind)]
            while names:  # ranks meet once more
                names = [name for name in names if not self._is_closed(name)]
        self._checker.ledger(self._table.ledger(consumer_lives=False), "at the end")
        self._checker.left("open sockets", self._network.open_sockets())

    def _is_closed(self, name: str) -> bool:
        """Have a worker go on with what it is in the middle of, and then close."""
        life = self._lives[name]
        was_waiting = life.is_waiting
        self._caller = life.process
        try:
            life.call(life.worker.close)
        except KilledError:  # a death at the very end, which nobody mends
            self._network.bury(life.process)
        else:
            if was_waiting or life.is_waiting:
                return False
        finally:
            self._caller = None
        life.close()
        del self._lives[name]
        return True

    @contextlib.contextmanager
    def _patched(self) -> Iterator[None]:
        """Time, and what is seen of a process from outside, are the simulation's."""
        simulation = self

        def seen(method: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                simulation._call()
                result = method(*arguments, **options)
                simulation._call()
                return result

            return call

        def publish(publisher: ShmPublisher, weights: Any, version: int) -> None:
            simulation._call()
            parts.current().weights_of[version] = int(weights["number"][0])
            simulation._checker.published(version, simulation._clock.now)
            original(publisher, weights, version)
            simulation._call()

        original = ShmPublisher.publish
        writes = ("publish", "take", "abandon", "count_consumed", "count_lost")
        with contextlib.ExitStack() as stack:
            for module in (samples, inference, trainers):
                stack.enter_context(mock.patch.object(module, "time", simulation._clock))
            for name in writes:
                patched = seen(getattr(SlotTable, name))
                stack.enter_context(mock.patch.object(SlotTable, name, patched))
            stack.enter_context(mock.patch.object(ShmPublisher, "publish", publish))
            yield

    def _call(self) -> None:
        """A write to shared memory: whoever does it may die before or after."""
        if self._caller is not None:
            self._caller.call()
