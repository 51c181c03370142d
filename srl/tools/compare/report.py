"""Compares runs: which methods there are, what they reach on each task, and over all tasks."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np

from srl.core.errors import ConfigError
from srl.tools.compare.runs import RunResult, method_names
from srl.tools.compare.statistics import (
    Scores,
    bootstrap_interval,
    interquartile_mean,
    mean,
    median,
    optimality_gap,
    probability_of_improvement,
    profile,
)

Scales = Mapping[str, tuple[float, float]]
"""Task to the returns that count as 0 and as 1."""
_THRESHOLDS = 101
_POINTS = 60
"""Of a curve."""
_SAME_STEPS = 0.9
"""Runs of one task whose env steps differ by more than this ratio are not of one length."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How runs are compared."""

    at: int | None = None
    """Env steps at which returns are compared; None: at the end."""
    by: Sequence[str] | None = None
    """Options that tell methods apart; None: all that differ."""
    resamples: int = 5000
    """Of the bootstrap."""
    scales: Scales | None = None
    """What makes returns of several tasks comparable."""


def compare(runs: Sequence[RunResult], settings: Settings) -> dict[str, Any]:
    """All that can be said of the runs, as JSON has it; `notes` are sentences for people."""
    methods = method_names(runs, settings.by)
    score, scores = _scores(runs, settings.at)
    cells: dict[str, dict[str, list[int]]] = {}
    for number, (run, method) in enumerate(zip(runs, methods, strict=True)):
        cells.setdefault(run.task, {}).setdefault(method, []).append(number)
    by_task = {
        task: {method: scores[numbers] for method, numbers in cell.items()}
        for task, cell in cells.items()
    }
    facts = _Facts(settings.resamples)
    notes = [note for task, cell in cells.items() for note in _notes(task, cell, runs, settings)]
    if score == "mean_return" and settings.at is None:
        notes.append("compared is mean_return: not every run has an eval_return")
    tasks = {}
    for task, cell in cells.items():
        compared = facts.of({method: [x] for method, x in by_task[task].items()})
        for method, numbers in cell.items():
            compared["methods"][method] |= {
                "seeds": [runs[number].seed for number in numbers],
                "folders": [str(runs[number].folder) for number in numbers],
                "scores": by_task[task][method].tolist(),
            }
        curves = {method: [runs[number] for number in cell[method]] for method in cell}
        tasks[task] = compared | {"curve": facts.curve(curves)}
    overall, more = _overall(by_task, settings.scales, facts)
    return {
        "score": score,
        "at": settings.at,
        "resamples": settings.resamples,
        "tasks": tasks,
        "overall": overall,
        "notes": notes + more,
    }


def _scores(runs: Sequence[RunResult], at: int | None) -> tuple[str, np.ndarray]:
    """What is compared, by name and for each run."""
    if at is not None:
        for run in runs:
            if run.env_steps < at:
                raise ConfigError(
                    f"{run.folder} ended at {run.env_steps} env steps, before --at {at}"
                )
        name, found = "mean_return", [run.returns_at(np.array([at]))[0] for run in runs]
    elif all(run.eval_return is not None for run in runs):
        name, found = "eval_return", [run.eval_return for run in runs]
    else:
        name, found = "mean_return", [run.mean_return for run in runs]
    for run, value in zip(runs, found, strict=True):
        if value is None or not math.isfinite(value):
            when = "" if at is None else f" at {at} env steps"
            raise ConfigError(f"{run.folder} has no finite {name}{when}")
    return name, np.array(found, np.float64)


def _notes(
    task: str, cell: Mapping[str, Sequence[int]], runs: Sequence[RunResult], settings: Settings
) -> list[str]:
    notes = []
    for method, numbers in cell.items():
        seeds = Counter(runs[number].seed for number in numbers)
        if len(numbers) == 1:
            notes.append(f"{task}: {method} has one seed only: an interval needs two or more")
        twice = [seed for seed, count in seeds.items() if count > 1]
        if twice:
            notes.append(f"{task}: {method} has several runs of seed {twice[0]}: not independent")
    here = [runs[number] for numbers in cell.values() for number in numbers]
    notes += [f"{run.folder} is {run.status}" for run in here if run.status != "completed"]
    steps = sorted(run.env_steps for run in here)
    if settings.at is None and steps[0] < _SAME_STEPS * steps[-1]:
        ends = f"between {steps[0]:,} and {steps[-1]:,} env steps"
        notes.append(f"{task}: runs end {ends}: --at {steps[0]} compares them at one")
    return notes


