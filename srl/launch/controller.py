"""The controller: one a run. Knows the graph, adds up reports, decides when to stop.

It talks only to a launcher, and is the same for all of them.
"""

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import msgspec

from srl.core.errors import CheckpointError, ConfigError, SrlError
from srl.core.experiment import Experiment
from srl.core.telemetry import EvaluatedVersion, Note, Telemetry
from srl.launch.doctor import Doctor
from srl.launch.evaluate import evaluate, players_of
from srl.launch.evaluations import Evaluations
from srl.launch.folder import RunFolder
from srl.launch.graph.config import encode_experiment
from srl.launch.graph.plan import Plan
from srl.launch.graph.resuming import shape_of
from srl.launch.inline import InlineLauncher
from srl.launch.lives import Lives
from srl.launch.local import LocalLauncher
from srl.launch.ray import RayLauncher
from srl.launch.saving import MOST_FAILURES, Saving
from srl.learning.checkpoint import (
    Checkpoint,
    Score,
    latest_checkpoint,
    read_checkpoint,
    remove_unfinished,
)
from srl.telemetry.files import Writes
from srl.telemetry.memory import own_megabytes
from srl.telemetry.progress import Progress
from srl.telemetry.sinks import JsonLines, Prometheus, Sink, TensorBoard, WandB
from srl.telemetry.view import Silent, View
from srl.transport.control import (
    Accounts,
    Backup,
    Copied,
    Enlist,
    Evaluated,
    Examine,
    Examined,
    Failure,
    Message,
    Noted,
    Ready,
    Report,
    Restart,
    Retire,
    Save,
    Saved,
    SaveFailed,
    Stopped,
)
from srl.transport.slots import Ledger
from srl.workers.evaluator import keep_version
from srl.workers.run import failure_of
from srl.workers.watchdog import Hang, Watched, watch

_POLL_SECONDS = 0.1
_SHOW_SECONDS = 1.0
_STOP_SECONDS = 150.0
"""More than the node agent gives its workers, one kind after the other."""
_LOST_SECONDS = 5.0
"""A node agent that does not answer will not stop either."""
_OF_A_RUN = "config.json", "summary.json"
"""Files that a resumed run that is refused leaves as they were."""
_SHOW_EVALUATION_SECONDS = 5.0
_WRITE_SECONDS = 600.0
"""What a checkpoint may take before it counts as one that failed: a disk that hangs says nothing."""
_BACKUP_SECONDS = 0.5
_BACKUP_SHARE = 0.02
"""Of the controller's time, at most: a large run is told of less often."""
_FAILED = 3
"""Exit code of a run that failed, where nobody else is left to say so."""


class Launcher(Protocol):
    """Where the workers run."""

    writers: frozenset[str]
    """Who writes a part of every checkpoint."""

    def start(self, checkpoint: Checkpoint | None) -> None:
        """Start every worker, from a checkpoint where there is one."""
        ...

    def poll(self, timeout_seconds: float) -> Sequence[Message]:
        """What the workers have said; waits for it at most this long."""
        ...

    def save(self, order: Save) -> None:
        """Have a checkpoint written; `Saved` follows by `poll`, from every writer."""
        ...

    def tell(self, order: Restart | Retire | Enlist | Backup | Examine) -> None:
        """Pass an order on to those it is for."""
        ...

    def stop(self, order: Save | None) -> None:
        """Stop in order, with a last checkpoint; `Stopped` follows by `poll`."""
        ...

    def close(self) -> None:
        """End whatever still runs and free everything; may be called twice."""
        ...

    def contract(self) -> tuple[list[str], list[str]]:
        """What a checkpoint brings back, and what it does not, in words."""
        ...


class Watcher(Protocol):
    """Hears what the workers say, beside the controller."""

    def hear(self, messages: Sequence[Message]) -> str | None:
        """Take messages in; a reason ends the run, None lets it go on."""
        ...


