"""Finds out who holds a run up when a stream of it stands still.

It hears what the controller hears. When a policy learns nothing, an actor gets no answer, or a worker
says nothing for too long, it has all workers looked at, follows who waits for whom, and names the one
at the end of it. Everything here is a pure function of what it is told, and when.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from srl.launch.graph.hosts import hosts_of
from srl.launch.graph.plan import Plan
from srl.launch.host.stacks import innermost
from srl.transport.control import Examination, Examined, Failure, Message, Ready, Report

_READY_SECONDS = 120.0
_ANSWER_SECONDS = 15.0
"""An agent looks at its workers for one."""
_FAR_ANSWER_SECONDS = 45.0
"""Where there are several: a host that is cut off is lost before that, and not waited for any more."""
_LONGEST_TICK = 2.0
_LOOK_SECONDS = 0.5
"""Between two looks at all workers."""
_PROGRESS = {"actor": "env_steps", "policy": "requests", "buffer": "draws"}
"""Kind to the counter that says that a worker of it gets somewhere."""
_MEETING = ("learning/parallel.py", "learning/ranks.py")
"""Where trainers wait for each other, without a report."""
_BUSY = 0.5
_STATES = {"T": "stopped by a signal", "t": "held by a debugger", "D": "waiting for a disk"}


class Finding(NamedTuple):
    """Who holds the run up."""

    culprit: str | None
    """None: nobody does; it is slow, or about to go on."""
    sentence: str
    text: str
    """All that was seen, for a file."""
    failure: Failure | None = None
    """The end of the culprit's life."""


@dataclass
class _Patient:
    """What is known of a worker; times are the doctor's own."""

    kind: str
    policy: str
    heard: float = 0.0
    progressed: float = 0.0
    count: int = 0
    waits_in: str = ""
    incarnation: int = 1
    is_ready: bool = False
    is_gone: bool = False
    """It has died, and is not being started again yet; or it has not come yet."""
    is_expected: bool = True
    """It is there, or will be soon: not where it was given up, or need not come."""


class _Suspicion(NamedTuple):
    """Why the workers are to be looked at."""

    worker: str
    words: str