class _Facts:
    """Statistics with their intervals; equal runs give equal numbers."""

    def __init__(self, resamples: int) -> None:
        self._resamples = resamples
        self._rng = np.random.default_rng(0)

    def of(self, methods: Mapping[str, Scores]) -> dict[str, Any]:
        """Of the scores of each method, task by task."""
        every = np.concatenate([x for scores in methods.values() for x in scores])
        margin = 0.05 * (np.ptp(every) or 1.0)  # so that profiles begin at 1 and end at 0
        thresholds = np.linspace(every.min() - margin, every.max() + margin, _THRESHOLDS)
        statistics = {"iqm": interquartile_mean, "mean": mean, "median": median}
        return {
            "methods": {
                method: {name: self._number(f, scores) for name, f in statistics.items()}
                for method, scores in methods.items()
            },
            "improvement": [
                {"of": a, "over": b}
                | self._number(probability_of_improvement, methods[a], methods[b])
                for a, b in permutations(methods, 2)
            ],
            "profile": {
                "thresholds": thresholds.tolist(),
                "methods": {
                    method: self.line(lambda scores: profile(scores, thresholds), scores)
                    for method, scores in methods.items()
                },
            },
        }

    def curve(self, methods: Mapping[str, Sequence[RunResult]]) -> dict[str, Any] | None:
        """Mean returns over env steps, where all runs have some; None where there is no such part."""
        runs = [run for found in methods.values() for run in found]
        if any(len(run.steps) == 0 for run in runs):
            return None
        start, end = max(r.steps[0] for r in runs), min(r.env_steps for r in runs)
        if start >= end:
            return None
        steps = np.linspace(start, end, _POINTS).astype(np.int64)
        return {
            "env_steps": steps.tolist(),
            "methods": {
                method: self.line(
                    interquartile_mean, [np.stack([run.returns_at(steps) for run in found], -1)]
                )
                for method, found in methods.items()
            },
        }

    def line(self, statistic: Callable[..., np.ndarray], scores: Scores) -> dict[str, Any]:
        """A statistic with a leading axis: values, and the ends of their intervals."""
        interval = self._interval(statistic, scores)
        low, high = (None, None) if interval is None else (end.tolist() for end in interval)
        return {"value": statistic(scores).tolist(), "low": low, "high": high}

    def _number(self, statistic: Callable[..., np.ndarray], *groups: Scores) -> dict[str, Any]:
        interval = self._interval(statistic, *groups)
        ends = None if interval is None else [float(end) for end in interval]
        return {"value": float(statistic(*groups)), "interval": ends}

    def _interval(
        self, statistic: Callable[..., np.ndarray], *groups: Scores
    ) -> tuple[np.ndarray, np.ndarray] | None:
        if any(x.shape[-1] < 2 for scores in groups for x in scores):
            return None
        return bootstrap_interval(statistic, *groups, resamples=self._resamples, rng=self._rng)


def _overall(
    by_task: Mapping[str, Mapping[str, np.ndarray]], scales: Scales | None, facts: _Facts
) -> tuple[dict[str, Any] | None, list[str]]:
    """What methods reach over several tasks, where 0 and 1 are the ends of each task's scale."""
    unknown = sorted(set(scales or ()) - set(by_task))
    if unknown:
        raise ConfigError(f"--scales names {unknown[0]!r}, and the tasks are {sorted(by_task)}")
    if len(by_task) < 2:
        return None, []
    every = dict.fromkeys(method for cell in by_task.values() for method in cell)
    common = [method for method in every if all(method in cell for cell in by_task.values())]
    notes = [
        f"{m} is not run on every task: left out of all tasks" for m in every if m not in common
    ]
    if not common:
        return None, [*notes, "no method is run on every task: tasks are not taken together"]
    used = {task: (scales or {}).get(task) or _range(cell) for task, cell in by_task.items()}
    guessed = [task for task in by_task if task not in (scales or {})]
    if guessed:
        notes.append(
            f"all tasks: 0 and 1 are the lowest and highest return of the runs compared here on "
            f"{', '.join(guessed)}: give --scales to compare with other runs"
        )
    scaled = {
        method: [(by_task[t][method] - low) / (high - low) for t, (low, high) in used.items()]
        for method in common
    }
    overall = facts.of(scaled)
    for method, scores in scaled.items():
        overall["methods"][method]["optimality_gap"] = float(optimality_gap(scores))
        overall["methods"][method]["num_runs"] = sum(len(x) for x in scores)
    return overall | {"scales": {task: list(ends) for task, ends in used.items()}}, notes


def _range(cell: Mapping[str, np.ndarray]) -> tuple[float, float]:
    every = np.concatenate(list(cell.values()))
    low, high = float(every.min()), float(every.max())
    return low, high if high > low else low + 1.0
