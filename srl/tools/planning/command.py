"""`srl plan NAME`: how fast an experiment would be on a cluster; `srl plan RUN`: whether that is true."""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from srl import catalog
from srl.api import check_devices
from srl.core.errors import ConfigError
from srl.core.experiment import Experiment
from srl.launch.folder import RunFolder
from srl.launch.graph.opening import read_experiment
from srl.tools.bench.command import find, read_words
from srl.tools.bench.report import print_table, say, write_json
from srl.tools.bench.workloads import WORKLOADS
from srl.tools.planning.calibrate import (
    calibrate,
    differing,
    kept_at,
    one_of_each,
    plan_of,
    read_costs,
    write_costs,
)
from srl.tools.planning.cluster import Cluster, on_cluster, read_cluster, this_host
from srl.tools.planning.model import Costs, Prediction, predict
from srl.tools.planning.recommend import Candidate, is_as_fast, recommend

USAGE = (
    "srl plan NAME|RUN [--cluster F.toml] [--costs F.json] [--seconds 60] [--again] [--recommend] "
    "[--json F.json] [--a.b value ...]"
)


def main(words: Sequence[str]) -> int:
    """Entry point of the command."""
    own = {"cluster": Path, "costs": Path, "seconds": float, "json": str}
    name, options, rest = read_words(words, USAGE, {**own, "again": None, "recommend": None})
    seconds = options.setdefault("seconds", 60.0)
    if not 0 < seconds < math.inf:
        raise ConfigError(f"--seconds must be more than 0 and finite, got {seconds:g}")
    folder = _folder_of(name)
    experiment = find(name, rest) if folder is None else _experiment_of(folder, rest)
    if experiment.actors.inline:
        raise ConfigError(
            f"srl plan does not know runs of which some actors answer themselves (actors.inline {experiment.actors.inline}): "
            "plan it with --actors.inline 0, and with --inference inline"
        )
    measured = measured_of(folder) if folder is not None else {}
    cluster = read_cluster(options["cluster"]) if "cluster" in options else this_host()
    one = plan_of(one_of_each(experiment))
    if "cluster" in options:  # what does not fit need not be measured
        on_cluster(experiment, cluster, one)
    costs = _costs(experiment, options)
    prediction = predict(on_cluster(experiment, cluster, one), costs)
    result: dict[str, Any] = {"name": experiment.name, "predicted": msgspec.to_builtins(prediction)}
    show(experiment.name, prediction, cluster)
    if experiment.launcher == "inline":
        say(
            "note: launcher inline has its workers work in turn; this is for launcher local, where they work at once"
        )
    if folder is not None:
        result |= {"measured": measured, **compare(prediction, measured)}
        _show_beside(prediction, result)
    if "recommend" in options:
        found = recommend(experiment, cluster, one, costs, say)
        typed = experiment.name if folder is not None else name
        commands = [command_of(typed, rest, c.options) for c in found]
        result["recommended"] = [
            {**msgspec.to_builtins(c), "command": command}
            for c, command in zip(found, commands, strict=True)
        ]
        _show_recommended(found, commands)
        if folder is not None:
            say("(and with the options that the run had)")
    if "json" in options:
        write_json(options["json"], result)
    return 0


def measured_of(folder: Path) -> dict[str, Any]:
    """Env steps a second of a finished run once it was steady, and what it says of itself."""
    summary = RunFolder.open(folder).read("summary.json")
    if summary.get("status") == "running":
        raise ConfigError(
            f"{folder} is not finished: it is running, or was left by a controller that died "
            "(srl resume goes on with it)"
        )
    file = folder / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.is_file() else []
    rows = [json.loads(line) for line in lines]
    if len(rows) < 6:
        raise ConfigError(f"{folder} learned {len(rows)} batches: too few to know how fast it was")
    seconds = [row["time"]["seconds"] for row in rows]
    begin = seconds[0] + (seconds[-1] - seconds[0]) / 3
    late = [row for row in rows if row["time"]["seconds"] >= begin]
    steps = late[-1]["consumed_env_steps"] - late[0]["consumed_env_steps"]
    return {
        "env_steps_per_second": steps / (late[-1]["time"]["seconds"] - late[0]["time"]["seconds"]),
        "bottleneck": summary["bottleneck"],
        "staleness": summary["staleness_mean"],
    }


def compare(prediction: Prediction, measured: Mapping[str, Any]) -> dict[str, Any]:
    """How far a prediction is from the truth."""
    ratio = prediction.env_steps_per_second / measured["env_steps_per_second"]
    same = kind_of(prediction.bottleneck) == kind_of(measured["bottleneck"])
    return {"error": round(ratio - 1, 3), "same_bottleneck": same}


def kind_of(bottleneck: str) -> str:
    """What holds a run back, without the numbers."""
    return bottleneck.partition(":")[0]


