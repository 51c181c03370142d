"""Checkpoints: a folder of one safetensors file and a manifest that says what is in it.

    checkpoints/00000042/state.safetensors     arrays, named section/name
                         manifest.json         format, counters, checksum, what is restored

Written aside, synced and renamed, so that a checkpoint is whole or is not there. No pickle: a
poisoned file can at worst be refused.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from srl.core.arrays import Arrays
from srl.core.errors import CheckpointError

FORMAT = 1
_STATE, _MANIFEST = "state.safetensors", "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and verified."""

    path: Path
    manifest: dict[str, Any]
    sections: dict[str, Arrays]
    """Worker or stream name to its state."""


def write_checkpoint(
    folder: Path,
    version: int,
    sections: Mapping[str, Mapping[str, Any]],
    *,
    manifest: Mapping[str, Any],
    keep: int,
) -> Path:
    """Write `folder/<version>` and remove all but the newest `keep`."""
    path = folder / f"{version:08d}"
    aside = folder / f".{version:08d}.writing"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    flat = {
        f"{s}/{name}": np.asarray(array, order="C")  # safetensors writes others in memory order
        for s, state in sections.items()
        for name, array in state.items()
    }
    data = safetensors.numpy.save(flat)
    whole = {
        **manifest,
        "format": FORMAT,
        "version": version,
        "sections": sorted(sections),
        "sha256": hashlib.sha256(data).hexdigest(),
        "bytes": len(data),
    }
    _write_synced(aside / _STATE, data)
    _write_synced(aside / _MANIFEST, json.dumps(whole, indent=1).encode())
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
        data = (path / _STATE).read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} has no readable {_STATE}: {error}") from error
    if len(data) != manifest.get("bytes"):
        raise CheckpointError(
            f"{path / _STATE} is truncated: {len(data)} bytes of {manifest.get('bytes')}; "
            "remove its folder to go on from the checkpoint before it"
        )
    if hashlib.sha256(data).hexdigest() != manifest.get("sha256"):
        raise CheckpointError(
            f"{path / _STATE} is corrupted: its checksum is not the one in {_MANIFEST}; "
            "remove its folder to go on from the checkpoint before it"
        )
    try:
        flat = safetensors.numpy.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path / _STATE} is not a safetensors file: {error}") from error
    names = manifest.get("sections")
    if not isinstance(names, list):
        raise CheckpointError(f"{path / _MANIFEST} does not say which sections there are")
    sections: dict[str, Arrays] = {str(name): {} for name in names}
    for key, array in flat.items():
        section, _, name = key.partition("/")
        sections.setdefault(section, {})[name] = array
    return Checkpoint(path, manifest, sections)


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
