"""Adds up what the workers report: the one account of a run that views and files are made of."""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from srl.core.telemetry import Episode
from srl.telemetry.bottleneck import name_bottleneck
from srl.telemetry.memory import Memory

_WINDOW = 100
_TOTALS = (
    "env_steps",
    "agent_steps",
    "env_failures",
    "env_rebuilds",
    "envs_parked",
    "hangs",
    "connections_refused",
    "connections_ended",
    "messages_refused",
)


class PolicyProgress:
    """One policy: what it has learned, and its last episodes."""

    def __init__(self, *, frozen: bool = False) -> None:
        self.frozen = frozen
        """It plays and does not learn."""
        self.version = 0
        self.updates = 0
        self.train_samples = 0
        self.skipped_batches = 0
        """Batches that made a version and left no trace: a number was not finite."""
        self.episodes = 0
        self.staleness_sum = 0.0
        self.staleness_count = 0
        self.staleness_max = 0
        self.returns: deque[float] = deque(maxlen=_WINDOW)
        self.lengths: deque[int] = deque(maxlen=_WINDOW)

    def on_episode(self, episode: Episode) -> None:
        """Take in a finished episode; a return that is not finite says nothing about the others."""
        self.episodes += 1
        if math.isfinite(episode.agent_return):
            self.returns.append(episode.agent_return)
        self.lengths.append(episode.length)

    def on_update(self, update: Mapping[str, float]) -> None:
        """Take in one learned batch."""
        self.version = int(update["version"])
        self.updates = int(update["updates"])
        self.train_samples = int(update["train_samples_total"])
        self.skipped_batches = int(update["skipped_batches"])
        blocks = int(update["blocks"])
        self.staleness_sum += update["staleness_mean"] * blocks
        self.staleness_count += blocks
        self.staleness_max = max(self.staleness_max, int(update["staleness_max"]))

    @property
    def mean_return(self) -> float | None:
        """Mean raw return of the last 100 episodes."""
        return _mean(self.returns)

    @property
    def staleness_mean(self) -> float:
        """Mean staleness of the blocks learned."""
        return self.staleness_sum / self.staleness_count if self.staleness_count else 0.0

    def summary(self) -> dict[str, Any]:
        """The facts of `summary.json`."""
        return {
            "version": self.version,
            "updates": self.updates,
            "train_samples": self.train_samples,
            "skipped_batches": self.skipped_batches,
            "episodes": self.episodes,
            "mean_return": self.mean_return,
            "staleness_mean": self.staleness_mean,
            "staleness_max": self.staleness_max,
            "frozen": self.frozen,
        }

    def to_dict(self) -> dict[str, Any]:
        """Everything a resumed run goes on counting from."""
        return {
            "version": self.version,
            "updates": self.updates,
            "train_samples": self.train_samples,
            "skipped_batches": self.skipped_batches,
            "episodes": self.episodes,
            "staleness": [self.staleness_sum, self.staleness_count, self.staleness_max],
            "returns": list(self.returns),
            "lengths": list(self.lengths),
        }

    def load(self, data: Mapping[str, Any]) -> None:
        """Go on from what `to_dict` returned."""
        self.version = int(data["version"])
        self.updates = int(data["updates"])
        self.train_samples = int(data["train_samples"])
        self.skipped_batches = int(data.get("skipped_batches", 0))  # older checkpoints have none
        self.episodes = int(data["episodes"])
        self.staleness_sum, count, highest = data["staleness"]
        self.staleness_count, self.staleness_max = int(count), int(highest)
        self.returns.extend(data["returns"])
        self.lengths.extend(data["lengths"])


