"""Windows measured so far, kept in one JSON file a workload, and what they say."""

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from srl.core.errors import ConfigError
from srl.tools.bench.report import write_json

_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179)
"""Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom."""


class Window(msgspec.Struct, frozen=True, omit_defaults=True):
    """One window of one side: its rate, or why there is none."""

    stage: str
    """`screen`, or `round`: one of several, interleaved with the other sides'."""
    variant: str
    """The variant it belongs to."""
    side: str
    """The side."""
    label: str
    """The setting, in words."""
    digest: str
    """What decided what ran: script, arguments, variables, environment, and our code for ours."""
    code: str
    """Our code at that time."""
    host: str
    """The machine, by what speed depends on."""
    time: str
    """When it ended."""
    seconds: float
    """Length asked for."""
    args: str = ""
    """Arguments of the side's script."""
    env: dict[str, str] = {}
    """Environment variables beside those that all share."""
    note: str | None = None
    """Where its work is not quite the workload's."""
    round: int | None = None
    """Which round, from 0."""
    rate: float | None = None
    """Agent steps/s."""
    failed: str | None = None
    """Why there is no rate."""
    busy_before: float | None = None
    """Cores that were at work just before it, which should have been none."""
    commit: str | None = None
    """The commit of our code."""
    found: dict[str, Any] = {}
    """All that the script said."""


class Results:
    """The file of a workload; every window is on disk as soon as it is measured."""

    def __init__(self, path: Path, workload: str, *, again: bool = False) -> None:
        """Go on with the file at `path`, or begin it; `again` begins it anew."""
        self._path = path
        self._workload = workload
        self._hosts: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        """What the windows said when it was last asked for."""
        self.windows: list[Window] = []
        if again or not path.exists():
            return
        try:
            kept = json.loads(path.read_text())
            self.windows = msgspec.convert(kept["windows"], list[Window])
            self._hosts, self.summary = dict(kept["hosts"]), dict(kept["summary"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path} cannot be gone on with ({error}): --again begins it anew"
            ) from error

    def add(self, window: Window, host: Mapping[str, Any]) -> None:
        """Keep a window."""
        self.windows.append(window)
        self._hosts[window.host] = dict(host)
        self.write(self.summary)

    def write(self, summary: Mapping[str, Any]) -> None:
        """Write the file with what its windows say."""
        self.summary = dict(summary)
        head = {"workload": self._workload, "hosts": self._hosts, "summary": self.summary}
        write_json(self._path, {**head, "windows": msgspec.to_builtins(self.windows)})

    def rate(self, **wanted: Any) -> float | None:
        """The rate of the newest window with these facts; None where there is none."""
        for window in reversed(self.windows):
            if window.rate is not None and all(getattr(window, k) == v for k, v in wanted.items()):
                return window.rate
        return None

    def failure(self, **wanted: Any) -> str | None:
        """Why the newest window with these facts has no rate; None where there is no such window."""
        for window in reversed(self.windows):
            if all(getattr(window, k) == v for k, v in wanted.items()):
                return window.failed
        return None


def ratio_of(ours: Sequence[float | None], theirs: Sequence[float | None]) -> dict[str, Any]:
    """Ours over theirs, round by round: all ratios, their median, and a 95 % interval.

    The interval is Student's, of the mean of the logarithms, so that ours over theirs and theirs
    over ours say the same. A round in which one side has no rate counts for nothing.
    """
    pairs = list(zip(ours, theirs, strict=True))
    ratios = [our / their for our, their in pairs if our is not None and their is not None]
    if not ratios:
        return {"ratios": [], "median": None, "interval": None}
    return {
        "ratios": [round(ratio, 4) for ratio in ratios],
        "median": round(statistics.median(ratios), 4),
        "interval": _interval(ratios),
    }


def _interval(ratios: Sequence[float]) -> tuple[float, float] | None:
    if len(ratios) < 2:
        return None
    logs = [math.log(ratio) for ratio in ratios]
    quantile = _T_95[len(logs) - 2] if len(logs) - 2 < len(_T_95) else 2.0
    half = quantile * statistics.stdev(logs) / math.sqrt(len(logs))
    mean = statistics.fmean(logs)
    return round(math.exp(mean - half), 4), round(math.exp(mean + half), 4)


def median(rates: Iterable[float | None]) -> float | None:
    """The median of the rates that there are."""
    known = [rate for rate in rates if rate is not None]
    return statistics.median(known) if known else None
