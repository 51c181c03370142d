"""`srl bench ablate NAME`: what each mechanism buys, one factor at a time.

From the experiment's own setting one option is changed, everything else stays. The runs of a round
follow each other, each round begins at another place, and what counts are ratios within a round.
"""

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from srl.core.errors import ConfigError, SrlError
from srl.core.experiment import Experiment
from srl.launch.graph.options import option_names
from srl.launch.graph.plan import make_plan
from srl.launch.host.limits import check_host
from srl.tools.bench.command import find, read_words
from srl.tools.bench.peer_results import ratio_of
from srl.tools.bench.plot import write_bars
from srl.tools.bench.report import host, print_table, say, write_json
from srl.tools.bench.window import run_window

USAGE = (
    "srl bench ablate NAME [--factors groups,threads] [--repeats 3] [--seconds 10] [--warm-up 3] "
    "[--json F.json] [--a.b value ...]"
)
_OWN = {"factors": str, "repeats": int, "seconds": float, "warm-up": float, "json": str}

FACTORS: dict[str, tuple[str, tuple[str, ...]]] = {
    "groups": ("actors.groups", ("1", "2", "4")),
    "inference": ("inference", ("inline", "shm")),
    "acting": ("acting", ("auto", "torch")),
    "staleness": ("max-staleness", ("0", "1")),
    "precision": ("precision", ("fp32", "bf16")),
    "compile": ("compile", ("False", "True")),
    "allocator": ("allocator", ("default", "tuned")),
    "threads": ("threads", ("1", "2")),
}
"""Factor to its option and the values it is tried with."""


@dataclass(frozen=True)
class Level:
    """The experiment with one option changed."""

    factor: str
    option: str
    value: str
    experiment: Experiment[Any] | None
    """None: it cannot be run."""
    reason: str = ""
    """Why not."""

    @property
    def label(self) -> str:
        """What is shown."""
        return f"{self.option} {self.value}"


def main(words: Sequence[str]) -> int:
    """Entry point of the command."""
    name, own, rest = read_words(words, USAGE, _OWN)
    chosen = own["factors"].split(",") if "factors" in own else list(FACTORS)
    for factor in chosen:
        if factor not in FACTORS:
            raise ConfigError(f"--factors {factor} is not of {', '.join(FACTORS)}")
    base = find(name, rest)
    if base.launcher != "local":
        raise ConfigError("srl bench ablate measures real processes: --launcher local")
    levels = list(levels_of(base, name, rest, chosen))
    for level in levels:
        if level.experiment is None:
            say(f"not tried: {level.label}: {level.reason}")
    result = {"command": "ablate", "name": name, "options": list(rest), "host": host()}
    rates: dict[str, list[float | None]] = {"base": []}
    for _ in measure(
        base,
        levels,
        rates,
        repeats=own.get("repeats", 3),
        warm_up=own.get("warm-up", 3.0),
        window=own.get("seconds", 10.0),
    ):
        result |= summarise(levels, rates)
        if "json" in own:
            write_json(own["json"], result)
    show(result)
    if "json" in own:
        plot(result, Path(own["json"]).with_suffix(".svg"))
    return 0


def levels_of(
    base: Experiment[Any], name: str, arguments: Sequence[str], factors: Sequence[str]
) -> Iterator[Level]:
    """Every level of these factors that is not the experiment's own."""
    known = set(option_names(base))
    for factor in factors:
        option, values = FACTORS[factor]
        option = option if option in known else f"algorithm.{option}"
        if option not in known:
            reason = "there is no such option"
            yield Level(factor, FACTORS[factor][0], "/".join(values), None, reason)
            continue
        for value in values:
            try:
                experiment = find(name, [*arguments, f"--{option}", value])
                if _resolved(experiment) == _resolved(base):
                    continue
                plan = make_plan(experiment)
                check_host(plan, experiment, Path(tempfile.gettempdir()))
                if option == "acting" and plan.routes == make_plan(base).routes:
                    raise ConfigError("these networks have no other policy than torch's")
            except ConfigError as error:
                yield Level(factor, option, value, None, str(error))
                continue
            yield Level(factor, option, value, experiment)


def _resolved(experiment: Experiment[Any]) -> Experiment[Any]:
    """The same experiment, saying what `auto` means."""
    return replace(experiment, inference=experiment.inference_substrate)


def measure(
    base: Experiment[Any],
    levels: Sequence[Level],
    rates: dict[str, list[float | None]],
    *,
    repeats: int,
    warm_up: float,
    window: float,
) -> Iterator[None]:
    """Fill `rates`, one a round, with None for a run that failed; yields after every run.

    A level that fails is not tried again.
    """
    runs: list[tuple[str, Experiment[Any]]] = [("base", base)]
    runs += [(level.label, level.experiment) for level in levels if level.experiment is not None]
    failed: set[str] = set()
    for number in range(repeats):
        turned = runs[number % len(runs) :] + runs[: number % len(runs)]
        for label, experiment in turned:
            found = rates.setdefault(label, [])
            if label in failed:
                found.append(None)
                continue
            try:
                rate = run_window(experiment, warm_up=warm_up, window=window).env_steps_per_second
            except SrlError as error:
                if label == "base":
                    raise
                failed.add(label)
                sys.stderr.write(f"{label}: {error}\n")
                found.append(None)
            else:
                found.append(rate)
                say(f"round {number + 1} of {repeats}, {label}: {rate:,.0f} env steps/s")
            yield


def summarise(
    levels: Sequence[Level], rates: Mapping[str, Sequence[float | None]]
) -> dict[str, Any]:
    """Ratios to the base, over the rounds that both have."""
    base = rates["base"]
    rows = []
    for level in levels:
        found = rates.get(level.label, [])
        rounds = min(len(base), len(found))
        rows.append(
            {
                "factor": level.factor,
                "level": level.label,
                "rates": list(found),
                **ratio_of(found[:rounds], base[:rounds]),
                "not_tried": level.reason or None,
            }
        )
    return {"base": list(base), "levels": rows}


def show(result: Mapping[str, Any]) -> None:
    """Print the table."""
    rows = [["-", "base", _rates(result["base"]), "1.00", ""]]
    for row in result["levels"]:
        if row["not_tried"]:
            continue
        ratio = "failed" if row["median"] is None else f"{row['median']:.2f}"
        rows.append([row["factor"], row["level"], _rates(row["rates"]), ratio, _between(row)])
    columns = ["factor", "level", "env steps/s", "ratio to base", "95 % interval"]
    print_table(f"{result['name']}: one factor at a time", columns, rows)


def _rates(rates: Sequence[float | None]) -> str:
    return " ".join("-" if rate is None else f"{rate:,.0f}" for rate in rates)


def _between(row: Mapping[str, Any]) -> str:
    if row["interval"] is None:
        return ""
    low, high = row["interval"]
    return f"{low:.2f} - {high:.2f}"


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Write the ratios as bars with their intervals."""
    rows = [row for row in result["levels"] if row["median"] is not None]
    bars = {row["level"]: {"ratio": row["median"]} for row in rows}
    intervals = {row["level"]: tuple(row["interval"]) for row in rows if row["interval"]}
    title = f"{result['name']}: env steps/s, one factor at a time"
    write_bars(path, title, bars, unit="ratio to base", intervals=intervals, marks={"base": 1.0})
