"""`srl tune NAME`: finds how many actors, groups and threads suit this host, and where inference runs.

Short real runs, one dimension after the other, each from the best found so far; then the best and
the shipped defaults again, in turn. The defaults are kept unless they are beaten there. What is
learned stays the same: batch size, minibatch, epochs, rollout and staleness are never changed.
"""

import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from srl.core.errors import ConfigError, SrlError
from srl.core.experiment import Experiment
from srl.launch.graph.config import encode_experiment
from srl.launch.graph.options import to_arguments
from srl.launch.graph.plan import make_plan
from srl.launch.host.limits import check_host
from srl.tools.bench.command import find, read_words
from srl.tools.bench.peer_results import ratio_of
from srl.tools.bench.report import cpu_model, gpus, host, num_cores, print_table, say, write_json
from srl.tools.bench.window import run_window

USAGE = "srl tune NAME [--seconds 120] [--out tuned.json] [--a.b value ...]"
SECONDS = 120.0
Options = dict[str, str]
"""Option to value, by their names on the command line."""

_SEARCH_SHARES = (0.5, 0.6)
"""Of the time, for the search before the final comparison, at least and at most."""
_LEAST_GAIN = 1.02
"""A setting must be so much faster: less is noise, and the defaults are known."""
_SURE_GAIN = 1.05
"""So much faster it must be in each round, where there are only the least."""
_FINAL_ROUNDS = (2, 3, 5)
"""Rounds of the final comparison: at least; where there is time for a longer search; at most."""
_NOT_TUNED = ("seed", "out", "stop", "checkpoint", "evaluation", "metrics", "init_from", "name")
"""What a tuned setting does not depend on."""


def main(words: Sequence[str]) -> int:
    """Entry point of the command."""
    name, own, rest = read_words(words, USAGE, {"seconds": float, "out": str})
    result = tune(name, rest, own.get("seconds", SECONDS))
    if "out" in own:
        write_json(own["out"], result)
        say(f"written to {own['out']}; use it with: srl train ... --auto={own['out']}")
    return 0


def tune(name: str, arguments: Sequence[str], seconds: float) -> dict[str, Any]:
    """Tune an experiment with these options, say what was found, and keep it for `--auto`."""
    base = find(name, arguments)
    if base.launcher != "local":
        raise ConfigError("srl tune measures real processes: --launcher local")
    window = min(5.0, max(0.2, seconds / 40))

    def run(options: Options) -> float | None:
        try:
            experiment = find(name, [*to_arguments(options), *arguments])
            rate = run_window(experiment, warm_up=window / 4, window=window).env_steps_per_second
        except SrlError as error:
            if not options:
                raise
            say(f"  {in_words(options)}: failed: {error}")
            return None
        say(f"  {in_words(options)}: {rate:,.0f} env steps/s")
        return rate

    def is_possible(options: Options) -> bool:
        return fits(name, arguments, options)

    say(f"tuning {name} for about {seconds:.0f} s on {num_cores()} cores")
    dimensions = [
        Dimension(dimension.name, tuple(o for o in dimension.options if not typed(o, arguments)))
        for dimension in dimensions_of(base, num_cores(), len(gpus()))
    ]
    found = Search(run, is_possible, dimensions, seconds).search()
    result = {
        "command": "tune",
        "name": name,
        "arguments": list(arguments),
        "host": host(),
        **found,
    }
    show(result)
    write_json(place_of(base), result)
    return result


def auto(name: str, arguments: Sequence[str], file: str | None = None) -> list[str]:
    """The options of `srl train NAME --auto`, tuned ones first; tunes where that was never done.

    Args:
        name: the experiment.
        arguments: the options that were typed: they win.
        file: what `srl tune --out` wrote; None: what is kept for this experiment and host.
    """
    base = find(name, arguments)
    if base.launcher != "local":
        raise ConfigError("--auto is for --launcher local: there is nothing to tune in one process")
    path = Path(file) if file is not None else place_of(base)
    if file is None and not path.exists():
        tune(name, arguments, SECONDS)
    options = {k: v for k, v in read_tuned(path).items() if not typed({k: v}, arguments)}
    say(f"--auto: {in_words(options)} ({path})")
    return [*to_arguments(options), *arguments]


def read_tuned(path: Path) -> Options:
    """The options of a file that `srl tune` wrote."""
    try:
        return msgspec.convert(json.loads(path.read_text())["options"], Options)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"{path} was not written by srl tune: {error}") from error


def cache_folder() -> Path:
    """Where results are kept from one command to the next."""
    return Path(os.environ.get("SRL_CACHE") or Path.home() / ".cache" / "srl")


def place_of(base: Experiment[Any]) -> Path:
    """Where the setting of this experiment on this host is kept: below $SRL_CACHE, or ~/.cache/srl."""
    facts = {k: v for k, v in encode_experiment(base).items() if k not in _NOT_TUNED}
    facts["host"] = [cpu_model(), num_cores(), gpus()]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", base.name)[-60:]
    return cache_folder() / "tuned" / f"{readable}-{digest}.json"


def typed(options: Mapping[str, str], arguments: Sequence[str]) -> bool:
    """Whether one of these options stands among what was typed."""
    words = {word.partition("=")[0].removeprefix("--").replace("_", "-") for word in arguments}
    return not words.isdisjoint(options)


def fits(name: str, arguments: Sequence[str], options: Options) -> bool:
    """Whether this host can run the experiment like this, with no lane that would always wait."""
    try:
        experiment = find(name, [*to_arguments(options), *arguments])
        plan = make_plan(experiment)
        check_host(plan, experiment, Path(tempfile.gettempdir()))
        return not plan.warnings()
    except SrlError:
        return False