class Progress:
    """Totals over all workers, and an account a policy."""

    def __init__(
        self,
        policies: Iterable[str] = ("main",),
        frozen: Iterable[str] = (),
        *,
        takes_turns: bool = False,
    ) -> None:
        """Of a run with these `policies` that learn, and those that only play; in one process, by turns?"""
        self._takes_turns = takes_turns
        self.base: dict[str, int] = dict.fromkeys(_TOTALS, 0)
        """What was done before this start of the run."""
        self.seconds_before = 0.0
        self.memory = Memory()
        """What each process takes now."""
        self.policies = {name: PolicyProgress() for name in policies}
        self.policies |= {name: PolicyProgress(frozen=True) for name in frozen}
        self._counters: dict[tuple[str, int], Mapping[str, int]] = {}
        """Of every life of every worker."""
        self._seconds: dict[tuple[str, int], Mapping[str, float]] = {}
        self._totals: dict[str, int] = {}
        """The sum of all counters: nobody adds up thousands of workers for each row."""
        self._splits: dict[str, dict[str, float]] = {}
        """Kind of worker to the sum of its seconds."""

    @property
    def learning(self) -> list[PolicyProgress]:
        """The policies that learn: what the whole run says of itself is about them."""
        return [policy for policy in self.policies.values() if not policy.frozen]

    def on_report(
        self,
        worker: str,
        counters: Mapping[str, int],
        seconds: Mapping[str, float],
        episodes: Iterable[tuple[float, int, str]],
        incarnation: int = 1,
    ) -> None:
        """Take in a worker's totals of one of its lives, and its new episodes."""
        life = worker, incarnation
        _add(self._totals, counters, self._counters.get(life, {}))
        if seconds:
            split = self._splits.setdefault(worker.partition("-")[0], {})
            _add(split, seconds, self._seconds.get(life, {}))
        self._counters[life], self._seconds[life] = counters, seconds
        for episode in episodes:
            finished = Episode(*episode)
            self.policies[finished.policy].on_episode(finished)

    def on_update(self, name: str, update: Mapping[str, float]) -> dict[str, Any]:
        """Take in one batch that a policy learned; returns its row for the metrics file."""
        policy = self.policies[name]
        policy.on_update(update)
        return {
            "policy": name,
            "version": policy.version,
            "updates": policy.updates,
            "env_steps": self.total("env_steps"),
            "agent_steps": self.total("agent_steps"),
            "episodes": policy.episodes,
            "mean_return": policy.mean_return,
            "mean_length": _mean(policy.lengths),
            **{k: v for k, v in update.items() if k not in ("version", "updates")},
        }

    def count(self, counter: str) -> None:
        """Count what no worker is left to report."""
        _add(self._totals, {counter: 1}, {})

    def total(self, counter: str) -> int:
        """A counter over all workers and all starts of the run."""
        return self.base.get(counter, 0) + self._totals.get(counter, 0)

    @property
    def version(self) -> int:
        """The highest version of a policy."""
        return max(policy.version for policy in self.learning)

    @property
    def updates(self) -> int:
        """Optimiser steps, over all policies."""
        return sum(policy.updates for policy in self.learning)

    @property
    def train_samples(self) -> int:
        """Rows learned from, over all policies."""
        return sum(policy.train_samples for policy in self.learning)

    @property
    def skipped_batches(self) -> int:
        """Batches that left no trace because a number was not finite, over all policies."""
        return sum(policy.skipped_batches for policy in self.learning)

    @property
    def episodes(self) -> int:
        """Episodes of the policies that learn."""
        return sum(policy.episodes for policy in self.learning)

    @property
    def mean_return(self) -> float | None:
        """Mean raw return of the last 100 episodes of each policy that learns."""
        return _mean([value for policy in self.learning for value in policy.returns])

    @property
    def is_window_full(self) -> bool:
        """Whether `mean_return` is one of 100 episodes a policy."""
        return all(len(policy.returns) == _WINDOW for policy in self.learning)

    @property
    def staleness_mean(self) -> float:
        """Mean staleness of the blocks learned."""
        count = sum(policy.staleness_count for policy in self.learning)
        return sum(policy.staleness_sum for policy in self.learning) / count if count else 0.0

    @property
    def staleness_max(self) -> int:
        """Highest staleness of a block learned."""
        return max(policy.staleness_max for policy in self.learning)

    def splits(self) -> dict[str, dict[str, float]]:
        """Time split by worker kind, in seconds over all workers of the kind."""
        return {kind: dict(split) for kind, split in self._splits.items()}

    def bottleneck(self) -> str:
        """What holds the run back, in words."""
        return name_bottleneck(self.splits(), takes_turns=self._takes_turns)

    def to_dict(self) -> dict[str, Any]:
        """Everything a resumed run goes on counting from."""
        return {
            "totals": {name: self.total(name) for name in _TOTALS},
            "policies": {name: policy.to_dict() for name, policy in self.policies.items()},
        }

    def load(self, data: Mapping[str, Any]) -> None:
        """Go on from what `to_dict` returned; policies that were not there begin at 0."""
        self.base = {name: int(data["totals"].get(name, 0)) for name in _TOTALS}
        for name, policy in self.policies.items():
            if name in data["policies"]:
                policy.load(data["policies"][name])


def _add(total: dict[str, Any], now: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """Have a total hold what a worker says now instead of what it said before."""
    for name, value in now.items():
        total[name] = total.get(name, 0) + value - before.get(name, 0)


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None
