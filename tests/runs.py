"""Two runs, compared bit for bit; loaded by `load_object`, because tests are no package."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from srl.learning.checkpoint import latest_checkpoint, read_checkpoint
from srl.learning.versions import VersionStore

CLOCKS = ("pid", "seconds", "env_steps_per_second", "bottleneck", "time_split", "memory")
CLOCKS += ("checkpoints",)


def metrics(folder: Path, file: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """Every row of a file, without its clocks."""
    rows = [json.loads(line) for line in (folder / file).read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "time"} for row in rows]


def summary(folder: Path) -> dict[str, Any]:
    """What a run says of itself, without its clocks."""
    whole = json.loads((folder / "summary.json").read_text())
    return {name: value for name, value in whole.items() if name not in CLOCKS}


def kept(folder: Path) -> tuple[list[Any], dict[str, dict[str, int]]]:
    """Every version kept, without its clocks, and the tags."""
    store = VersionStore(folder / "versions")
    policies = store.policies() if store.exists else []
    newest = [v for policy in policies for v in store.newest(policy, 1000)]
    found = [replace(v, created=0.0, seconds=0.0) for v in newest]
    files = {path.name for path in store.folder.glob("*.safetensors")}
    assert {v.file for v in found} == files, f"{store.folder} has other files than it says"
    return found, {policy: store.tags(policy) for policy in policies}


def arrays(folder: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Every array of the last checkpoint: its type, its shape and its bytes."""
    sections = read_checkpoint(latest_checkpoint(folder / "checkpoints")).sections
    return {
        f"{section}/{name}": (str(array.dtype), array.shape, array.tobytes())
        for section, named in sections.items()
        for name, array in named.items()
    }


def differences(one: Path, other: Path) -> list[str]:
    """What differs between two runs, in words: in metrics, versions, counters, or any bit of a
    checkpoint."""
    found = []
    for file in ("metrics.jsonl", "evaluations.jsonl"):
        found += _rows_apart(file, metrics(one, file), metrics(other, file))
    if kept(one) != kept(other):
        found.append(f"versions kept: {kept(one)} and {kept(other)}")
    found += _apart("summary.json", summary(one), summary(other))
    mine, theirs = arrays(one), arrays(other)
    odd = sorted(mine.keys() ^ theirs.keys())
    found += [f"checkpoint: {name} is in one of them" for name in odd]
    both = sorted(mine.keys() & theirs.keys())
    return found + [f"checkpoint: {name}" for name in both if mine[name] != theirs[name]]


def _rows_apart(file: str, mine: list[Any], theirs: list[Any]) -> list[str]:
    """The first row that differs, and how many there are."""
    found = []
    if len(mine) != len(theirs):
        found.append(f"{file}: {len(mine)} and {len(theirs)} rows")
    for number, (row, its) in enumerate(zip(mine, theirs, strict=False)):
        if row != its:
            return found + _apart(f"{file}, row {number}", row, its)
    return found


def _apart(what: str, mine: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    names = [*mine, *(name for name in theirs if name not in mine)]
    pairs = {name: (mine.get(name, "-"), theirs.get(name, "-")) for name in names}
    return [f"{what}: {name} {a!r} and {b!r}" for name, (a, b) in pairs.items() if a != b]
