"""Gathers the parts of a checkpoint from its writers and, when all are there, makes them one."""

import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from srl.learning.checkpoint import (
    begin_checkpoint,
    best_checkpoint,
    commit_checkpoint,
    list_checkpoints,
    score_of,
)
from srl.transport.control import Copied, Save, Saved, SaveFailed

MOST_FAILURES = 3
"""Checkpoints in a row that may fail before the run does."""


@dataclass
class _Open:
    """A checkpoint some of whose parts are missing."""

    aside: Path
    missing: set[str]
    ordered: float
    """When."""
    saved: list[Saved] = field(default_factory=list)
    manifests: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Writer to what was known of the run when it copied its part; the last is of all parts."""
    failure: str | None = None
    """Why it could not be written."""
    is_given_up: bool = False
    """A writer died."""


class Saving:
    """The controller's side of checkpoints: orders them, adds the manifest, commits.

    One that fails is removed and counted, and those before it stay.
    """

    def __init__(self, folder: Path, keep: int, first: int = 1) -> None:
        """Write to `folder`; the first order has the serial number `first`."""
        self._folder = folder
        self._keep = keep
        self._serial = first - 1
        self.last: Path | None = None
        """The newest checkpoint made whole here."""
        self._open: dict[int, _Open] = {}
        self._took = 0.0
        """Seconds from an order to a whole checkpoint, the last times."""
        self._committed = self._not_written = -1
        """Serial numbers of the last that is whole, and of the last that failed."""
        self._written = 0
        self._failed = 0
        self._failures_in_a_row = 0
        self._notes: list[str] = []
        self._facts = self._look()

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint was ordered and is not whole yet."""
        return bool(self._open)

    def pause(self, seconds: float) -> float:
        """Seconds from one order to the next, so that no death costs more than `seconds` of learning.

        What was learned since a state was copied is lost until the next one is written, and when that is
        copied and written is not known to the moment: twice the time that it took is left for it.
        """
        return max(seconds / 2, seconds - 2 * self._took)

    @property
    def is_hopeless(self) -> bool:
        """Whether so many failed in a row that the run should not go on."""
        return self._failures_in_a_row >= MOST_FAILURES

    @property
    def is_last_whole(self) -> bool:
        """Whether the checkpoint ordered last is there."""
        return self._committed == self._serial

    @property
    def has_last_failed(self) -> bool:
        """Whether it could not be written."""
        return self._not_written == self._serial

    def take_notes(self) -> list[str]:
        """Why checkpoints failed since the last call, in words."""
        notes, self._notes = self._notes, []
        return notes

    def summary(self) -> dict[str, Any]:
        """What summary.json says of them."""
        return {"written": self._written, "failed": self._failed, **self._facts}

    def order(self, writers: Iterable[str]) -> Save | None:
        """The order for the next checkpoint, for all of its writers; None where that failed."""
        self._serial += 1
        try:
            aside = begin_checkpoint(self._folder, self._serial)
        except OSError as error:
            self._fail(self._serial, str(error))
            return None
        self._open[self._serial] = _Open(aside, set(writers), time.monotonic())
        return Save(self._serial, str(aside))

    def copied(self, copied: Copied, manifest: Mapping[str, Any]) -> None:
        """Remember what is known of the run at the moment whose state a writer writes."""
        pending = self._open.get(copied.serial)
        if pending is not None and copied.worker in pending.missing:
            pending.manifests[copied.worker] = manifest

    def add(self, answer: Saved | SaveFailed) -> list[Saved]:
        """Take in a part, or that there is none; the last one missing makes the checkpoint whole.

        Returns:
            All parts of the checkpoint that is whole by this one; none where that is not so.
        """
        pending = self._open.get(answer.serial)
        if pending is None or answer.worker not in pending.missing:
            return []
        if isinstance(answer, Saved) and answer.worker in pending.manifests:
            pending.saved.append(answer)
        else:
            reason = answer.message if isinstance(answer, SaveFailed) else "it was never copied"
            pending.failure = f"{answer.worker}: {reason}"
        pending.missing.discard(answer.worker)
        return pending.saved if self._settle(answer.serial) else []

    def expect(self, seconds: float) -> None:
        """Wait no more for checkpoints that were ordered so long ago: whoever writes them hangs."""
        for serial, pending in list(self._open.items()):
            if time.monotonic() - pending.ordered > seconds:
                pending.failure = f"{' and '.join(sorted(pending.missing))} did not write it within {seconds:.0f} s"
                pending.missing.clear()
                self._settle(serial)

    def give_up(self, workers: Iterable[str]) -> None:
        """Wait no more for writers that died: their checkpoints will not be."""
        for serial, pending in list(self._open.items()):
            if dead := pending.missing.intersection(workers):
                pending.missing -= dead
                pending.is_given_up = True
                self._settle(serial)

    def _settle(self, serial: int) -> bool:
        """Commit a checkpoint, or remove what there is of it, once nobody writes to it."""
        pending = self._open[serial]
        if pending.missing:
            return False
        del self._open[serial]
        if pending.failure is None and not pending.is_given_up:
            try:
                self._commit(pending)
            except OSError as error:
                pending.failure = str(error)
            else:
                self._committed, self._failures_in_a_row = serial, 0
                took = time.monotonic() - pending.ordered
                self._took = max(took, (self._took + took) / 2)
                self._written += 1
                self._facts = self._look()
                return True
        shutil.rmtree(pending.aside, ignore_errors=True)
        if pending.failure is not None:
            self._fail(serial, pending.failure)
        return False

    def _commit(self, pending: _Open) -> None:
        """Make the parts one.

        Of each policy's progress it says what was known when its part was copied: a trainer goes on
        while others still copy theirs. What the trainers themselves have counted is never older: a controller
        that died was told of some of it alone.
        """
        manifest = pending.manifests[next(reversed(pending.manifests))]
        progress = manifest["progress"]
        policies, totals = dict(progress["policies"]), dict(progress["totals"])
        for saved in pending.saved:
            for policy, version in saved.versions.items():
                counts = saved.counts.get(policy, {})
                known = pending.manifests[saved.worker]["progress"]["policies"][policy]
                learned = {name: counts[name] for name in ("train_samples", "updates") if counts}
                policies[policy] = {**known, "version": version, **learned}
                totals["env_steps"] = max(totals["env_steps"], counts.get("env_steps", 0))
        self.last = commit_checkpoint(
            pending.aside,
            [saved.part for saved in pending.saved],
            versions={p: version for s in pending.saved for p, version in s.versions.items()},
            manifest={
                **manifest,
                "progress": {**progress, "policies": policies, "totals": totals},
                "ledgers": {p: ledger for s in pending.saved for p, ledger in s.ledgers.items()},
            },
            keep=self._keep,
        )

    def _fail(self, serial: int, reason: str) -> None:
        self._not_written = serial
        self._failed += 1
        self._failures_in_a_row += 1
        newest = self._facts["newest"]
        before = f"the newest there is, {newest}, is kept" if newest else "there is none before it"
        self._notes.append(
            f"a checkpoint could not be written: {reason}; {before}; make room in {self._folder}, "
            "or make it writable"
        )

    def _look(self) -> dict[str, Any]:
        """Which checkpoints there are: asked once, as the summary is written every second."""
        found, best = list_checkpoints(self._folder), best_checkpoint(self._folder)
        score = None if best is None else score_of(best)
        return {
            "newest": found[-1].name if found else None,
            "best": None if best is None else best.name,
            "best_return": None if score is None else score.mean_return,
            "best_by": None if score is None else score.kind,
        }