class Interrupts:
    """Counts Ctrl-C and SIGTERM; the second Ctrl-C ends the process at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number

    @property
    def is_set(self) -> bool:
        """Whether somebody asked to stop."""
        return self.signal is not None


class Controller:
    """Runs one experiment in one folder, from its start or from a checkpoint."""

    def __init__(
        self,
        experiment: Experiment[Any],
        plan: Plan,
        folder: RunFolder,
        view: View,
        *,
        checkpoint: Checkpoint | None,
        notes: Sequence[str] = (),
        watcher: Watcher | None = None,
    ) -> None:
        self._experiment = experiment
        self._plan = plan
        self._folder = folder
        self._view = view
        self._checkpoint = checkpoint
        self._notes = (*notes, *plan.warnings())
        self._watcher = watcher
        self._watched: str | None = None
        """Why the watcher ends the run."""
        learning = [route.policy for route in plan.learning]
        frozen = [route.policy for route in plan.routes if route.is_frozen]
        is_inline = experiment.launcher == "inline"
        self._progress = Progress(learning, frozen, takes_turns=is_inline)
        self._progress.memory.expected = plan.replay_growth
        self._failure: Failure | None = None
        self._ledgers: dict[str, Ledger] | None = None
        """Policy to what became of its blocks in this start of the run; None before its end."""
        self._last_ledgers: dict[str, Ledger] = {}
        self._ledgers_before = {policy: Ledger() for policy in learning}
        self._started = time.monotonic()
        self._lives = Lives(experiment, plan)
        self._restarts_before = 0
        patience = math.inf if is_inline else experiment.hangs.seconds
        self._doctor = Doctor(plan, patience, self._started, plan.late)
        self._is_stopping = False
        self._was_loaded = False
        """Whether the checkpoint was taken over, where that is known at once."""
        self._is_as_before = False
        """Whether the folder is, as this start was refused."""
        self.is_refused = False
        """Whether the launcher did not let it start."""
        self._backup_at = 0.0
        self._status = "failed"
        self._reason = ""
        self._eval_return: float | None = None
        self._eval_returns: dict[str, float] = {}
        """Policy to the mean of its own."""
        self._contract: tuple[list[str], list[str]] = ([], [])
        remove_unfinished(folder.checkpoints)
        self._saving = Saving(folder.checkpoints.resolve(), experiment.checkpoint.keep)
        self._not_saved = ""
        """Why the last checkpoint that failed did."""
        self._sinks: list[Sink] = []
        self._writes = Writes(self._say)
        keep = experiment.evaluation.keep
        self._evaluations = Evaluations(folder, learning, self._writes, keep=keep)
        self._show_at = 0.0
        self._ended: float | None = None
        self._handlers: dict[type[Message], Callable[[Any], None]] = {
            Report: self._on_report,
            Evaluated: lambda message: self._on_evaluated(message.result),
            Ready: self._on_ready,
            Noted: lambda message: self._on_note(message.worker, message.note),
            Failure: self._on_failure,
            Accounts: self._on_accounts,
            Copied: lambda message: self._saving.copied(message, self._manifest()),
            Saved: self._on_saved,
            SaveFailed: self._on_saved,
            Examined: self._on_examined,
            Stopped: self._on_stopped,
        }
        if checkpoint is not None:
            manifest = checkpoint.manifest
            self._progress.load(manifest["progress"])
            self._progress.seconds_before = float(manifest["seconds"])
            self._ledgers_before |= _ledgers_of(manifest["ledgers_before"])
            self._lives.rolled_back |= manifest.get("rolled_back", {})
            self._restarts_before = int(manifest.get("worker_restarts", 0))
            for policy, then in _ledgers_of(manifest["ledgers"]).items():
                if f"samples-{policy}" in checkpoint.sections:
                    self._last_ledgers[policy] = then
                else:  # what was in flight ended with the process that held it
                    self._ledgers_before[policy] += then.ended()

    def run(self) -> dict[str, Any]:
        """Run to the end; returns the summary. Nothing is left behind, however it ends."""
        self._status = "failed"
        with Interrupts() as interrupts:
            try:
                self._train(interrupts)
                if self._status == "completed" and self._experiment.evaluation.episodes:
                    self._evaluate(interrupts)
            except KeyboardInterrupt:
                self._status, self._reason = "interrupted", "stopped by SIGINT, twice: at once"
                raise
            except OSError as error:  # the run folder: a full disk, a folder that went away
                self._status, self._reason = "failed", f"{error}"
                self._say(f"the run failed: {error}")
            finally:
                self._folder.remove_unfinished()  # on a full disk, the room that this needs
                self._folder.release()
                if not self._is_as_before:
                    with contextlib.suppress(OSError):
                        self._write_summary()
                self._close_sinks()
        return self._summary()

    def _train(self, interrupts: Interrupts) -> None:
        """Run the workers; sets status and reason."""
        names = [name for name in _OF_A_RUN if (self._folder.path / name).exists()]
        before = {name: self._folder.read(name) for name in names}
        self._folder.write("config.json", encode_experiment(self._experiment))
        try:
            self._folder.reserve()
            self._status = "running"
            self._write_summary()
            for note in self._notes:
                self._say(f"note: {note}")
            if self._checkpoint is not None and (reason := self._stop_rule()) is not None:
                self._reason = f"{reason} already: nothing was left to do"
                self._open_sinks()
            else:
                self._run(interrupts)
            if self._failure is not None:
                self._status = "failed"
            elif (reason := self._interrupted(interrupts)) is not None:
                self._status, self._reason = "interrupted", reason
            else:
                self._status = "completed"
                if not self._progress.version:
                    self._say(
                        "note: nothing was learned: no batch came together before the run's end"
                    )
        except BaseException as error:
            self._status = "failed"
            self._reason = self._reason or (str(error) if isinstance(error, SrlError) else "")
            if before and not self._was_loaded and isinstance(error, ConfigError | CheckpointError):
                self._is_as_before = True
                for name, data in before.items():
                    with contextlib.suppress(OSError):
                        self._folder.write(name, data)
            raise

    def _open_sinks(self) -> None:
        versions = None if self._checkpoint is None else self._checkpoint.manifest["versions"]
        self._sinks.append(JsonLines(self._folder.metrics, self._writes, versions=versions))
        for note in self._evaluations.open(versions):
            self._say(f"note: {note}")
        self._sinks.append(TensorBoard(self._folder.path / "tb", self._writes))
        metrics = self._experiment.metrics
        if metrics.prometheus_port is not None:
            endpoint = Prometheus(metrics, self._experiment.name)
            self._sinks.append(endpoint)
            self._say(f"metrics for Prometheus: {endpoint.address}")
        if metrics.wandb is not None:
            config = encode_experiment(self._experiment)
            self._sinks.append(WandB(metrics.wandb, self._folder.path, config))

    def _run(self, interrupts: Interrupts) -> None:
        try:
            launcher = self._launch(interrupts)
        except ConfigError:
            self.is_refused = True
            raise
        except SystemExit:  # the answer to SIGTERM while Ray starts, or nodes are waited for
            if interrupts.is_set:
                return
            raise
        self._contract = launcher.contract()
        try:
            try:
                launcher.start(self._checkpoint)
            except SystemExit:  # the same, while hosts are waited for
                if interrupts.is_set:
                    return
                raise
            self._was_loaded = True
            self._open_sinks()  # only now: what the run learns again is removed
            save_at = time.monotonic() + self._experiment.checkpoint.seconds
            while not self._is_over(interrupts):
                messages = launcher.poll(_POLL_SECONDS)
                self._absorb(messages)
                self._check_saving()
                if self._watcher is not None:
                    self._watched = self._watcher.hear(messages)
                self._supervise(launcher)
                self._show()
                self._show_state()
                if time.monotonic() >= save_at and self._may_save():
                    pause = self._saving.pause(self._experiment.checkpoint.seconds)
                    save_at = time.monotonic() + pause
                    if (order := self._saving.order(launcher.writers)) is not None:
                        launcher.save(order)
            # Inline, a failure leaves a worker half through its step: nothing to go on from.
            is_sound = self._failure is None or self._experiment.launcher != "inline"
            self._is_stopping = True
            launcher.stop(self._saving.order(launcher.writers) if is_sound else None)
            is_agent_lost = self._failure is not None and self._failure.worker == "node-agent"
            is_agent_lost &= len(self._plan.all_hosts) == 1  # else others still have to end
            patience = _STOP_SECONDS + 2 * self._plan.replay_seconds  # of buffers, then trainers
            deadline = time.monotonic() + (_LOST_SECONDS if is_agent_lost else patience)
            while self._ledgers is None and time.monotonic() < deadline:
                self._absorb(launcher.poll(_POLL_SECONDS))
            if self._ledgers is None and not is_agent_lost:
                words = f"did not stop within {patience:.0f} s and was ended"
                self._fail(Failure("node-agent", words, ""))
                self._reason = f"node-agent: {words}"
            self._check_last_saving()
        finally:
            self._ended = time.monotonic()
            launcher.close()

    def _launch(self, interrupts: Interrupts) -> Launcher:
        path = self._folder.path
        if self._experiment.launcher == "inline":
            return InlineLauncher(self._plan, lambda: interrupts.is_set, self._hung)
        if self._experiment.launcher == "ray":
            return RayLauncher(self._plan, path, lambda: interrupts.is_set, self._say)
        return LocalLauncher(self._plan, path, self._folder.held)

    def _supervise(self, launcher: Launcher) -> None:
        """Have those started again whose time has come, and tell agents what they may need."""
        newest = self._saving.last or (self._checkpoint and self._checkpoint.path)
        now = time.monotonic()
        for order in self._lives.orders(None if newest is None else str(newest.resolve()), now):
            if isinstance(order, Restart):
                self._begin_again(order, now)
            launcher.tell(order)
        if self._doctor.look(now):
            launcher.tell(Examine())
        if now >= self._backup_at:
            keep = self._experiment.checkpoint.keep
            manifest = msgspec.json.encode(self._manifest())
            launcher.tell(Backup(str(self._folder.checkpoints.resolve()), keep, manifest))
            took = time.monotonic() - now
            self._backup_at = now + max(_BACKUP_SECONDS, took / _BACKUP_SHARE)

    def _begin_again(self, order: Restart, now: float) -> None:
        self._saving.give_up(order.workers)
        for worker in order.workers:
            self._doctor.restarting(worker, order.incarnation, now)

    def _may_save(self) -> bool:
        return bool(self._progress.version) and not self._failure and not self._saving.is_busy

    def _check_saving(self) -> None:
        """Say which checkpoints failed; the run ends where that is all they do."""
        self._saving.expect(_WRITE_SECONDS + self._plan.replay_seconds)
        for note in self._saving.take_notes():
            self._not_saved = note
            self._say(f"note: {note}")
        if self._saving.is_hopeless and self._failure is None:
            self._fail_saving(f"{MOST_FAILURES} checkpoints in a row were not written")

    def _check_last_saving(self) -> None:
        """A run without its last checkpoint has failed, unless its trainer was between two lives."""
        self._check_saving()
        if self._failure is not None or self._saving.is_last_whole:
            return
        words = "the last checkpoint of the run was not written"
        if self._saving.has_last_failed:
            self._fail_saving(words)
        else:
            self._say(f"note: {words}: who writes it had died, or did not end in time")

    def _fail_saving(self, words: str) -> None:
        again = f"'srl resume {self._folder.path}' goes on from the newest"
        reason = "; ".join(filter(None, (words, self._not_saved, again)))
        self._fail(Failure("checkpoints", reason, "", is_user_error=True))
        self._reason = f"checkpoints: {reason}"

    def _is_over(self, interrupts: Interrupts) -> bool:
        self._reason = self._failed() or self._interrupted(interrupts) or self._stop_rule() or ""
        return bool(self._reason)

    def _failed(self) -> str | None:
        if self._failure is None and (unanswered := self._doctor.unanswered()) is not None:
            self._fail(unanswered)
        return None if self._failure is None else f"{self._failure.worker}: {self._failure.message}"

    def _interrupted(self, interrupts: Interrupts) -> str | None:
        if interrupts.signal is None:
            to = self._lives.preempted
            return None if to is None else f"stopped by SIGTERM to {to}"
        return f"stopped by {signal.Signals(interrupts.signal).name}"

    def _stop_rule(self) -> str | None:
        stop, progress = self._experiment.stop, self._progress
        if self._watched is not None:
            return self._watched
        if stop.env_steps is not None and progress.total("env_steps") >= stop.env_steps:
            return f"stop.env-steps {stop.env_steps} reached"
        if stop.seconds is not None and self._seconds() >= stop.seconds:
            return f"stop.seconds {stop.seconds:g} reached"
        mean = progress.mean_return if progress.is_window_full else None
        if stop.return_ is not None and mean is not None and mean >= stop.return_:
            return f"stop.return {stop.return_:g} reached"
        return None

    def _absorb(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._lives.hear(message)
            self._doctor.hear(message, time.monotonic())
            handle = self._handlers.get(type(message))
            if handle is not None:
                handle(message)

    def _on_ready(self, ready: Ready) -> None:
        self._progress.memory.forget(ready.worker)
        name = f"logs/{ready.worker}.json"
        self._writes.attempt(name, self._folder.write, name, _ready_facts(ready))

    def _on_accounts(self, accounts: Accounts) -> None:
        self._last_ledgers = _ledgers_of(accounts.ledgers)
        self._on_memory(accounts.megabytes)

    def _on_saved(self, answer: Saved | SaveFailed) -> None:
        for part in self._saving.add(answer):
            self._lives.saved(part)  # dead trainers go on from a checkpoint that is whole

    def _on_stopped(self, stopped: Stopped) -> None:
        self._ledgers = _ledgers_of(stopped.ledgers)
        if not stopped.ledgers:  # the agent died with its arenas: its last word counts
            self._ledgers = {p: then.ended() for p, then in self._last_ledgers.items()}

    def _on_report(self, report: Report) -> None:
        self._progress.on_report(
            report.worker, report.counters, report.seconds, report.episodes, report.incarnation
        )
        for update in report.updates:
            policy = self._plan.worker(report.worker).policy
            self._learned(policy, self._progress.on_update(policy, update))

    def _on_failure(self, failure: Failure) -> None:
        """A death: the run ends with it, or goes on."""
        if self._is_stopping and not self._lives.is_writer(failure.worker):
            self._keep_error(failure)  # it was to end anyway
            return
        if self._is_stopping or self._failure or self._experiment.launcher == "inline":
            self._fail(failure)
            return
        verdict = self._lives.died(failure, time.monotonic())
        self._doctor.given_up(verdict.given_up)
        if verdict.reason is not None:
            self._fail(msgspec.structs.replace(failure, message=verdict.reason))
            return
        path = self._keep_error(failure)
        if verdict.note is not None:
            self._say(f"note: {verdict.note}{self._goes_on_from(failure.worker)} (kept in {path})")

    def _goes_on_from(self, worker: str) -> str:
        """Of a trainer that starts again, with what: in words."""
        if not self._lives.is_writer(worker):
            return ""
        newest = self._saving.last or (self._checkpoint and self._checkpoint.path)
        if newest is None:
            return ", from the beginning: there is no checkpoint yet (--checkpoint.seconds)"
        return f", from checkpoint {newest.name}"

    def _on_examined(self, examined: Examined) -> None:
        """Say who holds the run up, and do as `hangs.action` says."""
        found = self._doctor.diagnose(examined, time.monotonic())
        if found is None or self._is_stopping:
            return
        path = self._folder.free_error("hang-1.txt")
        self._writes.attempt(f"errors/{path.name}", path.write_text, found.text)
        if found.failure is None:
            self._say(f"note: {found.sentence} (stacks in {path})")
        elif self._experiment.hangs.action == "stop":
            self._fail(found.failure)
        else:
            self._on_failure(found.failure)

    def _keep_error(self, failure: Failure) -> Path:
        if failure.hung_seconds:
            self._progress.count("hangs")
        text = f"{failure.worker}: {failure.message}\n\n{failure.traceback}"
        return self._folder.write_error(failure.worker.replace("/", "-")[:80], text)

    def _fail(self, failure: Failure) -> None:
        """End the run: the first failure is the reason, all are kept in errors/."""
        path = self._keep_error(failure)
        if self._failure is None:
            self._failure = failure
            self._say(f"{failure.worker} failed: {failure.message}")
            if failure.traceback and not failure.is_user_error:
                self._say(failure.traceback)
            self._say(f"(kept in {path})")

    def _on_memory(self, megabytes: Mapping[str, float]) -> None:
        """Take in what processes take; say so where one of them does not stop growing."""
        memory = self._progress.memory
        for worker in memory.take(time.monotonic(), megabytes):
            words = (
                f"{worker} has grown by {memory.growing[worker]:.1f} MB a second and goes on: it has "
                f"{memory.of(worker):.0f} MB now"
            )
            if worker.startswith("actor"):
                words += (
                    f"; does its env {self._experiment.env.name} keep what it should free? "
                    "--actors.memory-limit-mb ends an actor that grows too large, and starts another"
                )
            self._say(f"note: {words}")

    def _on_note(self, worker: str, note: Note) -> None:
        """Keep and say what went wrong, and was dealt with."""
        text = note.message
        for name, content in note.files:
            kept = self._folder.free_error(name)
            text = text.replace(f"errors/{name}", str(kept)).replace(name, kept.name)
            self._writes.attempt(f"errors/{kept.name}", kept.write_text, content)
        whole = f"{worker}: {text}\n{note.traceback}\n"
        self._writes.attempt("errors/notes.txt", self._folder.append_error, "notes.txt", whole)
        self._say(f"{worker}: {text}")

    def _note_all(self, evaluator: Watched) -> None:
        for note in evaluator.telemetry.take_notes():
            self._on_note(evaluator.name, note)

    def _hung(self, hang: Hang) -> None:
        """End this process, whose main thread does not come back from an env; called beside it."""
        try:
            for message in hang.messages():
                if isinstance(message, Noted):
                    self._on_note(message.worker, message.note)
                elif isinstance(message, Failure):
                    self._fail(message)
            self._status, self._reason = "failed", f"{hang.worker}: {hang.message}"
            self._write_summary()
            self._folder.remove_unfinished()
            self._close_sinks()
            self._view.close()
        finally:
            os._exit(_FAILED)

    def _learned(self, policy: str, row: Mapping[str, Any]) -> None:
        self._evaluations.learned(policy, row["version"], row["env_steps"], self._seconds())
        self._write_row(row)
        skipped = int(row["skipped_batches"])
        if (
            skipped and not row["train_samples"] and not skipped & (skipped - 1)
        ):  # the 1st, 2nd, 4th
            self._say(
                f"note: version {row['version']} of {policy} is that before it: its batch was "
                f"skipped for a number that is not finite, as {skipped - 1} before "
                "(logs/, errors/nan-*)"
            )

    def _on_evaluated(self, found: EvaluatedVersion) -> None:
        """Keep what a version is worth; say so where none was better."""
        row = self._evaluations.take(found, self._progress.total("env_steps"), self._seconds())
        if row is None:
            return
        for sink in self._sinks:
            sink.write_evaluation(row)
        best = self._evaluations.best.get(found.policy)
        if best is not None and best.version == found.version:
            of = f" of {found.policy}" if len(self._plan.learning) > 1 else ""
            self._say(
                f"version {found.version}{of} is the best so far: return {found.eval_return:.1f} "
                f"± {found.eval_std:.1f} over {found.eval_episodes} episodes"
            )

    def _write_row(self, row: Mapping[str, Any]) -> None:
        seconds = self._seconds()
        clock = {
            "seconds": seconds,
            "env_steps_per_second": self._progress.total("env_steps") / max(seconds, 1e-9),
            "memory_megabytes": round(self._progress.memory.total, 1),
        }
        for sink in self._sinks:
            sink.write(row, clock)

    def _show_state(self) -> None:
        if time.monotonic() >= self._show_at:
            self._show_at = time.monotonic() + _SHOW_SECONDS
            mine = own_megabytes()
            self._on_memory({} if mine is None else {"controller": mine})
            state = self._summary()
            for sink in self._sinks:
                sink.show(state)

    def _close_sinks(self) -> None:
        self._evaluations.close()
        state = self._summary()
        while self._sinks:
            with contextlib.suppress(OSError):  # a full disk: the others still close
                sink = self._sinks.pop()
                sink.show(state)
                sink.close()

    def _evaluate(self, interrupts: Interrupts) -> None:
        """Play the last checkpoint; sets the return, or why there is none."""
        wanted = self._experiment.evaluation
        self._say(f"evaluating {wanted.episodes} episodes")
        shown_at = time.monotonic() + _SHOW_EVALUATION_SECONDS

        def on_step(played: int) -> bool:
            nonlocal shown_at
            if time.monotonic() >= shown_at:
                shown_at = time.monotonic() + _SHOW_EVALUATION_SECONDS
                self._say(f"evaluating: {played} of {wanted.episodes} episodes")
            return not interrupts.is_set

        evaluator, ended = Watched("evaluator-0", Telemetry()), self._reason
        try:
            checkpoint = read_checkpoint(latest_checkpoint(self._folder.checkpoints))
            players = players_of(self._experiment, self._plan, checkpoint)
            self._reason = f"{ended}; its final evaluation has not ended"
            self._write_summary()  # should the env take this process with it
            self._reason = ended
            seconds = self._experiment.env.timeout_seconds
            with watch([evaluator], seconds, self._hung, is_alone=True):
                result = evaluate(
                    self._experiment,
                    self._plan,
                    players,
                    episodes=wanted.episodes,
                    seconds=wanted.seconds,
                    on_step=on_step,
                    telemetry=evaluator.telemetry,
                )
        except SrlError as error:
            self._note_all(evaluator)
            self._fail(failure_of("evaluator-0", error))
            self._status, self._reason = "failed", f"evaluator-0: {error}"
            return
        self._note_all(evaluator)
        self._eval_return = result.mean
        if result.is_complete:
            for player in (p for p in players if p.counts):
                returns = result.by_policy[player.name]
                self._eval_returns[player.name] = sum(returns) / len(returns)
                version = int(checkpoint.manifest["versions"][player.name])
                self._on_evaluated(keep_version(self._folder.versions, player, version, returns))
        if interrupts.is_set:
            during = f"{self._interrupted(interrupts)} during the final evaluation"
            self._status, self._reason = "interrupted", during
        elif not result.is_complete:
            self._say(
                f"the evaluation was given up after {wanted.seconds:g} s with "
                f"{len(result.returns)} of {wanted.episodes} episodes: its return is not known "
                "(--evaluation.seconds, --evaluation.episodes)"
            )

    def _say(self, text: str) -> None:
        try:
            self._view.say(text)
        except (OSError, SystemExit):  # nobody reads any more (rich then exits): the run goes on
            self._view = Silent()

    def _show(self) -> None:
        try:
            self._view.show(self._progress, self._seconds())
        except (OSError, SystemExit):
            self._view = Silent()

    @cached_property
    def _shape(self) -> str:
        return shape_of(self._experiment, self._plan)

    def _manifest(self) -> dict[str, Any]:
        restored, not_restored = self._contract
        return {
            "experiment": self._experiment.name,
            "launcher": self._experiment.launcher,
            "shape": self._shape,
            "seconds": self._seconds(),
            "progress": self._progress.to_dict(),
            "score": self._score(),
            "ledgers_before": {p: asdict(ledger) for p, ledger in self._ledgers_before.items()},
            "rolled_back": self._lives.rolled_back,
            "worker_restarts": self._restarts_before + self._lives.restarts,
            "restored": restored,
            "not_restored": not_restored,
        }

    def _score(self) -> Score | None:
        """What the policies of now are worth: by the evaluator where there is one."""
        if self._plan.of_kind("evaluator"):
            kind, mean = "evaluation", self._evaluations.newest_mean
        else:
            kind, mean = "episodes", self._progress.mean_return
            mean = mean if self._progress.is_window_full else None
        return None if mean is None else Score(mean, kind)

    def _seconds_now(self) -> float:
        return (self._ended or time.monotonic()) - self._started

    def _seconds(self) -> float:
        return self._progress.seconds_before + self._seconds_now()

    def _all_ledgers(self) -> dict[str, Ledger]:
        """Policy to what became of its blocks, over all starts of the run."""
        now = self._last_ledgers if self._ledgers is None else self._ledgers
        return {p: before + now.get(p, Ledger()) for p, before in self._ledgers_before.items()}

    def _write_summary(self) -> None:
        self._folder.write("summary.json", self._summary())

    def _summary(self) -> dict[str, Any]:
        progress, seconds = self._progress, self._seconds()
        ledgers = self._all_ledgers()
        return {
            "status": self._status,
            "reason": self._reason,
            "pid": os.getpid(),
            "experiment": self._experiment.name,
            "algorithm": type(self._experiment.algorithm).__name__.removesuffix("Config").lower(),
            "launcher": self._experiment.launcher,
            "seed": self._experiment.seed,
            "seconds": seconds,
            "env_steps": progress.total("env_steps"),
            "agent_steps": progress.total("agent_steps"),
            "env_steps_per_second": progress.total("env_steps") / max(seconds, 1e-9),
            "train_samples": progress.train_samples,
            "skipped_batches": progress.skipped_batches,
            "version": progress.version,  # of several policies, the highest
            "updates": progress.updates,  # the sum over policies, as train_samples and episodes
            "episodes": progress.episodes,
            "env_failures": progress.total("env_failures"),
            "env_rebuilds": progress.total("env_rebuilds"),
            "envs_parked": progress.total("envs_parked"),
            "hangs": progress.total("hangs"),  # workers that were ended because they stood still
            "connections_refused": progress.total("connections_refused"),
            "connections_ended": progress.total("connections_ended"),
            "messages_refused": progress.total("messages_refused"),
            "mean_return": progress.mean_return,
            "eval_return": self._eval_return,
            **self._evaluations.summary(),
            "checkpoints": self._saving.summary(),
            "staleness_mean": progress.staleness_mean,
            "staleness_max": progress.staleness_max,
            **_blocks(sum(ledgers.values(), Ledger())),
            "blocks_rolled_back": sum(self._lives.rolled_back.values()),
            "policies": {
                name: {
                    **policy.summary(),
                    "eval_return": self._eval_returns.get(name),
                    **_blocks(ledgers.get(name, Ledger())),
                }
                for name, policy in progress.policies.items()
            },
            "worker_restarts": self._restarts_before + self._lives.restarts,
            "writes_lost": dict(self._writes.lost),
            "memory": progress.memory.summary(),
            "bottleneck": progress.bottleneck(),
            "time_split": progress.splits(),
        }


def _blocks(ledger: Ledger) -> dict[str, int]:
    return {f"blocks_{name}": n for name, n in asdict(ledger).items()}


def _ledgers_of(plain: Mapping[str, Mapping[str, int]]) -> dict[str, Ledger]:
    return {policy: Ledger(**ledger) for policy, ledger in plain.items()}


def _ready_facts(message: Ready) -> dict[str, Any]:
    return {
        "pid": message.pid,
        "cpu_seconds": message.cpu_seconds,
        "resident_megabytes": message.resident_megabytes,
        "has_torch": message.has_torch,
    }
