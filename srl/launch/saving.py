"""Gathers the parts of a checkpoint from its writers and, when all are there, makes them one."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from srl.learning.checkpoint import begin_checkpoint, commit_checkpoint
from srl.transport.control import Save, Saved


@dataclass
class _Open:
    """A checkpoint some of whose parts are missing."""

    aside: Path
    missing: set[str]
    saved: list[Saved] = field(default_factory=list)
    progress: dict[str, Any] = field(default_factory=dict)
    """Policy to its account at the moment its part was written."""


class Saving:
    """The controller's side of checkpoints: orders them, adds the manifest, commits.

    Where a writer dies half way, its checkpoint stays aside, and is never listed.
    """

    def __init__(self, folder: Path, writers: frozenset[str], keep: int) -> None:
        self._folder = folder
        self._writers = writers
        self._keep = keep
        self._serial = 0
        self._last: Path | None = None
        self._open: dict[int, _Open] = {}

    @property
    def last(self) -> Path | None:
        """The newest checkpoint made whole here."""
        return self._last

    def forget(self) -> None:
        """Give up what is not whole yet: one of its writers died."""
        for pending in self._open.values():
            shutil.rmtree(pending.aside, ignore_errors=True)
        self._open.clear()

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint was ordered and is not whole yet."""
        return bool(self._open)

    def order(self) -> Save:
        """The order for the next checkpoint, to be given to every writer."""
        self._serial += 1
        aside = begin_checkpoint(self._folder, self._serial)
        self._open[self._serial] = _Open(aside, set(self._writers))
        return Save(self._serial, str(aside))

    def add(self, saved: Saved, manifest: Mapping[str, Any]) -> None:
        """Take in a part; the last one missing makes the checkpoint whole, with this manifest.

        Of each policy's progress it says what was known when its part came: a trainer goes on
        while others still write theirs.
        """
        pending = self._open.get(saved.serial)
        if pending is None or saved.worker not in pending.missing:
            return
        pending.missing.discard(saved.worker)
        pending.saved.append(saved)
        progress = manifest["progress"]
        pending.progress |= {p: progress["policies"][p] for p in saved.versions}
        if pending.missing:
            return
        del self._open[saved.serial]
        ledgers = {p: ledger for s in pending.saved for p, ledger in s.ledgers.items()}
        self._last = commit_checkpoint(
            pending.aside,
            [s.part for s in pending.saved],
            versions={p: version for s in pending.saved for p, version in s.versions.items()},
            manifest={
                **manifest,
                "progress": {**progress, "policies": progress["policies"] | pending.progress},
                "ledgers": ledgers,
            },
            keep=self._keep,
        )