@dataclass(frozen=True)
class Dimension:
    """Settings that exclude each other."""

    name: str
    options: tuple[Options, ...]


def dimensions_of(base: Experiment[Any], cores: int, num_gpus: int) -> list[Dimension]:
    """What to try, the most decisive first; combinations that do not fit are sorted out later."""
    counts = sorted({1, 2, max(1, cores // 2), max(1, cores - 1), cores}, reverse=True)
    total = base.actors.count * base.actors.envs
    shapes = [(count, total // count) for count in counts if total % count == 0]
    shapes += [(count, base.actors.envs) for count in counts]
    shapes += [
        (base.actors.count, base.actors.envs // 2),
        (base.actors.count, base.actors.envs * 2),
    ]
    actors = tuple(
        {"actors.count": str(count), "actors.envs": str(envs)}
        for count, envs in dict.fromkeys(shapes)
        if envs >= 1 and (count, envs) != (base.actors.count, base.actors.envs)
    )
    groups = tuple({"actors.groups": str(n)} for n in (1, 2, 4) if n != base.actors.groups)
    threads = tuple(
        {"trainers.threads": str(n)}
        for n in sorted({1, 2, max(1, cores // 2), cores}, reverse=True)
        if n <= cores and n != (base.trainers.threads or base.threads)
    )
    other = "shm" if base.inference_substrate == "inline" else "inline"
    found = [
        Dimension("threads", threads if base.trainers.device == "cpu" else ()),
        Dimension("actors", actors),
        Dimension("groups", groups),
        Dimension("inference", ({"inference": other},) if not num_gpus else ()),
    ]
    if num_gpus:
        trainer = {"trainers.device": "cuda"}
        both = {**trainer, "inference": "shm", "policies.device": "cuda"}
        found.insert(0, Dimension("devices", (trainer, both)))
    return found


@dataclass
class Search:
    """A search within a time; `run` gives a rate, or None where a setting fails."""

    run: Callable[[Options], float | None]
    is_possible: Callable[[Options], bool]
    dimensions: Sequence[Dimension]
    seconds: float
    clock: Callable[[], float] = time.monotonic
    runs: list[dict[str, Any]] = field(default_factory=list)
    """Every run: stage, options, rate."""

    def search(self) -> dict[str, Any]:
        """The options to use (none: the defaults), and how they were found."""
        started = self.clock()
        default = self._run("defaults", {})
        assert default is not None
        one_run = self.clock() - started
        best, best_rate = Options(), default
        least, most = (self.seconds * share for share in _SEARCH_SHARES)
        final = 2 * _FINAL_ROUNDS[1] * one_run
        until = started + max(least, min(most, self.seconds - final))
        for number, dimension in enumerate(self.dimensions):
            now = self.clock()
            share = now + (until - now) / (len(self.dimensions) - number)
            for tried, options in enumerate(self._candidates(dimension, best)):
                if self.clock() + one_run > (share if tried else until):
                    break
                rate = self._run(dimension.name, options)
                if rate is not None and rate > best_rate * _LEAST_GAIN:
                    best, best_rate = options, rate
        comparison = self._compare(best, started + self.seconds, one_run) if best else None
        is_better = comparison is not None and comparison["is_better"]
        return {
            "options": best if is_better else {},
            "best_found": best,
            "comparison": comparison,
            "seconds": self.clock() - started,
            "runs": self.runs,
        }

    def _candidates(self, dimension: Dimension, best: Options) -> Iterator[Options]:
        """The best of the dimensions before with each setting of this one."""
        for options in dimension.options:
            together = {**best, **options}
            if self.is_possible(together):
                yield together

    def _compare(self, best: Options, until: float, one_run: float) -> dict[str, Any]:
        """The defaults and the best again, in turn; it is better if it is in every round."""
        ours: list[float | None] = []
        defaults: list[float | None] = []
        least, _, most = _FINAL_ROUNDS
        while len(ours) < least or (len(ours) < most and self.clock() + 2 * one_run < until):
            turns = [(defaults, Options()), (ours, best)]
            for rates, options in turns if len(ours) % 2 == 0 else turns[::-1]:
                rates.append(self._run("final", options))
        ratio = ratio_of(ours, defaults)
        is_better = (
            ratio["median"] is not None
            and ratio["median"] >= _LEAST_GAIN
            and len(ratio["ratios"]) == len(ours)
            and min(ratio["ratios"]) > (1 if len(ours) > least else _SURE_GAIN)
        )
        return {"defaults": defaults, "best": ours, **ratio, "is_better": is_better}

    def _run(self, stage: str, options: Options) -> float | None:
        rate = self.run(options)
        self.runs.append({"stage": stage, "options": options, "rate": rate})
        return rate


def in_words(options: Mapping[str, str]) -> str:
    """A setting, as it would be typed."""
    return " ".join(f"--{name} {value}" for name, value in options.items()) or "the defaults"


def show(result: Mapping[str, Any]) -> None:
    """Print what was tried, and what is kept."""
    rows = [
        [
            run["stage"],
            in_words(run["options"]),
            "-" if run["rate"] is None else f"{run['rate']:,.0f}",
        ]
        for run in result["runs"]
    ]
    print_table(f"{result['name']}: settings tried", ["stage", "setting", "env steps/s"], rows)
    comparison = result["comparison"]
    if comparison is None:
        say("kept: the defaults; nothing that was tried is faster")
    elif comparison["is_better"]:
        say(f"kept: {in_words(result['options'])}: {comparison['median']:.2f} times the defaults")
    else:
        times = "not comparable" if comparison["median"] is None else f"{comparison['median']:.2f}"
        say(f"kept: the defaults; {in_words(result['best_found'])} is {times} times as fast")
