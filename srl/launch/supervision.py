"""Who is started again after a death, when, and when it is enough.

A unit is what is restarted together: one worker, or all trainers of a policy. Between two lives it
waits, longer each time it dies without having got anywhere. A unit that dies too often in a row
without progress is given up; the run then ends, unless enough others of its kind live.

Not every death has another life after it. An error that is the user's to mend (a wrong option, an env
that cannot work) ends the run at once; so does any exception of a worker that never got anywhere,
which is a bug, and would only come again. A life that hung for nearly all of its time
counts as one without progress.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from srl.core.experiment import RestartsConfig
from srl.launch.graph.plan import Plan
from srl.transport.control import Failure

_LONGEST_WAIT_SECONDS = 30.0
_HUNG = 0.9
"""Share of a life: who hangs for more of it has got nowhere."""


@dataclass
class _Unit:
    """Workers that live and die together."""

    kind: str
    policy: str
    workers: tuple[str, ...]
    incarnation: int = 1
    """Of the life it has, or will have when its wait is over."""
    in_a_row: int = 0
    """Lives that ended without progress."""
    began: float | None = None
    """When its life began; None: with the run."""
    progresses: bool = False
    """It got somewhere in the life it has."""
    restart_at: float | None = None
    """When its next life begins, while it waits for that."""
    has_worked: bool = False
    """It got somewhere in one of its lives."""
    is_given_up: bool = False

    @property
    def name(self) -> str:
        return self.workers[0] if len(self.workers) == 1 else " and ".join(self.workers)


@dataclass(frozen=True)
class Verdict:
    """What follows from a death."""

    reason: str | None = None
    """Why the run must end; None: it goes on."""
    note: str | None = None
    """What to tell the user."""
    given_up: tuple[str, ...] = ()
    """Workers that will not come back."""


@dataclass(frozen=True)
class Restart:
    """Workers to be started again now."""

    kind: str
    workers: tuple[str, ...]
    incarnation: int


class Supervisor:
    """Decides about the workers of a plan; a pure function of what it is told, and when."""

    def __init__(
        self,
        plan: Plan,
        config: RestartsConfig,
        least: Mapping[str, int],
        late: Iterable[str] = (),
    ) -> None:
        """With `least`: kind to how many of it (of a policy, if it is of one) the run needs; `late`: workers that may come later."""
        self.restarts = 0
        """Lives that were begun again."""
        self._budgets = {
            "actor": config.actors,
            "policy": config.policies,
            "trainer": config.trainers,
            "buffer": config.buffers,
            "evaluator": config.evaluators,
        }
        self._first_wait = config.wait_seconds
        self._least = least
        self._late = set(late)
        """Who has not come yet."""
        self._units: dict[str, _Unit] = {}
        for worker in plan.workers:
            group = tuple(plan.ranks_of(worker.name))
            unit = self._units.get(group[0]) or _Unit(worker.kind, worker.policy, group)
            self._units[worker.name] = unit
        self._waiting: list[_Unit] = []
        """Those between two lives."""

    def incarnation(self, worker: str) -> int:
        """How often the worker was started, or is about to be."""
        return self._units[worker].incarnation

    def joined(self, worker: str) -> None:
        """A worker has come that the run did not begin with."""
        self._late.discard(worker)

    def progressed(self, worker: str, incarnation: int) -> None:
        """The worker got somewhere in this life: an earlier death does not count any more."""
        unit = self._units[worker]
        if incarnation == unit.incarnation and unit.restart_at is None:
            unit.progresses = unit.has_worked = True

    def died(self, failure: Failure, now: float) -> Verdict:
        """Take in the death of a worker in one of its lives."""
        worker, incarnation, message = failure.worker, failure.incarnation, failure.message
        unit = self._units[worker]
        if incarnation < unit.incarnation or unit.restart_at is not None or unit.is_given_up:
            return Verdict()  # its unit waits already, or this is news of an earlier life
        if failure.is_final or (failure.is_raised and not unit.has_worked):
            if self._least.get(unit.kind) == 0:  # learning does without
                unit.is_given_up = True
                note = f"{worker}: {message}; it is given up, and the run goes on without it"
                return Verdict(note=note, given_up=unit.workers)
            return Verdict(reason=message)
        if unit.progresses and not _was_all_hung(unit, failure, now):
            unit.in_a_row = 0
        unit.progresses = False
        unit.in_a_row += 1
        budget = self._budgets[unit.kind]
        least = self._least.get(unit.kind)
        is_dispensable = least is not None and self._living(unit) > least
        # who has no host is not waited for any longer: others wait for what it was to do
        if unit.in_a_row <= budget and not (failure.is_homeless and is_dispensable):
            wait = self._first_wait * 2 ** (unit.in_a_row - 1) if unit.in_a_row > 1 else 0.0
            wait = min(wait, _LONGEST_WAIT_SECONDS)
            unit.incarnation += 1
            unit.restart_at = now + wait
            self._waiting.append(unit)
            when = f"in {wait:.1f} s" if wait else "now"
            return Verdict(note=f"{worker}: {message}; {unit.name} starts again {when}")
        return self._give_up(unit, failure, budget)

    def due(self, now: float) -> list[Restart]:
        """Units whose wait is over; each is returned once."""
        over = [u for u in self._waiting if u.restart_at is not None and now >= u.restart_at]
        for unit in over:
            self._waiting.remove(unit)
            unit.restart_at, unit.began = None, now
            self.restarts += len(unit.workers)
        return [Restart(unit.kind, unit.workers, unit.incarnation) for unit in over]

    def _give_up(self, unit: _Unit, failure: Failure, budget: int) -> Verdict:
        unit.is_given_up = True
        worker, message = failure.worker, failure.message
        times = f"died {unit.in_a_row} times in a row without progress"
        living = self._living(unit)
        if unit.kind in self._least and living >= self._least[unit.kind]:
            why = "has no host" if failure.is_homeless else times
            note = f"{worker} {why} and is given up ({message}); the run goes on with {living}"
            return Verdict(note=note, given_up=unit.workers)
        how_often = f"; it {times} (--restarts.{_option(unit.kind)} {budget})"
        return Verdict(reason=f"{message}{how_often if budget else ''}")

    def _living(self, unit: _Unit) -> int:
        """Units like this one, and of its policy, that have come and were not given up."""
        there = (u for name, u in self._units.items() if name not in self._late)
        alike = (u for u in there if (u.kind, u.policy) == (unit.kind, unit.policy))
        return sum(not u.is_given_up for u in alike)


def _was_all_hung(unit: _Unit, failure: Failure, now: float) -> bool:
    """Whether a life that hung at last had hardly worked before: the next one is no better."""
    if unit.began is None or not failure.hung_seconds:
        return False
    return failure.hung_seconds > _HUNG * (now - unit.began)


def _option(kind: str) -> str:
    return {"policy": "policies"}.get(kind, f"{kind}s")
