"""`srl bench cost NAME`: what a step costs, part by part, and how fast this host could be at best.

The ideal is cores / (env + inference + staging + epochs x update), in env steps a second: all cores
busy with nothing else, all of the time. Where networks run on a GPU it is the slowest resource: the
cores with what is left to them, or a GPU with inference and updates.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from srl.core.errors import ConfigError, WorkerError
from srl.core.experiment import Experiment
from srl.core.replay import Replays
from srl.launch.graph.config import encode_experiment
from srl.launch.host.process import thread_environment
from srl.tools.bench.alone import Order
from srl.tools.bench.command import find, read_words
from srl.tools.bench.plot import write_bars
from srl.tools.bench.report import host, num_cores, print_table, say, write_json

USAGE = "srl bench cost NAME [--seconds 60] [--json F.json] [--a.b value ...]"
IDEAL_PARTS = ("env", "inference", "stage", "update")
"""What an env step needs, whatever the system."""


def main(words: Sequence[str]) -> int:
    """Entry point of the command."""
    name, own, rest = read_words(words, USAGE, {"seconds": float, "json": str})
    experiment = find(name, rest)
    result = measure_cost(experiment, name, own.get("seconds", 60.0), rest)
    show(result)
    if "json" in own:
        write_json(own["json"], result)
        plot(result, Path(own["json"]).with_suffix(".svg"))
    return 0


def refuse_replay(experiment: Experiment[Any]) -> None:
    """Raise ConfigError where costs alone do not tell what a run costs."""
    if isinstance(experiment.algorithm, Replays):
        raise ConfigError(
            f"{experiment.name} learns from replay, and costs alone are known only of algorithms that learn "
            "each block once: `srl train` tells where time went at the end of a run, and `srl tune` what is fastest"
        )


def measure_cost(
    experiment: Experiment[Any], name: str, seconds: float, arguments: Sequence[str] = ()
) -> dict[str, Any]:
    """Costs and the ideal; takes about `seconds`, in a process of its own."""
    refuse_replay(experiment)
    order = msgspec.json.encode(Order(encode_experiment(experiment), seconds))
    done = subprocess.run(
        [sys.executable, "-m", "srl.tools.bench.alone"],
        input=order,
        capture_output=True,
        env=thread_environment(1),
        check=False,
    )
    if done.returncode:
        raise WorkerError(f"the costs of {name} were not measured:\n{done.stderr.decode()[-4000:]}")
    costs = json.loads(done.stdout.splitlines()[-1])
    return {
        "command": "cost",
        "name": name,
        "options": list(arguments),
        "host": host(),
        **costs,
        "ideal": ideal(costs, experiment, num_cores()),
    }


def ideal(costs: Mapping[str, Any], experiment: Experiment[Any], cores: int) -> dict[str, Any]:
    """Env steps a second at best, and what each resource could do.

    Args:
        costs: as `alone.measure` returns them.
        experiment: says which part runs where.
        cores: of this host.
    """
    parts, needs = costs["parts"], {"cpu": 0.0}
    spent: dict[str, float] = {}
    for part in IDEAL_PARTS:
        spent[part] = parts[part]["core_us"]
        place = "cpu"
        if part == "inference" and experiment.inference_substrate != "inline":
            place = experiment.policies.device
            spent[part] = _served(costs, on_gpu=place != "cpu")
        elif part == "update" and experiment.trainers.device != "cpu":
            place, spent[part] = experiment.trainers.device, parts[part]["wall_us"]
        place = "cuda:0" if place == "cuda" else place
        needs[place] = needs.get(place, 0.0) + spent[part]
    capacity = {"cpu": cores}
    if experiment.trainers.device == "cuda":
        capacity["cuda:0"] = experiment.trainers.count
    resources = {
        place: capacity.get(place, 1) * 1e6 / need for place, need in needs.items() if need > 0
    }
    slowest = min(resources, key=lambda place: resources[place])
    return {
        "env_steps_per_second": resources[slowest],
        "limit": slowest,
        "resources": resources,
        "cores": cores,
        "core_us_an_env_step": spent,
    }


def _served(costs: Mapping[str, Any], *, on_gpu: bool) -> float:
    """Inference an env step where policy workers answer: one request of every actor at a time."""
    total = 0.0
    for policy in costs["policies"].values():
        own = next(e for e in policy["inference"] if e["batch"] == policy["served"])
        total += own["wall_us" if on_gpu else "core_us"] * policy["lanes_an_env"]
    return total


def show(result: Mapping[str, Any]) -> None:
    """Print the tables."""
    parts, best = result["parts"], result["ideal"]
    rows = [
        [
            label(name),
            f"{part['core_us_a_row']:.2f}",
            f"{part['core_us']:.2f}",
            f"{part['lowest_us']:.2f} - {part['highest_us']:.2f}",
            f"{part['cpu_us']:.2f}",
            f"{part['wall_us']:.2f}",
            part["samples"],
        ]
        for name, part in parts.items()
    ]
    columns = ["part", "core-µs/row", "core-µs/env step", "lowest - highest", "CPU", "wall", "n"]
    print_table(f"{result['name']}: what an env step costs", columns, rows)
    for policy, tables in result["policies"].items():
        for title, key in (("inference", "batch"), ("update", "minibatch")):
            found = tables[title]
            if found:
                of = "core-µs/row" if title == "inference" else "core-µs/row and pass"
                shown = [
                    [e[key], f"{e['core_us']:.2f}", f"{e['cpu_us']:.2f}", f"{e['wall_us']:.2f}"]
                    for e in found
                ]
                print_table(f"{title} of {policy}, by {key}", [key, of, "CPU", "wall"], shown)
    sums = " + ".join(f"{name} {us:.2f}" for name, us in best["core_us_an_env_step"].items())
    say(
        f"ideal: {best['env_steps_per_second']:,.0f} env steps/s on {best['cores']} cores "
        f"(limit: {best['limit']}; {sums} µs an env step)"
    )


def label(part: str) -> str:
    """A part in words."""
    return {
        "env": "env step and observe",
        "inference": "inference",
        "send": "send",
        "stage": "staging",
        "update": "update, all epochs",
        "publish": "publish",
        "loop": "rest of the actor's loop",
    }.get(part, part)


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Write the costs as bars."""
    bars: dict[str, dict[str, float]] = {
        "an env step": {label(n): us for n, us in result["ideal"]["core_us_an_env_step"].items()}
    }
    for policy, tables in result["policies"].items():
        of = f" ({policy})" if len(result["policies"]) > 1 else ""
        for e in tables["inference"]:
            bars[f"inference, batch {e['batch']}{of}"] = {"inference": e["core_us"]}
        for e in tables["update"]:
            bars[f"update, minibatch {e['minibatch']}{of}"] = {"a pass": e["core_us"]}
    write_bars(path, f"{result['name']}: cost alone", bars, unit="core-µs a row")
