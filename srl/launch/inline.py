"""The inline launcher: every worker steps in turn in this thread.

A debugger works, and the same seed gives the same bits: also after an interruption, because a
checkpoint is cut between two rounds and holds every worker and every stream.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import numpy as np

from srl.core.arrays import Arrays, subset
from srl.core.errors import CheckpointError
from srl.core.telemetry import Episode
from srl.core.worker import Worker
from srl.launch.graph.connect import InlineConnector, build_worker
from srl.launch.graph.plan import Plan
from srl.launch.host.process import use_allocator, use_threads
from srl.learning.checkpoint import Checkpoint, write_part
from srl.streams.samples.workspace import load_workspace, save_workspace
from srl.transport.control import (
    Accounts,
    Backup,
    Copied,
    Enlist,
    Examine,
    Message,
    Ready,
    Restart,
    Retire,
    Save,
    Saved,
    SaveFailed,
    Stopped,
)
from srl.workers.run import evaluations_of, failure_of, notes_of, report_of
from srl.workers.watchdog import Hang, Watched, watch

_LONG_STEPS = 1000
"""Env steps of a worker, where there is replay, after which it reports also without a version."""


class InlineLauncher:
    """Steps workers round-robin, actors first."""

    writers = frozenset({"inline"})

    def __init__(
        self, plan: Plan, is_interrupted: Callable[[], bool], on_hang: Callable[[Hang], None]
    ) -> None:
        """With `on_hang`, which ends the process where an env does not come back."""
        use_allocator(plan.experiment["allocator"])
        use_threads(max(plan.threads(worker.kind) for worker in plan.workers))
        self._plan = plan
        self._is_interrupted = is_interrupted
        self._connector = InlineConnector(plan)
        names = [w.name for kind in ("actor", "trainer", "evaluator") for w in plan.of_kind(kind)]
        self._workers: list[Worker] = []
        for name in names:
            self._workers.append(build_worker(plan, name, self._connector))
        self._trainers = [w for w in self._workers if plan.worker(w.name).kind == "trainer"]
        self._replays = any(route.replay is not None for route in plan.learning)
        self._messages: list[Message] = []
        players = [Watched(w.name, w.telemetry) for w in self._workers if w not in self._trainers]
        seconds = plan.experiment["env"]["timeout_seconds"]
        self._watching = ExitStack()
        self._watch = lambda: watch(players, seconds, on_hang, is_alone=True)
        self._reported: dict[str, Mapping[str, int]] = {}
        """Worker to its counters at its last report."""

    def start(self, checkpoint: Checkpoint | None) -> None:
        """Open every worker, where there is a checkpoint with the state it had."""
        sections = {} if checkpoint is None else checkpoint.sections
        for policy, stream in self._connector.samples.items():
            if f"samples-{policy}" in sections:
                stream.load(sections[f"samples-{policy}"])
        for policy, blocks in self._connector.workspaces.items():
            if f"workspace-{policy}" in sections:
                load_workspace(blocks, sections[f"workspace-{policy}"])
        for worker in self._workers:
            if worker.name in sections:
                worker.load(sections[worker.name])
            self._load_unreported(worker, sections.get(f"telemetry-{worker.name}", {}))
        self._watching.enter_context(self._watch())
        for worker in reversed(self._workers):  # parameters exist before anybody acts
            worker.open()
            self._messages.append(Ready(worker.name, 0, 0.0, 0.0, has_torch=True))

    def poll(self, timeout_seconds: float) -> Sequence[Message]:
        """Step all workers until a batch was learned, time is up or the run was interrupted."""
        deadline = time.monotonic() + timeout_seconds
        while not self._messages and not self._is_interrupted():
            self._round()
            if time.monotonic() >= deadline:
                break
        messages, self._messages = self._messages, []
        return messages

    def save(self, order: Save) -> None:
        """Write everything as one part, between two rounds."""
        self._messages.append(Copied("inline", order.serial))
        with self._trainers[0].telemetry.time("checkpoint"):
            self._messages.append(self._write(order))

    def _write(self, order: Save) -> Saved | SaveFailed:
        sections: dict[str, Arrays] = {worker.name: worker.save() for worker in self._workers}
        for policy, stream in self._connector.samples.items():
            sections[f"samples-{policy}"] = stream.save()
        for policy, blocks in self._connector.workspaces.items():
            sections[f"workspace-{policy}"] = save_workspace(blocks)
        for worker in self._workers:
            sections[f"telemetry-{worker.name}"] = self._save_unreported(worker)
        versions = {
            self._plan.worker(trainer.name).policy: int(trainer.version)  # pyright: ignore[reportAttributeAccessIssue] - a Trainer
            for trainer in self._trainers
        }
        try:
            part = write_part(Path(order.folder), "inline", sections)
        except (OSError, CheckpointError) as error:
            return SaveFailed("inline", order.serial, str(error))
        return Saved("inline", order.serial, part, versions, self._ledgers())

    def tell(self, order: Restart | Retire | Enlist | Backup | Examine) -> None:
        """There is nobody to tell: workers and controller are one process, and die together."""

    def stop(self, order: Save | None) -> None:
        """Save and say what became of every block."""
        if order is not None:
            self.save(order)
        self._messages.append(Stopped(self._ledgers()))

    def close(self) -> None:
        """Close every worker."""
        self._watching.close()
        for worker in self._workers:
            worker.close()

    def contract(self) -> tuple[list[str], list[str]]:
        """What a checkpoint of this launcher brings back, and what it does not."""
        everything = "every worker, stream, counter and random state, blocks in flight included"
        envs = f"envs: {self._plan.env_restores}"
        _, lost = self._plan.replay_contract()
        if "not restored" not in envs:
            return [everything, envs], lost
        return [everything], [envs, *lost, *self._plan.unfinished_evaluation()]

    def _ledgers(self) -> dict[str, dict[str, int]]:
        return {
            policy: asdict(stream.blocks.table.ledger(consumer_lives=True))
            for policy, stream in self._connector.samples.items()
        }

    def _round(self) -> None:
        for worker in self._workers:
            try:
                worker.step()
            except Exception as error:  # noqa: BLE001 - reported like that of a process
                self._messages += [report_of(worker), *notes_of(worker)]
                self._messages.append(failure_of(worker.name, error))
                return
            self._messages += [*evaluations_of(worker), *notes_of(worker)]
        if any(trainer.telemetry.updates for trainer in self._trainers) or self._waits_long():
            reports = [report_of(worker) for worker in self._workers]
            self._reported = {report.worker: report.counters for report in reports}
            self._messages += [*reports, Accounts(self._ledgers())]

    def _waits_long(self) -> bool:
        """Whether much has come since the last report without a version: replay that warms up, mostly.

        It is seen, and may end by `stop.env-steps`.
        """
        if not self._replays:
            return False
        return any(
            worker.telemetry.counters["env_steps"]
            - self._reported.get(worker.name, {}).get("env_steps", 0)
            >= _LONG_STEPS
            for worker in self._workers
        )

    def _save_unreported(self, worker: Worker) -> Arrays:
        """What it counted since its last report: the manifest has only what was reported."""
        telemetry, reported = worker.telemetry, self._reported.get(worker.name, {})
        state: Arrays = {
            f"counters.{name}": np.array(count - reported.get(name, 0), np.int64)
            for name, count in telemetry.counters.items()
        }
        policies = [route.policy for route in self._plan.routes]
        episodes = [
            (e.agent_return, e.length, policies.index(e.policy)) for e in telemetry.episodes
        ]
        return state | {"episodes": np.array(episodes, np.float64).reshape(-1, 3)}

    def _load_unreported(self, worker: Worker, state: Arrays) -> None:
        for name, count in subset(state, "counters.").items():
            worker.telemetry.counters[name] += int(count)
        for agent_return, length, number in state.get("episodes", ()):
            policy = self._plan.routes[int(number)].policy
            worker.telemetry.episodes.append(Episode(float(agent_return), int(length), policy))
