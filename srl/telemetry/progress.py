"""Adds up what the workers report: the one account of a run that views and files are made of."""

from collections import deque
from collections.abc import Mapping
from typing import Any

from srl.core.telemetry import Episode
from srl.telemetry.bottleneck import name_bottleneck

_WINDOW = 100
_TOTALS = ("env_steps", "agent_steps")


class Progress:
    """Totals over all workers, the last episodes, the last update."""

    def __init__(self) -> None:
        self.base: dict[str, int] = dict.fromkeys(_TOTALS, 0)
        """What was done before this start of the run."""
        self.seconds_before = 0.0
        self.version = 0
        self.updates = 0
        self.train_samples = 0
        self.episodes = 0
        self.staleness_sum = 0.0
        self.staleness_count = 0
        self.staleness_max = 0
        self.returns: deque[float] = deque(maxlen=_WINDOW)
        self.lengths: deque[int] = deque(maxlen=_WINDOW)
        self.last_update: dict[str, float] = {}
        self._counters: dict[str, Mapping[str, int]] = {}
        self._seconds: dict[str, Mapping[str, float]] = {}

    def on_report(
        self,
        worker: str,
        counters: Mapping[str, int],
        seconds: Mapping[str, float],
        episodes: list[tuple[float, int]],
    ) -> None:
        """Take in a worker's totals and its new episodes."""
        self._counters[worker] = counters
        self._seconds[worker] = seconds
        for episode in episodes:
            finished = Episode(*episode)
            self.episodes += 1
            self.returns.append(finished.agent_return)
            self.lengths.append(finished.length)

    def on_update(self, update: Mapping[str, float]) -> dict[str, Any]:
        """Take in one learned batch; returns its row for the metrics file."""
        self.version = int(update["version"])
        self.updates = int(update["updates"])
        self.train_samples = int(update["train_samples_total"])
        self.last_update = dict(update)
        blocks = int(update["blocks"])
        self.staleness_sum += update["staleness_mean"] * blocks
        self.staleness_count += blocks
        self.staleness_max = max(self.staleness_max, int(update["staleness_max"]))
        return {
            "version": self.version,
            "updates": self.updates,
            "env_steps": self.total("env_steps"),
            "agent_steps": self.total("agent_steps"),
            "episodes": self.episodes,
            "mean_return": self.mean_return,
            "mean_length": _mean(self.lengths),
            **{k: v for k, v in update.items() if k not in ("version", "updates")},
        }

    def total(self, counter: str) -> int:
        """A counter over all workers and all starts of the run."""
        now = sum(counters.get(counter, 0) for counters in self._counters.values())
        return self.base.get(counter, 0) + now

    @property
    def mean_return(self) -> float | None:
        """Mean raw return of the last 100 episodes."""
        return _mean(self.returns)

    @property
    def staleness_mean(self) -> float:
        """Mean staleness of the blocks learned."""
        return self.staleness_sum / self.staleness_count if self.staleness_count else 0.0

    def splits(self) -> dict[str, dict[str, float]]:
        """Time split by worker kind, in seconds over all workers of the kind."""
        splits: dict[str, dict[str, float]] = {}
        for worker, seconds in self._seconds.items():
            split = splits.setdefault(worker.partition("-")[0], {})
            for name, value in seconds.items():
                split[name] = split.get(name, 0.0) + value
        return splits

    def bottleneck(self) -> str:
        """What holds the run back, in words."""
        return name_bottleneck(self.splits())

    def to_dict(self) -> dict[str, Any]:
        """Everything a resumed run goes on counting from."""
        return {
            "totals": {name: self.total(name) for name in _TOTALS},
            "version": self.version,
            "updates": self.updates,
            "train_samples": self.train_samples,
            "episodes": self.episodes,
            "staleness": [self.staleness_sum, self.staleness_count, self.staleness_max],
            "returns": list(self.returns),
            "lengths": list(self.lengths),
        }

    def load(self, data: Mapping[str, Any]) -> None:
        """Go on from what `to_dict` returned."""
        self.base = {name: int(data["totals"][name]) for name in _TOTALS}
        self.version = int(data["version"])
        self.updates = int(data["updates"])
        self.train_samples = int(data["train_samples"])
        self.episodes = int(data["episodes"])
        self.staleness_sum, count, highest = data["staleness"]
        self.staleness_count, self.staleness_max = int(count), int(highest)
        self.returns.extend(data["returns"])
        self.lengths.extend(data["lengths"])

    def catch_up(self, row: Mapping[str, Any]) -> None:
        """Take over what the last row of the metrics file knows and the checkpoint does not yet.

        A trainer's checkpoint is cut a moment after the controller's account of it.
        """
        if row:
            for name in _TOTALS:
                self.base[name] = max(self.base[name], int(row[name]))
            self.train_samples = max(self.train_samples, int(row["train_samples_total"]))
            self.episodes = max(self.episodes, int(row["episodes"]))
            self.version = max(self.version, int(row["version"]))
            self.updates = max(self.updates, int(row["updates"]))
            self.seconds_before = max(self.seconds_before, float(row["time"]["seconds"]))


def _mean(values: deque[float] | deque[int]) -> float | None:
    return sum(values) / len(values) if values else None
