"""What must hold whatever dies: collects violations, for simulated and for real runs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from srl.transport.slots import Ledger

SILENT_SECONDS = 30.0
"""How long a run may neither learn nor say why not."""


@dataclass(frozen=True)
class Violation:
    """Something that must never happen."""

    rule: str
    """One of RULES."""
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.what}"


RULES = {
    "ends": "a run ends in time",
    "silent": "it makes progress, or names a reason, within 30 s",
    "ledger": "every block sent is consumed, dropped, lost or in flight",
    "twice": "no row is learned twice",
    "answer": "a row's answer is that of the version it is stamped with",
    "stale": "no block is learned that is older than the bound",
    "back": "published versions never go back",
    "slot": "the slot of a block that was taken, or dropped, is free again",
    "raises": "no worker raises because of what befell another",
    "left": "memory, sockets, processes and descriptors return to where they were",
}


@dataclass
class Checker:
    """Is told what happens, and keeps what must not have."""

    max_staleness: int | None
    """None: rows are replayed, however old."""
    violations: list[Violation] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    """How often each rule was looked at: one that never was proves nothing."""
    latest: int = -1
    """The last version that was published."""
    progress_at: float = 0.0

    def must(self, rule: str, holds: bool, what: str) -> None:
        """Note a violation of a rule where something does not hold."""
        assert rule in RULES, rule
        self.seen[rule] += 1
        if not holds:
            self.violations.append(Violation(rule, what))

    def published(self, version: int, now: float) -> None:
        """A trainer made a version the latest."""
        self.must("back", version > self.latest, f"version {version} after {self.latest}")
        self.latest = version
        self.progress_at = now

    def learned(self, staleness: int) -> None:
        """A batch was learned, the oldest of whose rows was this many versions behind."""
        bound = self.max_staleness
        is_sound = staleness >= 0 and (bound is None or staleness <= bound)
        self.must("stale", is_sound, f"staleness {staleness}, at most {bound}")

    def told(self, rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
        """What a run wrote of itself: its metrics, row by row, and its summary."""
        for before, row in zip([None, *rows], rows, strict=False):
            self.published(int(row["version"]), float(row["time"]["seconds"]))
            self.learned(int(row["staleness_max"]))
            if before is not None:
                gap = row["time"]["seconds"] - before["time"]["seconds"]
                self.must("silent", gap <= SILENT_SECONDS, f"nothing was learned for {gap:.0f} s")
        names = [one.name for one in fields(Ledger)]
        self.ledger(Ledger(**{name: summary[f"blocks_{name}"] for name in names}), "at the end")

    def tick(self, now: float) -> None:
        """Time goes by."""
        silent = now - self.progress_at
        self.must("silent", silent <= SILENT_SECONDS, f"nothing was learned for {silent:.0f} s")

    def ledger(self, ledger: Ledger, when: str) -> None:
        """What became of every block."""
        self.must("ledger", ledger.adds_up, f"{when}: {ledger}")

    def left(self, what: str, there: object) -> None:
        """Something that a run may not leave behind, or nothing."""
        self.must("left", not there, f"{what}: {there}")
