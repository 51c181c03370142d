"""The live terminal view; plain lines where the output is not a terminal."""

import time
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from srl.telemetry.bottleneck import shares
from srl.telemetry.progress import PolicyProgress, Progress

_LINE_SECONDS = 5.0
_REFRESH_SECONDS = 0.5


class View(Protocol):
    """Shows a run to a person."""

    def show(self, progress: Progress, seconds: float) -> None:
        """Called many times a second; shows what is new when it is time to."""
        ...

    def say(self, text: str) -> None:
        """Say one thing."""
        ...

    def close(self) -> None:
        """Give the terminal back."""
        ...


class Silent:
    """Shows nothing (the Python API's default in other people's programs)."""

    def show(self, progress: Progress, seconds: float) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class PlainLines:
    """One line every few seconds."""

    def __init__(self, console: Console, total_env_steps: int | None) -> None:
        self._console = console
        self._total = total_env_steps
        self._next = 0.0
        self._rate = Rate()

    def show(self, progress: Progress, seconds: float) -> None:
        """Print a line when one is due."""
        rate = self._rate.update(progress.total("env_steps"))
        if time.monotonic() < self._next or progress.version == 0:
            return
        self._next = time.monotonic() + _LINE_SECONDS
        self.say(f"[{seconds:6.1f} s] {headline(progress, rate, self._total)}")
        self.say(f"           bottleneck: {progress.bottleneck()}")

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing to give back."""


class LiveTable:
    """A table that is redrawn in place."""

    def __init__(self, console: Console, name: str, total_env_steps: int | None) -> None:
        self._console = console
        self._name = name
        self._total = total_env_steps
        self._next = 0.0
        self._rate = Rate()
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._live.start()

    def show(self, progress: Progress, seconds: float) -> None:
        """Redraw when it is time to."""
        rate = self._rate.update(progress.total("env_steps"))
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _REFRESH_SECONDS
        self._live.update(self._draw(progress, seconds, rate), refresh=True)

    def say(self, text: str) -> None:
        """Print a line above the table."""
        self._live.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Leave the last picture and give the terminal back."""
        self._live.stop()

    def _draw(self, progress: Progress, seconds: float, rate: float) -> Group:
        head = Text(f"{self._name}  {seconds:.0f} s  {headline(progress, rate, self._total)}")
        parts = [head]
        if self._total:
            done = min(progress.total("env_steps"), self._total)
            parts.append(ProgressBar(total=self._total, completed=done, width=60))  # pyright: ignore[reportArgumentType] - renderables
        table = Table(box=None, pad_edge=False, show_header=False)
        largest = progress.memory.largest()
        for kind, split in progress.splits().items():
            words = "  ".join(f"{name} {share:.0%}" for name, share in shares(split).items())
            memory = f"  {largest[kind][1]:.0f} MB" if kind in largest else ""
            table.add_row(kind, words + memory)
        if len(progress.policies) > 1:
            for name, policy in progress.policies.items():
                table.add_row(f"policy {name}", _policy_line(policy))
        return Group(*parts, table, Text(f"bottleneck: {progress.bottleneck()}"))


class Rate:
    """Env steps a second over the last few seconds."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, int]] = []

    def update(self, env_steps: int) -> float:
        """Take in the total; returns the rate."""
        now = time.monotonic()
        if not self._marks or now - self._marks[-1][0] > 0.2:
            self._marks = [m for m in self._marks if now - m[0] < 6.0] + [(now, env_steps)]
        first, last = self._marks[0], self._marks[-1]
        return (last[1] - first[1]) / (last[0] - first[0]) if last[0] > first[0] else 0.0


def headline(progress: Progress, rate: float, total: int | None) -> str:
    """The run in one line."""
    steps = progress.total("env_steps")
    of = f"/{total:,}" if total else ""
    mean = progress.mean_return
    shown = "-" if mean is None else f"{mean:.1f}"
    return (
        f"env steps {steps:,}{of}  {rate:,.0f}/s  return {shown} ({progress.episodes:,} episodes)  "
        f"version {progress.version}  staleness {progress.staleness_mean:.2f} "
        f"(max {progress.staleness_max})"
    )


def _policy_line(policy: PolicyProgress) -> str:
    mean = "-" if policy.mean_return is None else f"{policy.mean_return:.1f}"
    state = "frozen" if policy.frozen else f"version {policy.version}"
    return f"{state}  return {mean} ({policy.episodes:,} episodes)"


def make_view(name: str, total_env_steps: int | None) -> View:
    """A table on a terminal, lines elsewhere."""
    console = Console(stderr=True)
    if console.is_terminal:
        return LiveTable(console, name, total_env_steps)
    return PlainLines(console, total_env_steps)
