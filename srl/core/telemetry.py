"""What a worker counts and times while it runs; cheap enough for the data path."""

import time
from collections import defaultdict
from typing import NamedTuple


class Episode(NamedTuple):
    """One finished episode of one lane: raw return (before any clipping), length in steps."""

    agent_return: float
    length: int
    policy: str = "main"
    """Whose it was."""


class EvaluatedVersion(NamedTuple):
    """What a version of a policy is worth, and where its weights are kept."""

    policy: str
    version: int
    eval_return: float
    eval_std: float
    eval_episodes: int
    created: float
    """Unix time."""
    sha256: str
    file: str
    """Empty where the disk had no room for it."""


class Note(NamedTuple):
    """Something that went wrong and was dealt with: the run goes on, and says so."""

    message: str
    traceback: str = ""
    files: tuple[tuple[str, str], ...] = ()
    """Names and texts of files to be kept in the run's `errors/`."""


class _Timer:
    """Adds the time spent inside a `with` to one name."""

    __slots__ = ("_name", "_seconds", "began")

    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self._seconds = seconds
        self._name = name
        self.began = 0.0
        """When it was entered, by `time.perf_counter`; 0 outside: for a watchdog's thread to see."""

    def __enter__(self) -> None:
        self.began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._seconds[self._name] += time.perf_counter() - self.began
        self.began = 0.0


class Telemetry:
    """Counters and seconds grow for ever; the rest is handed over once."""

    def __init__(self) -> None:
        self.counters: dict[str, int] = defaultdict(int)
        self.seconds: dict[str, float] = defaultdict(float)
        self.episodes: list[Episode] = []
        self.updates: list[dict[str, float]] = []
        self.evaluations: list[EvaluatedVersion] = []
        self.notes: list[Note] = []
        self._timers: dict[str, _Timer] = {}

    def time(self, name: str) -> _Timer:
        """A `with` block whose time counts as `name`; not for use inside itself."""
        timer = self._timers.get(name)
        if timer is None:
            timer = self._timers[name] = _Timer(self.seconds, name)
        return timer

    def began(self, name: str) -> float:
        """When the `with` block that is timed as `name` now was entered; 0 outside of it."""
        timer = self._timers.get(name)
        return 0.0 if timer is None else timer.began

    def take_episodes(self) -> list[Episode]:
        """Episodes finished since the last call."""
        episodes, self.episodes = self.episodes, []
        return episodes

    def take_updates(self) -> list[dict[str, float]]:
        """Metrics of the batches learned since the last call."""
        updates, self.updates = self.updates, []
        return updates

    def take_evaluations(self) -> list[EvaluatedVersion]:
        """Versions evaluated since the last call."""
        evaluations, self.evaluations = self.evaluations, []
        return evaluations

    def take_notes(self) -> list[Note]:
        """What went wrong since the last call."""
        notes, self.notes = self.notes, []
        return notes
