"""Draws a comparison: curves, performance profiles and IQMs, a field a task."""

import importlib.util
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from srl.core.errors import ConfigError
from srl.tools.bench.plot import COLOURS

_COLUMNS = 3
_FIELD = (4.8, 3.6)
"""Inches."""


def check_plots(folder: Path) -> None:
    """Raise ConfigError, before anything is compared, where plots cannot be drawn or kept."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("plots need matplotlib: pip install 'really-scalable-rl[plots]'")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the folder {folder} cannot be made: {error}") from error


def write_plots(folder: Path, report: Mapping[str, Any]) -> list[Path]:
    """Write `curves.png`, `profiles.png` and `iqm.png`; returns those that there are."""
    tasks, overall = report["tasks"], report["overall"]
    methods = list(dict.fromkeys(m for task in tasks.values() for m in task["methods"]))
    colours = {method: COLOURS[i % len(COLOURS)] for i, method in enumerate(methods)}
    fields = dict(tasks) | ({} if overall is None else {"all tasks, scaled": overall})
    curves = {name: task["curve"] for name, task in tasks.items() if task["curve"] is not None}
    score = "return" if report["at"] is None else f"return at {report['at']:,} steps"
    drawn: list[tuple[str, Mapping[str, Any], Callable[..., None]]] = [
        ("curves.png", curves, _draw_curve),
        ("profiles.png", {name: field["profile"] for name, field in fields.items()}, _draw_profile),
        ("iqm.png", {name: field["methods"] for name, field in fields.items()}, _draw_bars),
    ]
    written = []
    for name, shown, draw in drawn:
        if shown:
            _write(folder / name, shown, draw, colours, score)
            written.append(folder / name)
    return written


def _write(
    path: Path,
    fields: Mapping[str, Any],
    draw: Callable[..., None],
    colours: Mapping[str, str],
    score: str,
) -> None:
    from matplotlib.figure import Figure  # not pyplot: it keeps figures, and looks for a screen

    columns = min(len(fields), _COLUMNS)
    rows = math.ceil(len(fields) / columns)
    figure = Figure((columns * _FIELD[0], rows * _FIELD[1]), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flat
    for axis, (name, field) in zip(axes, fields.items(), strict=False):
        axis.set_title(name, fontsize="medium")
        axis.grid(alpha=0.3)
        draw(axis, field, colours, score)
        axis.locator_params(axis="x", nbins=5)
    for axis in list(axes)[len(fields) :]:
        axis.remove()
    named = {}
    for axis in figure.axes:
        handles, labels = axis.get_legend_handles_labels()
        named |= dict(zip(labels, handles, strict=True))
    figure.legend(named.values(), named.keys(), loc="outside lower center", fontsize="small")
    figure.savefig(path, dpi=120)


def _draw_curve(axis: Any, curve: Mapping[str, Any], colours: Mapping[str, str], _: str) -> None:
    _draw_lines(axis, curve["env_steps"], curve["methods"], colours)
    axis.set_xlabel("env steps")
    axis.set_ylabel("mean return, IQM of the seeds")


def _draw_profile(
    axis: Any, found: Mapping[str, Any], colours: Mapping[str, str], score: str
) -> None:
    _draw_lines(axis, found["thresholds"], found["methods"], colours)
    axis.set_xlabel(f"{score} τ")
    axis.set_ylabel("part of the runs above τ")
    axis.set_ylim(-0.02, 1.02)


def _draw_lines(
    axis: Any, x: list[float], lines: Mapping[str, Any], colours: Mapping[str, str]
) -> None:
    for method, line in lines.items():
        axis.plot(x, line["value"], color=colours[method], label=method)
        if line["low"] is not None:
            axis.fill_between(x, line["low"], line["high"], color=colours[method], alpha=0.2)


def _draw_bars(
    axis: Any, methods: Mapping[str, Any], colours: Mapping[str, str], score: str
) -> None:
    for number, (method, found) in enumerate(methods.items()):
        value, interval = found["iqm"]["value"], found["iqm"]["interval"]
        low, high = interval or (value, value)
        axis.barh(number, high - low, 0.6, low, color=colours[method], alpha=0.7, label=method)
        axis.plot(value, number, "|", color="black", markersize=18)
    axis.use_sticky_edges = False  # a bar does not stand on the edge
    axis.set_yticks([])
    axis.invert_yaxis()
    axis.set_xlabel(f"{score}: IQM, 95 % interval")
