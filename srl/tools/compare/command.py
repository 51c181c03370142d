"""`srl compare RUN...`: which method is better, and how sure that is."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from srl.core.errors import ConfigError
from srl.core.names import nearest
from srl.tools.bench.report import print_table, say, write_json
from srl.tools.compare.plots import check_plots, write_plots
from srl.tools.compare.report import Scales, Settings, compare
from srl.tools.compare.runs import read_runs
from srl.tools.words import read_options

_OWN = {"at": int, "by": str, "policy": str, "resamples": int, "scales": Path, "json": Path}
_OWN |= {"out": Path}


def main(words: Sequence[str]) -> int:
    """Entry point of the command."""
    options, paths = read_options(words, _OWN)
    for word in paths:
        if word.startswith("-"):
            takes = ", ".join(f"--{name}" for name in _OWN)
            hint = nearest(word.partition("=")[0].removeprefix("--"), list(_OWN))
            raise ConfigError(f"srl compare takes {takes}, got {word!r}{hint}")
    if not paths:
        raise ConfigError("a run is missing: srl compare RUN ... (run folders, or folders of them)")
    settings = _settings(options)
    if "out" in options:
        check_plots(options["out"])
    runs, left_out = read_runs([Path(path) for path in paths], options.get("policy"))
    report = compare(runs, settings)
    report["notes"] = left_out + report["notes"]
    _print(report)
    if "json" in options:
        write_json(options["json"], report)
        say(f"json: {options['json']}")
    if "out" in options:
        for path in write_plots(options["out"], report):
            say(f"plot: {path}")
    return 0


def _settings(options: Mapping[str, Any]) -> Settings:
    for name, least in (("at", 0), ("resamples", 100)):
        if options.get(name, least) < least:
            raise ConfigError(f"--{name} must be at least {least}, got {options[name]}")
    return Settings(
        at=options.get("at"),
        by=[name.removeprefix("--") for name in options["by"].split(",")]
        if "by" in options
        else None,
        resamples=options.get("resamples", Settings.resamples),
        scales=_read_scales(options["scales"]) if "scales" in options else None,
    )


def _read_scales(path: Path) -> Scales:
    """A JSON object: a task to the two returns that count as 0 and as 1."""
    try:
        found = json.loads(path.read_text())
        scales = {str(task): (float(low), float(high)) for task, (low, high) in found.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        wanted = '{"TASK": [return that is 0, return that is 1], ...}'
        raise ConfigError(f"--scales {path} is not {wanted}: {error}") from error
    for task, (low, high) in scales.items():
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ConfigError(f"--scales {path}: {task!r} needs two numbers, the lower one first")
    return scales


def _print(report: Mapping[str, Any]) -> None:
    at = "" if report["at"] is None else f" at {report['at']:,} env steps"
    for task, found in report["tasks"].items():
        rows = [
            (
                method,
                len(facts["seeds"]),
                *(_cell(facts[name]) for name in ("iqm", "mean", "median")),
            )
            for method, facts in _best_first(found)
        ]
        print_table(f"{task}: {report['score']}{at}", ("method", "seeds", *_HEADS), rows)
        _print_improvement(found)
    overall = report["overall"]
    if overall is not None:
        rows = [
            (
                method,
                facts["num_runs"],
                *(_cell(facts[name]) for name in ("iqm", "mean", "median")),
                f"{facts['optimality_gap']:.3g}",
            )
            for method, facts in _best_first(overall)
        ]
        title = f"all {len(report['tasks'])} tasks, each scaled to 0..1"
        print_table(title, ("method", "runs", *_HEADS, "optimality gap"), rows)
        _print_improvement(overall)
    for note in report["notes"]:
        say(f"note: {note}")


_HEADS = ("IQM [95 %]", "mean [95 %]", "median [95 %]")


def _print_improvement(found: Mapping[str, Any]) -> None:
    """How likely a run of the best method is better than one of each other."""
    (best, _), *others = _best_first(found)
    pairs = {(pair["of"], pair["over"]): pair for pair in found["improvement"]}
    rows = [(f"{best} > {other}", _cell(pairs[best, other])) for other, _ in others]
    if rows:
        print_table("probability of improvement", ("a run of A > one of B", "P [95 %]"), rows)


def _best_first(found: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    return sorted(found["methods"].items(), key=lambda pair: -pair[1]["iqm"]["value"])


def _cell(number: Mapping[str, Any]) -> str:
    value, interval = number["value"], number["interval"]
    return f"{value:.4g}" + ("" if interval is None else f" [{interval[0]:.4g}, {interval[1]:.4g}]")
