"""Says in words which checkpoints there are, what they hold, and what a resumed run gets back."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from srl.core.errors import CheckpointError
from srl.learning.checkpoint import (
    best_checkpoint,
    latest_checkpoint,
    list_checkpoints,
    read_checkpoint,
    read_manifest,
    score_of,
)

_COLUMNS = ("checkpoint", "versions", "env steps", "MB", "written", "format", "return", "")


def inspect(path: Path, *, verify: bool = False) -> str:
    """The checkpoints of a run and what is in its newest; or what is in the one given.

    Args:
        path: of a run, or of a checkpoint.
        verify: read every byte of all of them.

    Raises:
        CheckpointError: the newest, or the one given, is none or is damaged; with `verify`, any is.
    """
    if not (path / "checkpoints").is_dir():
        return _contents(path)
    folder = path / "checkpoints"
    newest = latest_checkpoint(folder)
    found, table = list_checkpoints(folder), _table(folder, verify=verify)
    damaged = [name for name, *_, words in table if "damaged" in words]
    if verify and damaged:
        text = _aligned(table)
        raise CheckpointError(f"checkpoints of {path} are damaged: {', '.join(damaged)}\n{text}")
    how_many = f"{len(found)} checkpoint{'s' if len(found) > 1 else ''} in {folder}"
    return f"{how_many}:\n{_aligned(table)}\n{_contents(newest)}"


def _table(folder: Path, *, verify: bool) -> list[tuple[str, ...]]:
    """A row a checkpoint, oldest first."""
    best, newest = best_checkpoint(folder), latest_checkpoint(folder)
    rows = []
    for path in list_checkpoints(folder):
        marks = [name for name, which in (("newest", newest), ("best", best)) if path == which]
        try:
            manifest = read_checkpoint(path).manifest if verify else read_manifest(path)
            facts = _facts(path, manifest)
            marks += ["verified"] if verify else []
        except (CheckpointError, KeyError) as error:
            facts, marks = [""] * (len(_COLUMNS) - 2), [*marks, f"damaged: {error}"]
        rows.append((path.name, *facts, ", ".join(marks)))
    return rows


def _facts(path: Path, manifest: dict[str, Any]) -> Sequence[str]:
    versions = manifest["versions"]
    named = [str(v) for v in versions.values()] if len(versions) == 1 else []
    score = score_of(path)
    worth = "" if score is None else f"{score.mean_return:.1f} ({score.kind})"
    return (
        " ".join(named or [f"{policy} {version}" for policy, version in versions.items()]),
        str(manifest["progress"]["totals"]["env_steps"]),
        f"{_size(manifest) / 1e6:.2f}",
        _date(manifest),
        str(manifest["format"]),
        worth,
    )


def _contents(path: Path) -> str:
    """What is in a checkpoint, and what a resumed run gets back of it."""
    checkpoint = read_checkpoint(path)
    manifest = checkpoint.manifest
    totals = manifest["progress"]["totals"]
    lines = [
        f"{path}: whole (checksum verified), format {manifest['format']}, written {_date(manifest)}",
        f"version {manifest['version']}, {totals['env_steps']} env steps, "
        f"{manifest['seconds']:.1f} s, {_size(manifest) / 1e6:.2f} MB",
        "restored:",
        *(f"  {words}" for words in manifest["restored"]),
        "not restored:",
        *(f"  {words}" for words in manifest["not_restored"] or ["nothing is lost"]),
        "holds:",
    ]
    for section, arrays in checkpoint.sections.items():
        size = sum(array.nbytes for array in arrays.values())
        lines.append(f"  {section}: {len(arrays)} arrays, {size / 1e6:.3f} MB")
        learner = {k: v for k, v in arrays.items() if k.startswith("learner.")}
        lines += [f"    {k} {v.dtype}{list(v.shape)}" for k, v in sorted(learner.items())]
    return "\n".join(lines) + "\n"


def _size(manifest: dict[str, Any]) -> int:
    return sum(part["bytes"] for part in manifest["parts"])


def _date(manifest: dict[str, Any]) -> str:
    """When it was written; earlier SRLs did not say."""
    created = manifest.get("created")
    if created is None:
        return "?"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(created))


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """A table with a head."""
    whole = [_COLUMNS, *rows]
    widths = [max(len(row[i]) for row in whole) for i in range(len(_COLUMNS) - 1)]
    lines = [
        "  ".join([*(cell.ljust(w) for cell, w in zip(row[:-1], widths, strict=True)), row[-1]])
        for row in whole
    ]
    return "".join(f"  {line.rstrip()}\n" for line in lines)
