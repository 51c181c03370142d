"""`srl bench train NAME`: how fast the real run is, where its time goes, how far it is from ideal."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from srl.core.errors import ConfigError
from srl.core.experiment import Experiment
from srl.telemetry.bottleneck import name_bottleneck
from srl.tools.bench.command import find, read_words
from srl.tools.bench.cost import measure_cost
from srl.tools.bench.plot import write_bars
from srl.tools.bench.report import host, num_cores, print_table, say, write_json
from srl.tools.bench.window import Window, run_window

USAGE = (
    "srl bench train NAME [--auto] [--seconds 20] [--warm-up 5] [--repeats 1] [--cost F.json] "
    "[--cost-seconds 60] [--json F.json] [--a.b value ...]"
)
_OWN = {
    "auto": None,
    "seconds": float,
    "warm-up": float,
    "repeats": int,
    "cost": str,
    "cost-seconds": float,
    "json": str,
}
_LEAST_SHARE = 0.005
"""Smaller parts of what is missing are not named."""


def main(words: Sequence[str]) -> int:
    """Entry point of the command."""
    name, own, rest = read_words(words, USAGE, _OWN)
    if "auto" in own:
        from srl.tools.tune import auto

        rest = auto(name, rest)
    experiment = find(name, rest)
    if experiment.launcher != "local":
        raise ConfigError("srl bench train measures real processes: --launcher local")
    costs = _costs(experiment, name, own, rest)
    windows = []
    for _ in range(max(1, own.get("repeats", 1))):
        windows.append(
            run_window(experiment, warm_up=own.get("warm-up", 5.0), window=own.get("seconds", 20.0))
        )
        say(f"{name}: {windows[-1].env_steps_per_second:,.0f} env steps/s")
    result = {
        "command": "train",
        "name": name,
        "options": list(rest),
        "host": host(),
        **summarise(experiment, windows, costs),
    }
    show(result)
    if "json" in own:
        write_json(own["json"], result)
        plot(result, Path(own["json"]).with_suffix(".svg"))
    return 0


def _costs(
    experiment: Experiment[Any], name: str, own: Mapping[str, Any], arguments: Sequence[str]
) -> dict[str, Any]:
    if "cost" not in own:
        return measure_cost(experiment, name, own.get("cost-seconds", 60.0), arguments)
    try:
        costs = json.loads(Path(own["cost"]).read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"--cost {own['cost']}: {error}") from error
    if costs.get("command") != "cost":
        raise ConfigError(f"--cost {own['cost']} was not written by 'srl bench cost --json'")
    return costs


def summarise(
    experiment: Experiment[Any], windows: Sequence[Window], costs: Mapping[str, Any]
) -> dict[str, Any]:
    """The rate, the split of the middle window, the efficiency and what is missing from it."""
    by_rate = sorted(windows, key=lambda window: window.env_steps_per_second)
    middle = by_rate[(len(by_rate) - 1) // 2]
    rate = statistics.median(window.env_steps_per_second for window in windows)
    best = costs["ideal"]["env_steps_per_second"]
    parts = costs["ideal"]["core_us_an_env_step"]
    return {
        "env_steps_per_second": rate,
        "windows": [
            {**asdict(window), "env_steps_per_second": window.env_steps_per_second}
            for window in windows
        ],
        "workers": middle.workers,
        "cpu": middle.cpu,
        "elsewhere": middle.elsewhere,
        "bottleneck": name_bottleneck(_by_kind(middle.workers)),
        "ideal": costs["ideal"],
        "efficiency": rate / best,
        "missing": missing(experiment, middle, parts),
    }


def _by_kind(workers: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    splits: dict[str, dict[str, float]] = {}
    for worker, split in workers.items():
        total = splits.setdefault(worker.partition("-")[0], {})
        for part, share in split.items():
            total[part] = total.get(part, 0.0) + share
    return splits


def missing(
    experiment: Experiment[Any], window: Window, parts: Mapping[str, float]
) -> dict[str, float]:
    """What the cores did besides useful work, as shares of all of them: idle, overhead, others.

    Args:
        experiment: says where inference runs.
        window: what was seen.
        parts: the costs of an env step alone, in core-microseconds: what is useful.
    """
    cores, rate = num_cores(), window.env_steps_per_second
    inline = experiment.inference_substrate == "inline"
    useful_us = {
        "actor": parts["env"] + (parts["inference"] if inline else 0.0),
        "policy": 0.0 if inline or experiment.policies.device != "cpu" else parts["inference"],
        "trainer": parts["stage"]
        + (parts["update"] if experiment.trainers.device == "cpu" else 0.0),
    }
    kinds = [name.partition("-")[0] for name in window.cpu]
    lost = {}
    for name, busy in window.cpu.items():
        kind = name.partition("-")[0]
        useful = useful_us.get(kind, 0.0) * rate / 1e6 / kinds.count(kind)
        lost[name] = (busy - useful) / cores
    elsewhere = (window.elsewhere or 0.0) / cores
    idle = max(0.0, 1 - sum(window.cpu.values()) / cores - elsewhere)
    return {"idle": idle, "elsewhere": elsewhere, **lost}


def show(result: Mapping[str, Any]) -> None:
    """Print tables and words."""
    rows = []
    for worker, split in result["workers"].items():
        ordered = sorted(split.items(), key=lambda item: -item[1])
        words = ", ".join(f"{part} {share:.0%}" for part, share in ordered if share >= _LEAST_SHARE)
        rows.append([worker, f"{result['cpu'].get(worker, 0.0):.2f}", words])
    for name, cores in result["cpu"].items():
        if name not in result["workers"]:
            rows.append([name, f"{cores:.2f}", ""])
    print_table(
        f"{result['name']}: where the time goes", ["process", "cores", "share of its time"], rows
    )
    say(f"bottleneck: {result['bottleneck']}")
    for line in missing_in_words(result):
        say(line)
    say(
        f"{result['env_steps_per_second']:,.0f} env steps/s, "
        f"{result['efficiency']:.2f} of the ideal {result['ideal']['env_steps_per_second']:,.0f}"
    )


def missing_in_words(result: Mapping[str, Any]) -> list[str]:
    """What keeps the run from its ideal, worker by worker, the largest first."""
    waits = [
        f"{worker} {part.replace('_', ' ').replace('wait', 'waits', 1)} {share:.0%} of its time"
        for worker, split in result["workers"].items()
        for part, share in split.items()
        if part.startswith("wait") and share >= _LEAST_SHARE
    ]
    lines = []
    for name, share in sorted(result["missing"].items(), key=lambda item: -item[1]):
        if share < _LEAST_SHARE:
            continue
        why = {
            "idle": f"no worker had anything to do ({'; '.join(waits) or 'no waits'})",
            "elsewhere": "other processes of this host",
            "controller": "the controller: reports, metrics, TensorBoard",
            "node-agent": "the node agent: watching and forwarding",
        }.get(name, f"{name} works slower than alone, or on what an env step does not need")
        lines.append(f"missing {share:.1%} of the cores: {why}")
    return lines


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Write the split of every worker as bars."""
    bars = {
        worker: {part: share for part, share in split.items() if share > 0}
        for worker, split in result["workers"].items()
    }
    rate, best = result["env_steps_per_second"], result["ideal"]["env_steps_per_second"]
    title = f"{result['name']}: {rate:,.0f} env steps/s, {rate / best:.0%} of the ideal"
    write_bars(path, title, bars, unit="share of each worker's time")