def _folder_of(name: str) -> Path | None:
    """The run folder that is meant, or None where it is an experiment's name; raises ConfigError."""
    path = Path(name)
    if (path / "config.json").is_file():
        return path
    first, slash, _ = name.partition("/")
    if not slash or ":" in name or first in catalog.ENVS or name in WORKLOADS:
        return None
    if not path.exists():
        raise ConfigError(f"there is no folder {name}, and no env family {first!r}")
    raise ConfigError(f"{name} is not a run folder: it has no config.json")


def _experiment_of(folder: Path, words: Sequence[str]) -> Experiment[Any]:
    if words:
        raise ConfigError(f"{folder} is a run, and what it was is fixed: {' '.join(words)}")
    return read_experiment(RunFolder.open(folder))


def _costs(experiment: Experiment[Any], options: Mapping[str, Any]) -> Costs:
    """Costs that were kept, or are measured now, and kept."""
    path = options.get("costs") or kept_at(experiment)
    if path.exists() and "again" not in options:
        say(f"costs as measured before: {path} (--again measures them anew)")
        try:
            if apart := differing(path, experiment):
                say(f"note: these are costs of another experiment; here it has {', '.join(apart)}")
            return read_costs(path)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ConfigError(f"{path} was not written by srl plan: {error}") from error
    _check_here(experiment)
    costs, measured = calibrate(experiment, options["seconds"], say)
    write_costs(path, costs, measured, experiment)
    say(f"costs kept in {path}")
    return costs


def _check_here(experiment: Experiment[Any]) -> None:
    """Raise ConfigError where this host has no device to measure on."""
    try:
        check_devices(one_of_each(experiment))
    except ConfigError as error:
        raise ConfigError(
            f"{error}: costs are measured on a host that has the device; --costs F.json keeps "
            "them there, and brings them here"
        ) from error


def show(name: str, prediction: Prediction, cluster: Cluster) -> None:
    """Print what is predicted."""
    rows = [[what, f"{rate:,.0f}"] for what, rate in prediction.limits.items()]
    print_table(f"{name}: what each would allow, beside the others", ["", "env steps/s"], rows)
    rate = prediction.env_steps_per_second
    say(f"predicted: {rate:,.0f} env steps/s on {cluster.cores:g} cores, {cluster.gpus:g} GPUs")
    say(f"bottleneck: {prediction.bottleneck}")
    say(f"staleness: {prediction.staleness:.1f} versions on average")
    if prediction.mean_rows:
        answer = prediction.answer_seconds * 1000
        say(f"inference: {prediction.mean_rows:.0f} rows at a time, an answer in {answer:.2f} ms")
    if busiest := max(prediction.network.values(), default=0.0):
        say(f"network: {busiest / 1e6:,.1f} MB/s at the busiest host")
    say(f"cores: {max(prediction.load):.0%} busy on the busiest machine")


def _show_beside(prediction: Prediction, result: Mapping[str, Any]) -> None:
    measured = result["measured"]
    rows = [
        [
            "env steps/s",
            f"{prediction.env_steps_per_second:,.0f}",
            f"{measured['env_steps_per_second']:,.0f}",
        ],
        ["bottleneck", kind_of(prediction.bottleneck), kind_of(measured["bottleneck"])],
        ["staleness", f"{prediction.staleness:.1f}", f"{measured['staleness']:.1f}"],
    ]
    print_table("predicted and measured", ["", "predicted", "measured"], rows)
    say(f"error: {result['error']:+.1%}")


def command_of(name: str, words: Sequence[str], options: Mapping[str, str]) -> str:
    """What to type for a setting: one line, with the words of the experiment that it does not replace."""
    if workload := WORKLOADS.get(name):
        name, words = workload.experiment, [*workload.arguments(), *words]
    kept, keeps = list[str](), True
    for word in words:
        if word.startswith("--"):
            keeps = word[2:].partition("=")[0].replace("_", "-") not in options
        if keeps:
            kept.append(word)
    new = [word for option, value in options.items() for word in (f"--{option}", value)]
    return shlex.join(["srl", "train", name, *new, *kept])


def _show_recommended(found: Sequence[Candidate], commands: Sequence[str]) -> None:
    if not found:
        say("no setting fits this cluster")
        return
    rows = [
        [
            f"{number} (as it is)" if c.is_present else number,
            f"{c.rate:,.0f}",
            kind_of(c.prediction.bottleneck),
            c.cores,
        ]
        for number, c in enumerate(found, 1)
    ]
    columns = ["setting", "env steps/s", "bottleneck", "cores"]
    print_table("recommended, and others", columns, rows)
    best = found[0]
    if best.is_present:
        say("as it is, it is as fast as any other setting that was tried, with fewest cores")
    elif any(c.is_present and is_as_fast(c, best) for c in found):
        say("as it is, it is as fast; the first setting takes fewer cores")
    for number, command in enumerate(commands, 1):
        say(f"# {number}:\n{command}")
    changes = {"algorithm.batch-size": "batch size", "actors.envs": "number of envs an actor"}
    if told := [words for option, words in changes.items() if option in best.options]:
        say(f"the first has another {' and another '.join(told)}: that changes what is learned")
