"""Results as JSON and as a table; the host they were measured on."""

import json
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from srl.launch.host.cgroup import cpu_quota
from srl.tools.doctor import usable_cores

_PACKAGES = (
    "really-scalable-rl",
    "torch",
    "numpy",
    "gymnasium",
    "ale-py",
    "envpool",
    "mujoco",
    "pettingzoo",
)


def host() -> dict[str, Any]:
    """The host, in facts that speeds depend on."""
    return {
        "cpu": cpu_model(),
        "cores": num_cores(),
        "gpus": gpus(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": _versions(),
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def num_cores() -> int:
    """Cores that this process may use, of those it sees and by the limits of its container."""
    quota = cpu_quota()
    return usable_cores() if quota is None else min(usable_cores(), max(1, round(quota)))


def cpu_model() -> str:
    """What the CPU calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def gpus() -> list[str]:
    """Names of the GPUs."""
    import torch

    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def write_json(path: Path | str, result: Mapping[str, Any]) -> None:
    """Write a result, whole or not at all."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.writing")
    aside.write_text(json.dumps(result, indent=1) + "\n")
    aside.replace(target)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table: words left, numbers right."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2))
    cells = [[str(cell) for cell in row] for row in rows]
    for column, texts in zip(columns, zip(*cells, strict=True), strict=True):
        has_words = any(letter.isalpha() for text in texts for letter in text)
        table.add_column(column, justify="left" if has_words else "right", no_wrap=True)
    widest = [max(map(len, texts)) + 4 for texts in zip(columns, *cells, strict=True)]
    for row in cells:
        table.add_row(*row)
    # whole, whatever the width of the screen: half of a number is worse than a second line
    console = Console(file=sys.stdout, width=max(len(title), sum(widest)), highlight=False)
    console.print(table)
    console.print()


def say(text: str) -> None:
    """Print one line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str | None:
    """The commit of the code, with a + where the package differs from it; None outside a checkout."""
    package = Path(__file__).parents[2]

    def git(*words: str) -> str:
        command = ["git", "-C", str(package), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()

    try:
        commit = git("rev-parse", "--short=12", "HEAD")
        # Results that accumulate in the checkout do not make the code another one.
        return f"{commit}+" if git("status", "--porcelain", "--", ".") else commit
    except (OSError, subprocess.SubprocessError):
        return None
