"""Reads run folders: what was learned, how, and how well it went."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from srl.core.errors import ConfigError
from srl.core.names import nearest
from srl.launch.folder import RunFolder
from srl.launch.graph.config import plain_numbers
from srl.telemetry.sinks import read_rows

_NO_METHOD = ("name", "seed", "out", "stop", "checkpoint", "evaluation", "metrics", "restarts")
_NO_METHOD += ("hangs", "network", "ray", "env.name", "env.options", "env.wrappers", "env.reseed")
_NO_METHOD += ("env.timeout-seconds", "env.max-failures", "env.failure-window")
"""Options, or what they begin with, that say nothing of how a task is learned."""

_MANY_OPTIONS = 3
"""More would not fit beside the numbers."""


@dataclass(frozen=True)
class RunResult:
    """A run, as far as it is compared; returns are raw."""

    folder: Path
    name: str
    """Of its experiment."""
    task: str
    """Its env, with the options that make it another."""
    algorithm: str
    options: Mapping[str, Any]
    """Every option that may tell methods apart, as the command line names it."""
    seed: int
    status: str
    env_steps: int
    eval_return: float | None
    """Of its final evaluation."""
    mean_return: float | None
    """Of its last episodes."""
    steps: np.ndarray
    """`[S]` env steps at which the mean return was known."""
    returns: np.ndarray
    """`[S]` mean returns."""

    def returns_at(self, env_steps: np.ndarray) -> np.ndarray:
        """The newest mean return at each number of env steps; NaN where none was known yet."""
        rows = np.searchsorted(self.steps, env_steps, side="right")
        return np.concatenate([[np.nan], self.returns])[rows]


def read_runs(paths: Sequence[Path], policy: str | None) -> tuple[list[RunResult], list[str]]:
    """The runs of these folders and of the folders in them, and notes on what is left out.

    Raises ConfigError where there are none, or where one that is named has no results.
    """
    found: dict[Path, RunResult] = {}
    notes = []
    for path in paths:
        if (path / "config.json").is_file():
            found[path.resolve()] = _read_run(path, policy)
            continue
        if not path.is_dir():
            raise ConfigError(f"{path} is neither a run folder nor a folder of runs")
        below = sorted(config.parent for config in path.rglob("config.json"))
        if not below:
            raise ConfigError(f"there are no run folders in {path}")
        for folder in below:
            try:
                found[folder.resolve()] = _read_run(folder, policy)
            except ConfigError as error:
                notes.append(f"left out: {error}")
    if not found:
        raise ConfigError("; ".join(["none of the runs can be compared", *notes]))
    return list(found.values()), notes


def _read_run(path: Path, policy: str | None) -> RunResult:
    folder = RunFolder.open(path)
    config, summary = folder.read("config.json"), folder.read("summary.json")
    try:
        env = config["env"]
        task, parts = env["name"], [env["options"], *env["wrappers"]]
        by_policy = summary["policies"]
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is not a run folder of this version: {error} is missing"
        ) from None
    name = _choose_policy(path, [p for p in by_policy if not by_policy[p].get("frozen")], policy)
    rows = list(read_rows(folder.metrics)) if folder.metrics.is_file() else []
    known = [
        (row["env_steps"], row["mean_return"])
        for row in rows
        if row["policy"] == name and row.get("mean_return") is not None
    ]
    facts = by_policy[name]
    if not known and facts.get("eval_return") is None and facts.get("mean_return") is None:
        raise ConfigError(f"{path} has no returns yet: no episode ended, or it was not started")
    steps, returns = np.array(known, np.float64).reshape(-1, 2).T
    return RunResult(
        folder=path,
        name=config["name"],
        task=" ".join([task, *(part for part in parts if part != "{}")]),
        algorithm=summary["algorithm"],
        options=_method_options(config),
        seed=config["seed"],
        status=summary["status"],
        env_steps=summary["env_steps"],
        eval_return=facts.get("eval_return"),
        mean_return=facts.get("mean_return"),
        steps=steps,
        returns=returns,
    )


def _choose_policy(path: Path, names: list[str], wanted: str | None) -> str:
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted is None:
        raise ConfigError(f"{path} has several policies: choose one by --policy, of {names}")
    if wanted not in names:
        raise ConfigError(f"{path} has no policy {wanted!r}{nearest(wanted, names)} (of {names})")
    return wanted


def _method_options(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: plain_numbers(value)
        for name, value in _flat(config).items()
        if not any(name == skipped or name.startswith(f"{skipped}.") for skipped in _NO_METHOD)
    }


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Options by the names they have on the command line."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        name = prefix + key.rstrip("_").replace("_", "-")
        found |= _flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return found


def method_names(runs: Sequence[RunResult], by: Sequence[str] | None) -> list[str]:
    """The method of each run: its algorithm, and those options that tell runs of it apart.

    Recipes of one algorithm for one task, whose options differ in many ways, go by their names.

    Args:
        runs: all that are compared.
        by: the options to tell them apart by; None: all that differ between runs of one algorithm
            on one task.
    """
    if by is not None:
        known = sorted({name for run in runs for name in run.options})
        for name in by:
            if name not in known:
                raise ConfigError(f"--by: no run has an option {name!r}{nearest(name, known)}")
    told_apart = {run.algorithm: list(by or ()) for run in runs}
    if by is None:
        for algorithm, names in told_apart.items():
            for task in {run.task for run in runs}:
                same = [r.options for r in runs if (r.algorithm, r.task) == (algorithm, task)]
                names += [n for n in _differing(same) if n not in names]
    recipes = {
        algorithm
        for algorithm, names in told_apart.items()
        if by is None
        and len(names) > _MANY_OPTIONS
        and _are_recipes([run for run in runs if run.algorithm == algorithm])
    }
    return [
        f"{run.algorithm} {run.name}"
        if run.algorithm in recipes
        else _method(run, sorted(told_apart[run.algorithm]))
        for run in runs
    ]


def _are_recipes(runs: Sequence[RunResult]) -> bool:
    """Whether runs of one task have one set of options for each name, and another for another."""
    sets = {(run.task, run.name, json.dumps(run.options, sort_keys=True)) for run in runs}
    tasks, names, options = (len(set(found)) for found in zip(*sets, strict=True))
    return tasks == 1 and names == options == len(sets)


def _differing(options: Sequence[Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for found in options for name in found)
    return [name for name in names if len({json.dumps(o.get(name)) for o in options}) > 1]


def _method(run: RunResult, names: Sequence[str]) -> str:
    values = {name: run.options[name] for name in names if name in run.options}
    shown = (f"{n}={v if isinstance(v, str) else json.dumps(v)}" for n, v in values.items())
    return " ".join([run.algorithm, *shown])