class Doctor:
    """Watches over the workers of a plan."""

    def __init__(self, plan: Plan, seconds: float, now: float, late: Iterable[str] = ()) -> None:
        """Worry about what stands still for so many `seconds`; `late` workers need not come."""
        self._plan = plan
        self._seconds = seconds
        self._ready_seconds = _READY_SECONDS + plan.replay_seconds  # buffers read theirs
        is_spread = len(hosts_of(plan)) > 1
        self._answer_seconds = _FAR_ANSWER_SECONDS if is_spread else _ANSWER_SECONDS
        self._patients = {w.name: _Patient(w.kind, w.policy) for w in plan.workers}
        for name in late:
            self._patients[name].is_gone, self._patients[name].is_expected = True, False
        self._patience: dict[str, float] = {}
        """Worker to how long it may stand still, where it was found to be slow only."""
        self._now, self._looked = 0.0, now
        self._asked_at: float | None = None
        self._look_at = 0.0
        self._suspicion = _Suspicion("", "")

    def hear(self, message: Message, now: float) -> None:
        """Take in a message, if it is about what workers do."""
        self._tick(now)
        if isinstance(message, Report):
            self._on_report(message)
        elif isinstance(message, Ready) and message.worker in self._patients:
            patient = self._patients[message.worker]
            if message.incarnation == patient.incarnation:
                patient.is_ready = patient.is_expected = True
                patient.is_gone = False
                patient.heard = patient.progressed = self._now
        elif isinstance(message, Failure) and message.worker in self._patients:
            patient = self._patients[message.worker]
            patient.is_gone |= message.incarnation == patient.incarnation

    def restarting(self, worker: str, incarnation: int, now: float) -> None:
        """A next life of a worker begins."""
        self._tick(now)
        patient = self._patients[worker]
        self._patients[worker] = _Patient(
            patient.kind, patient.policy, self._now, self._now, incarnation=incarnation
        )

    def given_up(self, workers: Iterable[str]) -> None:
        """Nobody waits for these any more."""
        for worker in workers:
            self._patients[worker].is_gone, self._patients[worker].is_expected = True, False

    def look(self, now: float) -> bool:
        """Whether the workers are to be examined; True once, until `diagnose`."""
        self._tick(now)
        if self._now < self._look_at:
            return False
        self._look_at = self._now + _LOOK_SECONDS
        found = None if self._asked_at is not None else self._suspect()
        if found is None:
            return False
        self._suspicion, self._asked_at = found, self._now
        return True

    def unanswered(self) -> Failure | None:
        """The node agent, where it does not even look at its workers any more."""
        if self._asked_at is None or self._now - self._asked_at <= self._answer_seconds:
            return None
        words = (
            f"{self._suspicion.words}, and the node agent has not answered for "
            f"{self._answer_seconds:.0f} s: it hangs, or its host does"
        )
        return Failure("node-agent", words, "", is_user_error=True)

    def diagnose(self, examined: Examined, now: float) -> Finding | None:
        """Who holds the run up; None where that has passed meanwhile."""
        self._tick(now)
        suspicion = self._suspicion
        self._asked_at = None
        if self._suspect() is None:
            return None
        if not self._patients[suspicion.worker].is_ready:
            return self._not_ready(examined)  # None: it was started again meanwhile
        culprit, why = self._blame(suspicion.worker, [], examined)
        if culprit is None:
            self._patience[suspicion.worker] = 2 * self._patience_of(suspicion.worker)
            return self._finding(None, f"{suspicion.words}, but no worker hangs: {why}", examined)
        return self._finding(culprit, why, examined)

    def _tick(self, now: float) -> None:
        """A controller that was held up itself does not blame the workers for that time."""
        self._now += min(max(0.0, now - self._looked), _LONGEST_TICK)
        self._looked = now

    def _on_report(self, report: Report) -> None:
        patient = self._patients.get(report.worker)
        if patient is None or report.incarnation != patient.incarnation:
            return
        patient.heard, patient.waits_in = self._now, report.waits_in
        count = report.counters.get(_PROGRESS.get(patient.kind, ""), 0)
        if count != patient.count or report.updates:
            patient.count, patient.progressed = count, self._now
            self._patience.pop(report.worker, None)

    def _suspect(self) -> _Suspicion | None:
        for name, patient in self._patients.items():
            if patient.is_gone:
                continue
            silent, idle = self._now - patient.heard, self._now - patient.progressed
            if not patient.is_ready:
                if silent > self._ready_seconds:
                    return _Suspicion(name, f"{name} did not get ready within {silent:.0f} s")
                continue
            patience = self._patience_of(name)
            if silent > patience:
                return _Suspicion(name, f"{name} has said nothing for {silent:.0f} s")
            learns = patient.kind == "trainer" and self._plan.worker(name).index == 0
            if learns and idle > patience:
                words = f"policy {patient.policy} has learned nothing for {idle:.0f} s"
                return _Suspicion(name, words)
            if patient.waits_in == "wait_for_action" and idle > patience:
                return _Suspicion(name, f"{name} has got no action for {idle:.0f} s")
        return None

    def _patience_of(self, worker: str) -> float:
        return self._patience.get(worker, self._seconds)

    def _blame(self, name: str, seen: list[str], examined: Examined) -> tuple[str | None, str]:
        """Who is at the end of what a worker waits for, and why it is."""
        patient = self._patients[name]
        seen = [*seen, name]
        if patient.is_gone or not patient.is_ready:
            return None, f"{name} is being started again"
        if self._is_silent(name):
            others = [rank for rank in self._plan.ranks_of(name) if rank not in seen]
            stack = _stack_of(examined, name)
            meets = any(place in stack for place in _MEETING) and bool(others)
            return (
                self._blame_first(others, seen, examined)
                if meets
                else self._in_a_call(name, examined)
            )
        if patient.waits_in == "wait_for_action":
            return self._unanswered_actor(name, seen, examined)
        if patient.waits_in in ("wait_for_credit", "wait_for_leave"):
            kind = "trainer" if patient.kind == "buffer" else self._takers
            return self._blame_first(self._named(kind), seen, examined)
        if patient.waits_in == "wait_for_batch" and self._takers == "buffer":
            return self._undrawn_trainer(name, seen, examined)
        if patient.waits_in in ("wait_for_batch", "wait_for_blocks"):
            return self._hungry_taker(name, seen, examined)
        return None, f"{name} works"

    @property
    def _takers(self) -> str:
        """The kind of those who take actors' blocks."""
        return "buffer" if self._plan.of_kind("buffer") else "trainer"

    def _named(self, kind: str) -> list[str]:
        names = [worker.name for worker in self._plan.of_kind(kind)]
        return [name for name in names if self._patients[name].is_expected]

    def _undrawn_trainer(
        self, name: str, seen: list[str], examined: Examined
    ) -> tuple[str | None, str]:
        buffers = self._named("buffer")
        if any(self._is_away(buffer) for buffer in buffers):
            return None, "a buffer is being started again"
        return self._blame_first(buffers, seen, examined)

    def _blame_first(
        self, names: list[str], seen: list[str], examined: Examined
    ) -> tuple[str | None, str]:
        """The first of these that somebody waits for in vain."""
        culprit, why = None, f"{_and(names)} work"
        for name in sorted(names, key=lambda n: not self._is_silent(n)):
            if name not in seen and self._is_idle(name):
                culprit, why = self._blame(name, seen, examined)
                if culprit is not None:
                    break
        return culprit, why

    def _unanswered_actor(
        self, name: str, seen: list[str], examined: Examined
    ) -> tuple[str | None, str]:
        answering = self._named("policy")
        if any(self._is_away(worker) for worker in answering):
            return None, "a policy worker is being started again"
        culprit, why = self._blame_first(
            [worker for worker in answering if self._is_silent(worker)], seen, examined
        )
        if culprit is not None:
            return culprit, why
        idle = self._now - self._patients[name].progressed
        return name, (
            f"{name} has waited {idle:.0f} s for an answer, and {_and(answering)} for "
            "requests: a message between them was lost"
        )

    def _hungry_taker(
        self, name: str, seen: list[str], examined: Examined
    ) -> tuple[str | None, str]:
        actors = self._named("actor")
        if any(self._is_away(actor) for actor in actors):
            return None, "an actor is being started again"
        idle = [actor for actor in actors if self._is_idle(actor)]
        if not idle:
            return None, "actors play, and the batch is not full yet; play in more envs at a time?"
        culprit, why = self._blame_first(idle, seen, examined)
        if culprit is not None:
            return culprit, why
        if any(self._patients[actor].waits_in != "wait_for_credit" for actor in actors):
            return None, why
        unread = examined.unread.get(self._patients[name].policy, 0)
        if unread:
            return name, f"{name} waits for a batch, and leaves {unread} blocks unread"
        actor = next((worker for worker in idle if worker not in seen), idle[0])
        return actor, (
            f"{actor} waits for leave to begin a block, and {name} for blocks: a message between "
            "them was lost"
        )

    def _in_a_call(self, name: str, examined: Examined) -> tuple[str, str]:
        silent = self._now - self._patients[name].heard
        seen = examined.workers.get(name)
        held = [n for n in self._patients if n != name and self._is_idle(n)]
        after = f"; {_and(held)} wait" if held else ""
        if seen is not None and seen.state in _STATES:
            return name, f"{name} has been {_STATES[seen.state]} for {silent:.0f} s{after}"
        where = innermost(seen.stack) if seen is not None else ""
        what = f"it is in {where}" if where else "it does not say where it is"
        busy = "" if seen is None else " and computes" if seen.busy > _BUSY else " and uses no CPU"
        return name, f"{name} hangs in a call for {silent:.0f} s: {what}{busy}{after}"

    def _not_ready(self, examined: Examined) -> Finding | None:
        late = [
            name
            for name, patient in self._patients.items()
            if not (patient.is_ready or patient.is_gone)
            and self._now - patient.heard > self._ready_seconds
        ]
        if not late:
            return None
        where = innermost(_stack_of(examined, late[0]))
        sentence = f"{_and(late)} did not get ready within {self._ready_seconds:.0f} s"
        return self._finding(
            late[0], f"{sentence}: it is in {where}" if where else sentence, examined
        )

    def _finding(self, culprit: str | None, sentence: str, examined: Examined) -> Finding:
        text = self._text(sentence, examined)
        if culprit is None:
            return Finding(None, sentence, text)
        patient = self._patients[culprit]
        failure = Failure(
            culprit,
            sentence,
            _stack_of(examined, culprit),
            patient.incarnation,
            is_user_error=True,
            is_final=not patient.is_ready and patient.incarnation == 1,
            hung_seconds=self._now - patient.progressed,
        )
        return Finding(culprit, sentence, text, failure)

    def _text(self, sentence: str, examined: Examined) -> str:
        lines = [sentence, "", self._suspicion.words, "", "Workers:"]
        lines += [self._line(name, examined.workers.get(name)) for name in self._patients]
        lines += ["", "Streams:", *(f"  {words}" for words in examined.streams)]
        for name, seen in examined.workers.items():
            stack = seen.stack or "  it did not give its stack"
            lines += ["", f"{name} (pid {seen.pid}), the last call first:", stack]
        return "\n".join(lines) + "\n"

    def _line(self, name: str, seen: Examination | None) -> str:
        patient = self._patients[name]
        if patient.is_gone or not patient.is_ready:
            return f"  {name}: {'has died' if patient.is_gone else 'is being started'}"
        process = "" if seen is None else f"; process {seen.state}, {seen.busy:.0%} of a core"
        return (
            f"  {name}: {self._awaited(name)}; last heard {self._now - patient.heard:.0f} s ago, "
            f"last progress {self._now - patient.progressed:.0f} s ago{process}"
        )

    def _awaited(self, name: str) -> str:
        """Whom a worker waits for, in words."""
        patient, blocks = self._patients[name], ("blocks of", "actor")
        of = {
            "wait_for_action": ("an answer of", "policy"),
            "wait_for_credit": ("leave to begin a block from", self._takers),
            "wait_for_leave": ("leave to draw from", "trainer"),
            "wait_for_batch": blocks if self._takers == "trainer" else ("draws of", "buffer"),
            "wait_for_blocks": blocks,
            "wait_for_requests": ("requests of", "actor"),
        }
        if self._is_silent(name):
            return "is in a call"
        if patient.waits_in in of:
            what, kind = of[patient.waits_in]
            return f"waits for {what} {_and([w.name for w in self._plan.of_kind(kind)])}"
        return f"waits ({patient.waits_in})" if patient.waits_in else "works"

    def _is_away(self, name: str) -> bool:
        return self._patients[name].is_gone or not self._patients[name].is_ready

    def _is_silent(self, name: str) -> bool:
        """It says nothing for so long that it may be the one."""
        return self._now - self._patients[name].heard > self._seconds / 2

    def _is_idle(self, name: str) -> bool:
        ranks = self._plan.ranks_of(name)  # the first speaks for all
        return self._now - max(self._patients[r].progressed for r in ranks) > self._seconds / 2


def _stack_of(examined: Examined, name: str) -> str:
    seen: Mapping[str, Examination] = examined.workers
    return seen[name].stack if name in seen else ""


def _and(names: list[str]) -> str:
    shown = names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} others"]
    return " and ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))
