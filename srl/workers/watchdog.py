"""Watches what a worker does with its envs: a call that does not come back cannot be interrupted.

One thread a process looks now and then at when the call under way began, which the worker's telemetry
knows anyway; nothing is done for it on the data path. Where a call takes too long, it finds out from
the stack of the thread that hangs which env it is, and has the process ended.
"""

import faulthandler
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple

from srl.core.env import Locates
from srl.core.fault import EnvFault
from srl.core.telemetry import Note, Telemetry
from srl.rollout.match import Match
from srl.rollout.quarantine import repro_of
from srl.rollout.ring import Group
from srl.transport.control import Failure, Message, Noted

log = logging.getLogger(__name__)

WATCHED = ("env", "play")
"""Names under which actors and evaluators count the time of their envs."""
_TICKS = 10
"""Looks within the time that a call may take; at least one a second."""


class Watched(NamedTuple):
    """Whose envs are watched."""

    name: str
    telemetry: Telemetry


@dataclass(frozen=True)
class Hang:
    """A call of an env that does not come back."""

    worker: str
    message: str
    stack: str
    """Of the thread that hangs."""
    files: tuple[tuple[str, str], ...]
    """Names and texts of files that show it again."""
    seconds: float
    """How long it lasted."""

    def messages(self, incarnation: int = 1) -> list[Message]:
        """What to tell the controller: the files, then the end of this life of the worker."""
        told: list[Message] = []
        if self.files:
            message = f"{self.message}: srl repro errors/{self.files[0][0]}"
            told.append(Noted(self.worker, Note(message, files=self.files)))
        end = Failure(
            self.worker,
            self.message,
            self.stack,
            incarnation,
            is_user_error=True,
            hung_seconds=self.seconds,
        )
        return [*told, end]


def watch(
    workers: Sequence[Watched],
    seconds: float | None,
    on_hang: Callable[[Hang], None],
    *,
    is_alone: bool = False,
) -> AbstractContextManager[Any]:
    """Watch `workers`, which the calling thread steps, while the context is entered.

    Args:
        workers: whose envs to watch.
        seconds: the most that a call may take; None: nothing is watched.
        on_hang: called in the watchdog's thread; it ends the process.
        is_alone: nothing else happens in this process: end it also where a call does not even let
            the watchdog's thread run, after twice the time, with all stacks on the standard error.
    """
    if seconds is None or not workers:
        return nullcontext()
    return Watchdog(workers, seconds, on_hang, is_alone=is_alone)


def end_with(code: int, words: str = "") -> Callable[[Hang], None]:
    """For commands that play in their own process: say what hangs, and end it with this exit code."""

    def on_hang(hang: Hang) -> None:
        sys.stderr.write(f"srl: {hang.message}{words}\n\n{hang.stack}")
        sys.stderr.flush()
        os._exit(code)

    return on_hang


class Watchdog:
    """The thread; stopped by leaving the context."""

    def __init__(
        self,
        workers: Sequence[Watched],
        seconds: float,
        on_hang: Callable[[Hang], None],
        *,
        is_alone: bool = False,
    ) -> None:
        self._workers = workers
        self._seconds = seconds
        self._on_hang = on_hang
        self._is_alone = is_alone
        self._tick = min(1.0, seconds / _TICKS)
        self._watched_thread = threading.get_ident()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        self._watched_thread = threading.get_ident()
        self._arm()  # the first call may be the one that lets nobody run
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(timeout=5)
        if self._is_alone:
            faulthandler.cancel_dump_traceback_later()

    def _run(self) -> None:
        call: tuple[int, str, float] | None = None
        spent, before = 0.0, time.monotonic()
        while not self._stopping.wait(self._tick):
            self._arm()
            now = time.monotonic()
            # A process that was stopped for a while, or got no core, is not one that hangs.
            passed, before = min(now - before, 2 * self._tick), now
            found = self._call_under_way()
            spent = spent + passed if found == call else 0.0
            call = found
            if found is not None and spent >= self._seconds:
                hang = self._describe(self._workers[found[0]].name, found[1])
                if self._call_under_way() == found:
                    log.error("%s\n%s", hang.message, hang.stack)
                    self._on_hang(hang)
                    return

    def _arm(self) -> None:
        """Have this process end where its own threads cannot see to it, some time from now."""
        if self._is_alone:
            later = 2 * self._seconds + 1
            faulthandler.dump_traceback_later(
                later, exit=True, file=2
            )  # a notebook's stderr is no file

    def _call_under_way(self) -> tuple[int, str, float] | None:
        """Of the call that the thread is in: whose, of what, and since when."""
        for number, worker in enumerate(self._workers):
            for name in WATCHED:
                if began := worker.telemetry.began(name):
                    return number, name, began
        return None

    def _describe(self, worker: str, name: str) -> Hang:
        frame = sys._current_frames().get(self._watched_thread)
        what = f"did not come back for {self._seconds:g} s (--env.timeout-seconds)"
        fault, files, row = None, (), ""
        for variables in _variables(frame):
            owner = variables.get("self")
            fault = fault or _located(owner, variables, what)
            if isinstance(owner, (Group, Match)):
                row = f", row {owner.row} of its block" if isinstance(owner, Group) else ""
                repro = None if fault is None else repro_of(owner, fault)
                files = () if repro is None else ((repro.name, repro.to_json()),)
                break
        message = f"an env {what}, in {name!r}" if fault is None else fault.message + row
        stack = "" if frame is None else "".join(traceback.format_stack(frame))
        return Hang(worker, message, stack, files, self._seconds)


def _variables(frame: FrameType | None) -> Iterator[Mapping[str, Any]]:
    """The variables of a stack's functions, those called last first."""
    while frame is not None:
        yield frame.f_locals
        frame = frame.f_back


def _located(owner: object, variables: Mapping[str, Any], what: str) -> EnvFault | None:
    try:
        found = owner.locate(variables, what) if isinstance(owner, Locates) else None
    except Exception:  # noqa: BLE001 - a user's own method of that name, or an env half built
        return None
    return found if isinstance(found, EnvFault) else None
