"""Checkpoints: a folder of safetensors files, a part a writer, and a manifest of what is in them.

    checkpoints/00000042/state-trainer-0.safetensors     arrays, named section/name
                         manifest.json                   format, counters, checksums, what is restored

Each writer writes and syncs its part in a folder aside; when all are there, the manifest is added
and the folder renamed, so that a checkpoint is whole or is not there. No pickle: a poisoned file
can at worst be refused.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors
import safetensors.numpy

from srl.core.arrays import Arrays
from srl.core.errors import CheckpointError
from srl.transport.control import Part

FORMAT = 2
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and verified."""

    path: Path
    manifest: dict[str, Any]
    sections: dict[str, Arrays]
    """Worker or stream name to its state."""


def begin_checkpoint(folder: Path, serial: int) -> Path:
    """An empty folder aside, for the parts of the `serial`-th checkpoint of a process."""
    aside = folder / f".{serial:08d}.writing"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    return aside


def write_part(aside: Path, writer: str, sections: Mapping[str, Mapping[str, Any]]) -> Part:
    """Write one writer's sections to disk."""
    flat = {
        f"{s}/{name}": np.asarray(array, order="C")  # safetensors writes others in memory order
        for s, state in sections.items()
        for name, array in state.items()
    }
    data = safetensors.numpy.save(flat)
    file = f"state-{writer}.safetensors"
    _write_synced(aside / file, data)
    return Part(file, hashlib.sha256(data).hexdigest(), len(data), tuple(sorted(sections)))


def commit_checkpoint(
    aside: Path,
    parts: Sequence[Part],
    *,
    versions: Mapping[str, int],
    manifest: Mapping[str, Any],
    keep: int,
) -> Path:
    """Make the parts in `aside` the checkpoint `<highest version>`, and keep the newest `keep`."""
    folder, version = aside.parent, max(versions.values())
    path = folder / f"{version:08d}"
    whole = {
        **manifest,
        "format": FORMAT,
        "version": version,
        "versions": dict(versions),
        "parts": msgspec.to_builtins(parts),
    }
    _write_synced(aside / _MANIFEST, json.dumps(whole, indent=1).encode())
    _sync_folder(aside)
    replaced = folder / f"{version:08d}.replaced"  # listed like any other, should we die here
    if path.exists():  # the same version again, after a resume
        shutil.rmtree(replaced, ignore_errors=True)
        path.rename(replaced)
    aside.rename(path)
    _sync_folder(folder)
    shutil.rmtree(replaced, ignore_errors=True)
    for old in list_checkpoints(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return path


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint; raises CheckpointError where it is none of ours."""
    try:
        manifest = json.loads((path / _MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a checkpoint of SRL: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else None
        raise CheckpointError(f"{path} has checkpoint format {found}, this SRL reads {FORMAT}")
    return manifest


def read_checkpoint(path: Path) -> Checkpoint:
    """Read and verify; raises CheckpointError where a byte is missing or changed."""
    manifest = read_manifest(path)
    try:
        parts = msgspec.convert(manifest.get("parts"), list[Part])
    except msgspec.ValidationError as error:
        raise CheckpointError(
            f"{path / _MANIFEST} does not say which sections its parts have: {error}"
        ) from error
    sections: dict[str, Arrays] = {}
    for part in parts:
        sections |= {name: {} for name in part.sections}
        for key, array in _read_part(path, part).items():
            section, _, name = key.partition("/")
            sections.setdefault(section, {})[name] = array
    return Checkpoint(path, manifest, sections)


def _read_part(path: Path, part: Part) -> Arrays:
    file = path / Path(part.file).name  # a part lies in its checkpoint, whatever the manifest says
    try:
        data = file.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} has no readable {file.name}: {error}") from error
    if len(data) != part.bytes:
        raise CheckpointError(
            f"{file} is truncated: {len(data)} bytes of {part.bytes}; "
            "remove its folder to go on from the checkpoint before it"
        )
    if hashlib.sha256(data).hexdigest() != part.sha256:
        raise CheckpointError(
            f"{file} is corrupted: its checksum is not the one in {_MANIFEST}; "
            "remove its folder to go on from the checkpoint before it"
        )
    try:
        return safetensors.numpy.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"{file} is not a safetensors file: {error}") from error


def trainers_only(checkpoint: Checkpoint) -> Checkpoint:
    """Without actors, streams and staged blocks: for a run whose shape has changed."""
    sections = {
        worker: {name: array for name, array in state.items() if not name.startswith("staging.")}
        for worker, state in checkpoint.sections.items()
        if worker.startswith("trainer")
    }
    return Checkpoint(checkpoint.path, checkpoint.manifest, sections)


def list_checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints in a folder, oldest first."""
    return sorted(p for p in folder.glob("[0-9]*") if (p / _MANIFEST).exists())


def latest_checkpoint(folder: Path) -> Path:
    """The newest checkpoint; raises CheckpointError where there is none."""
    found = list_checkpoints(folder)
    if not found:
        raise CheckpointError(f"there is no checkpoint in {folder}")
    return found[-1]


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
