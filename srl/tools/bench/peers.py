"""`srl bench peers WORKLOAD`: ours and other systems on the same cores, in turn.

Every setting of every side is screened with one window. Then ours and the best two peers, each at
its best setting, are measured in rounds, one window of each side after the other, so that a drift
of the machine meets all of them; what counts are the ratios within a round. Every window is a fresh
process. All of them are kept in one file, and a second call measures what is not there yet.
"""

import contextlib
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from srl.core.errors import ConfigError
from srl.tools.bench.command import read_words
from srl.tools.bench.peer_environments import Environments, NotInstalledError, default_cache
from srl.tools.bench.peer_results import Results, Window, median, ratio_of
from srl.tools.bench.peer_settings import (
    OURS,
    OWN,
    PeerSettings,
    Setting,
    Variant,
    default_folder,
    digest,
    find_workload,
    read_settings,
)
from srl.tools.bench.peer_windows import WindowError, busy_cores, run_window
from srl.tools.bench.plot import write_bars
from srl.tools.bench.report import host, print_table, say

FINALISTS = 2
"""Peers that rounds are played with."""
USAGE = (
    "srl bench peers WORKLOAD [--peers A,B] [--variants own,fp32] [--screen-only] [--rounds 5] "
    "[--window 30] [--screen-window 20] [--again] [--cache DIR] [--out DIR] [--scripts DIR]"
)


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How long and how often."""

    screen_seconds: float = 20.0
    """Length of a screening window."""
    window_seconds: float = 30.0
    """Length of a window of a round."""
    rounds: int = 5
    """Rounds."""
    limit_seconds: float = 150.0
    """What a window may take beyond its length: start, warm-up, one more batch."""


def main(words: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    own = {
        "peers": _names,
        "variants": _names,
        "screen-only": None,
        "rounds": int,
        "window": float,
        "screen-window": float,
        "again": None,
        "cache": Path,
        "out": Path,
        "scripts": Path,
    }
    name, options, others = read_words(words, USAGE, own)
    if others:
        raise ConfigError(f"unknown option {others[0]}: {USAGE}")
    folder = options.get("scripts", default_folder())
    settings = read_settings(folder)
    out = options.get("out", folder / "results")
    rounds = 0 if "screen-only" in options else options.get("rounds", Protocol.rounds)
    protocol = Protocol(
        screen_seconds=options.get("screen-window", Protocol.screen_seconds),
        window_seconds=options.get("window", Protocol.window_seconds),
        rounds=rounds,
    )
    if protocol.rounds < 0 or min(protocol.screen_seconds, protocol.window_seconds) <= 0:
        raise ConfigError(f"--rounds, --window and --screen-window must be above 0: {USAGE}")
    cache = options.get("cache", default_cache())
    comparison = Comparison(
        name,
        settings,
        folder=folder,
        environments=Environments(settings, folder, cache, say),
        results=Results(out / f"{name}.json", name, again="again" in options),
        protocol=protocol,
        peers=options.get("peers"),
        variants=options.get("variants"),
    )
    with _ended_by_signals():
        summary = comparison.run()
    for variant, found in summary.items():
        show(name, variant, found)
        plot(out / f"{name}-{variant}.svg", name, found)
    say(f"kept in {out / f'{name}.json'}")
    return 0


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Leave by an exception, so that a window's processes are ended, also where SIGTERM asks to."""

    def leave(number: int, _: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


class Comparison:
    """One workload: what is to be measured, and what is known already."""

    def __init__(
        self,
        workload: str,
        settings: PeerSettings,
        *,
        folder: Path,
        environments: Environments,
        results: Results,
        protocol: Protocol,
        peers: Sequence[str] | None = None,
        variants: Sequence[str] | None = None,
    ) -> None:
        """Compare ours with `peers` (None: all) under `variants` (None: all)."""
        self._workload = workload
        self._settings = settings
        self._how = find_workload(settings, workload)
        self._folder = folder
        self._environments = environments
        self._results = results
        self._protocol = protocol
        known = [side for side in self._how.settings if side != OURS]
        self._peers = known if peers is None else _known("--peers", peers, known)
        every = list(self._how.variants)
        asked = every if variants is None else _known("--variants", variants, every)
        # The finalists of every variant are chosen by how fast the peers are as they come.
        self._variants = [OWN, *(name for name in asked if name != OWN)]
        self._rounds_of = set(asked)
        self._facts = host()
        cores = self._facts["cores"]
        self._host = f"{self._facts['cpu']}, {cores} core{'s' * (cores > 1)}"
        self._code = code_digest()

    def run(self) -> dict[str, Any]:
        """Measure what is missing; returns what is known then, by variant."""
        summary: dict[str, Any] = {}
        before = dict(self._results.summary)
        finalists: list[str] = []
        chosen: dict[str, Setting] = {}
        for name in self._variants:
            variant = self._how.variants[name]
            if name == OWN:
                sides = [OURS, *self._peers]
            else:
                able = self._peers if variant.peers is None else variant.peers
                sides = [OURS, *[side for side in finalists if side in able][:FINALISTS]]
            screened = {side: self._screen(side, name, variant, chosen.get(side)) for side in sides}
            best = {side: found[0] for side, found in screened.items() if found}
            if name == OWN:
                rates = {side: rate for side, (_, rate) in best.items() if rate is not None}
                finalists = sorted(self._peers, key=lambda side: -rates.get(side, 0.0))
                finalists = [side for side in finalists if side in rates]
                chosen = {side: setting for side, (setting, _) in best.items()}
            playing = [side for side in [OURS, *finalists] if side in best][: FINALISTS + 1]
            if name in self._rounds_of and OURS in playing:
                self._play(name, {side: best[side][0] for side in playing})
            summary[name] = self._summary(name, variant, screened, playing, best)
            self._results.write({**before, **summary})
        return summary

    def _screen(
        self, side: str, name: str, variant: Variant, own_best: Setting | None
    ) -> list[tuple[Setting, float | None]]:
        """Settings of a side under a variant with their rates, the best first; [] if none ran."""
        settings = variant.settings.get(side)
        if settings is None:
            settings = self._how.settings[side] if own_best is None else (own_best,)
        more, env = variant.args.get(side, ""), variant.env
        tried = [setting.with_variant(more, env) for setting in settings]
        if len(tried) == 1 and name != OWN:
            return [(tried[0], None)]  # there is nothing to choose
        found = []
        for setting in tried:
            wanted = self._wanted("screen", name, side, setting)
            rate = self._results.rate(**wanted)
            if rate is None:
                rate = self._measure(side, setting, wanted)
            if rate is not None:
                found.append((setting, rate))
        return sorted(found, key=lambda pair: -(pair[1] or 0.0))

    def _play(self, name: str, playing: dict[str, Setting]) -> None:
        """Rounds of all who play, in turn."""
        for number in range(self._protocol.rounds):
            for side, setting in playing.items():
                wanted = self._wanted("round", name, side, setting) | {"round": number}
                if self._results.rate(**wanted) is None:
                    self._measure(side, setting, wanted)

    def _wanted(self, stage: str, name: str, side: str, setting: Setting) -> dict[str, Any]:
        """The facts by which a window is known: another host, code or setting is another window."""
        how = self._settings.sides[side]
        script = (self._folder / how.script).read_bytes()
        made_by = self._environments.digest(how.environment)
        parts = (script, setting.args, setting.env, made_by)
        facts = {"stage": stage, "variant": name, "side": side, "host": self._host}
        if stage == "round":  # all of a round are of one time, so of one state of our code
            facts |= {"code": self._code, "seconds": self._protocol.window_seconds}
        else:
            facts |= {"seconds": self._protocol.screen_seconds}
        return {**facts, "digest": digest(*parts, *([self._code] if side == OURS else []))}

    def _measure(self, side: str, setting: Setting, wanted: dict[str, Any]) -> float | None:
        """Measure and keep one window; its rate, None where it failed."""
        how, seconds = self._settings.sides[side], wanted["seconds"]
        turn = f"round {wanted['round'] + 1}" if "round" in wanted else "screen"
        about = f"{self._workload} {wanted['variant']} {turn}: {side}, {setting.label}"
        rate, failed, found, busy = None, None, {}, None
        try:
            python = self._environments.python(how.environment)
            command = [str(python), str(self._folder / how.script), "--secs", f"{seconds:g}"]
            env = dict(setting.env)
            if side == OURS:
                command += ["--workload", self._workload]
                env["PYTHONPATH"] = str(Path(__file__).parents[3])
            busy = busy_cores()
            limit = seconds + self._protocol.limit_seconds
            found = run_window([*command, *setting.words], env, limit=limit)
            rate = float(found["steps_s"])
            say(f"{about}: {rate:,.0f} steps/s")
        except NotInstalledError as error:
            failed = f"not installed: {error}"
        except WindowError as error:
            failed = str(error)
        if failed is not None:
            say(f"{about}: {failed}")
        window = Window(
            **{**wanted, "code": self._code},
            label=setting.label,
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            args=setting.args,
            env=setting.env,
            note=setting.note,
            rate=rate,
            failed=failed,
            busy_before=busy,
            commit=self._facts["commit"],
            found=found,
        )
        self._results.add(window, self._facts)
        return rate

    def _summary(
        self,
        name: str,
        variant: Variant,
        screened: dict[str, list[tuple[Setting, float | None]]],
        playing: list[str],
        best: dict[str, tuple[Setting, float | None]],
    ) -> dict[str, Any]:
        rates: dict[str, list[float | None]] = {}
        played = [w.round for w in self._results.windows if w.round is not None]
        numbers = range(max([self._protocol.rounds, *(number + 1 for number in played)]))
        for side in playing:
            wanted = self._wanted("round", name, side, best[side][0])
            rates[side] = [self._results.rate(**wanted, round=number) for number in numbers]
        sides = {}
        for side, found in screened.items():
            row: dict[str, Any] = {"name": self._settings.sides[side].name}
            if found:
                setting, rate = found[0]
                row |= {"setting": setting.label, "args": setting.args, "env": setting.env}
                row |= {"note": setting.note, "screen": rate}
                row["screened"] = {other.label: rate for other, rate in found}
            else:
                row["failed"] = self._why(name, side)
            if side in rates:
                row |= {"rounds": rates[side], "median": median(rates[side])}
                if side != OURS:
                    row["ours_over_it"] = ratio_of(rates[OURS], rates[side])
            sides[side] = row
        return {"about": variant.about, "host": self._host, "code": self._code, "sides": sides}

    def _why(self, name: str, side: str) -> str | None:
        return self._results.failure(variant=name, side=side, stage="screen")


def _known(option: str, asked: Sequence[str], known: Sequence[str]) -> list[str]:
    strangers = [name for name in asked if name not in known]
    if strangers:
        raise ConfigError(
            f"{option}: {strangers[0]!r} is not of this workload: it has {', '.join(known)}"
        )
    return [name for name in known if name in asked]


def code_digest() -> str:
    """The code that trains, whatever commit it is in; the tools that measure it are not of it."""
    package = Path(__file__).parents[2]
    files = sorted(package.rglob("*.py"))
    mine = [f for f in files if f.relative_to(package).parts[0] != "tools"]
    parts = [(str(f.relative_to(package)), f.read_text(errors="replace")) for f in mine]
    return digest(parts)


def show(workload: str, variant: str, found: dict[str, Any]) -> None:
    """Print a variant as a table."""
    rows = []
    for row in _by_rate(found["sides"]):
        ratio = row.get("ours_over_it") or {}
        interval = ratio.get("interval")
        rows.append(
            (
                row["name"],
                row.get("setting") or (row.get("failed") or "")[:60],
                _shown(row.get("screen")),
                _shown(row.get("median")),
                f"{ratio['median']:.2f}" if ratio.get("median") else "",
                f"{interval[0]:.2f} - {interval[1]:.2f}" if interval else "",
            )
        )
    columns = ("system", "setting", "screen", "rounds, median", "ours/it", "95 %")
    print_table(f"{workload}, {variant}: {found['about']} (agent steps/s)", columns, rows)


def _by_rate(sides: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    def rate(row: dict[str, Any]) -> float:
        return row.get("median") or row.get("screen") or 0.0

    return sorted(sides.values(), key=lambda row: -rate(row))


def _shown(rate: float | None) -> str:
    return "" if rate is None else f"{rate:,.0f}"


def plot(path: Path, workload: str, found: dict[str, Any]) -> None:
    """Draw a variant as bars: medians of the rounds, or the screening where there are none."""
    bars, spans = {}, {}
    for row in _by_rate(found["sides"]):
        rate = row.get("median") or row.get("screen")
        if rate is None:
            continue
        bars[row["name"]] = {"steps/s": rate}
        known = [r for r in row.get("rounds", []) if r is not None]
        if known:
            spans[row["name"]] = (min(known), max(known))
    path.parent.mkdir(parents=True, exist_ok=True)
    title = f"{workload}: {found['about']}"
    write_bars(path, title, bars, unit="agent steps/s; lines: all rounds", intervals=spans)
