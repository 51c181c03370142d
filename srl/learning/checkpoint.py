"""Checkpoints: a folder of safetensors files, a part a writer, and a manifest of what is in them.

    checkpoints/00000042/state-trainer-0.safetensors     arrays, named section/name
                         manifest.json                   format, counters, checksums, what is restored

Each writer writes and syncs its part in a folder aside; when all are there, the manifest is added
and the folder renamed, so that a checkpoint is whole or is not there; one that goes is renamed
first. Whatever is killed, the checkpoint before is there. No pickle: a poisoned file can at worst
be refused.
"""

import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import safetensors
import safetensors.numpy

from srl.core.arrays import Arrays
from srl.core.errors import CheckpointError
from srl.learning.migrate import FORMAT, migrate
from srl.transport.control import Part

LATEST, BEST = "latest", "best"
"""Names by which checkpoints are chosen, beside their versions."""
_MANIFEST = "manifest.json"
_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "uint64": "U64",
    "int32": "I32",
    "uint32": "U32",
    "int16": "I16",
    "uint16": "U16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""NumPy's names of what safetensors holds."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and verified."""

    path: Path
    manifest: dict[str, Any]
    sections: dict[str, Arrays]
    """Worker or stream name to its state."""


class Score(NamedTuple):
    """What a checkpoint is worth."""

    mean_return: float
    kind: str
    """What it is the mean of: `evaluation` or `episodes`. Scores of two kinds do not compare."""


def begin_checkpoint(folder: Path, serial: int) -> Path:
    """An empty folder aside, for the parts of the `serial`-th checkpoint of a process."""
    aside = folder / f".{serial:08d}.writing"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    return aside


def write_part(aside: Path, writer: str, sections: Mapping[str, Mapping[str, Any]]) -> Part:
    """Write one writer's sections to disk; leaves Python to other threads while it does."""
    arrays = {
        f"{s}/{name}": np.asarray(array, order="C")
        for s, state in sections.items()
        for name, array in state.items()
    }
    file = f"state-{writer}.safetensors"
    digest, size = hashlib.sha256(), 0
    with (aside / file).open("wb") as out:
        for piece in _pieces(arrays):
            digest.update(piece)
            out.write(piece)
            size += len(piece)
        out.flush()
        os.fsync(out.fileno())
    return Part(file, digest.hexdigest(), size, tuple(sorted(sections)))


def _pieces(arrays: Mapping[str, np.ndarray]) -> Iterable[bytes | memoryview]:
    """A safetensors file: its header, then every array in place, wide numbers first."""
    header: dict[str, Any] = {}
    ordered, end = sorted(arrays.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])), 0
    for name, array in ordered:
        if array.dtype.name not in _DTYPES:
            raise CheckpointError(f"a checkpoint cannot hold {name!r}: it has dtype {array.dtype}")
        start, end = end, end + array.nbytes
        kind, shape = _DTYPES[array.dtype.name], list(array.shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for _, array in ordered:
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        yield little.reshape(-1).view(np.uint8).data


def commit_checkpoint(
    aside: Path,
    parts: Sequence[Part],
    *,
    versions: Mapping[str, int],
    manifest: Mapping[str, Any],
    keep: int,
) -> Path:
    """Make the parts in `aside` the checkpoint `<highest version>`.

    Of all there are, the newest `keep` stay, and the best by `manifest["score"]` (Score or None).
    """
    folder, version = aside.parent, max(versions.values())
    serial = 1 + max((_order(found)[0] for found in _readable(folder)), default=0)
    path = folder / f"{version:08d}"
    whole = {
        "score": None,
        **manifest,
        "format": FORMAT,
        "serial": serial,
        "created": time.time(),
        "version": version,
        "versions": dict(versions),
        "parts": msgspec.to_builtins(parts),
    }
    _write_synced(aside / _MANIFEST, json.dumps(whole, indent=1).encode())
    _sync_folder(aside)
    replaced = folder / f"{version:08d}.{serial}"  # listed like any other, should we die here
    if path.exists():  # the same version again, after a resume
        path.rename(replaced)
    aside.rename(path)
    _sync_folder(folder)
    newest = [found for found in _readable(folder) if not _is_replaced(found)][-keep:]
    for old in {*_readable(folder), replaced} - {*newest, best_checkpoint(folder)}:
        _remove(old)
    return path


def _remove(path: Path) -> None:
    """Take a checkpoint out of the list at once, then remove its files."""
    gone = path.with_name(f".{path.name}.removing")
    with suppress(OSError):  # it is not there, or has to stay
        shutil.rmtree(gone, ignore_errors=True)
        path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def remove_unfinished(folder: Path) -> None:
    """Remove what processes that died here left half written or half removed."""
    for pattern in (".*.writing", ".*.removing"):
        for path in folder.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint; raises CheckpointError where it is none of ours."""
    try:
        manifest = json.loads((path / _MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a checkpoint of SRL: {error}") from error
    return migrate(manifest, path)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read and verify; raises CheckpointError where a byte is missing or changed."""
    manifest = read_manifest(path)
    sections: dict[str, Arrays] = {}
    for part in _parts_of(path, manifest):
        sections |= {name: {} for name in part.sections}
        for key, array in _read_part(path, part).items():
            section, _, name = key.partition("/")
            sections.setdefault(section, {})[name] = array
    return Checkpoint(path, manifest, sections)


def read_section(path: Path, section: str) -> Arrays | None:
    """Read and verify what one worker saved, None where that is nothing; raises CheckpointError."""
    for part in _parts_of(path, read_manifest(path)):
        if section in part.sections:
            arrays, start = _read_part(path, part), f"{section}/"
            return {
                key.removeprefix(start): a for key, a in arrays.items() if key.startswith(start)
            }
    return None


def _parts_of(path: Path, manifest: Mapping[str, Any]) -> list[Part]:
    try:
        return msgspec.convert(manifest.get("parts"), list[Part])
    except msgspec.ValidationError as error:
        raise CheckpointError(
            f"{path / _MANIFEST} does not say which sections its parts have: {error}"
        ) from error


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
    """Without actors, streams and staged blocks, but with rows of replay: for a run whose shape has changed."""
    sections = {
        worker: {
            name: array
            for name, array in state.items()
            if not name.startswith("staging.") or name.startswith("staging.replay.")
        }
        for worker, state in checkpoint.sections.items()
        if worker.startswith("trainer")
    }
    return Checkpoint(checkpoint.path, checkpoint.manifest, sections)


def list_checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints in a folder, in the order they were written; unreadable ones last."""
    readable = _readable(folder)
    return readable + sorted(set(_listed(folder)) - set(readable))


def latest_checkpoint(folder: Path) -> Path:
    """The newest checkpoint; raises CheckpointError where there is none."""
    found = list_checkpoints(folder)
    if not found:
        raise CheckpointError(f"there is no checkpoint in {folder}")
    return found[-1]


def best_checkpoint(folder: Path) -> Path | None:
    """The checkpoint of the highest score (of equal ones the newest), where any has one.

    What counts is the kind of score that the newest has.
    """
    scored = [(path, score) for path in _readable(folder) if (score := score_of(path)) is not None]
    if not scored:
        return None
    kind = scored[-1][1].kind
    alike = [(path, score.mean_return) for path, score in scored if score.kind == kind]
    highest = max(mean_return for _, mean_return in alike)
    return [path for path, mean_return in alike if mean_return == highest][-1]


def find_checkpoint(folder: Path, name: str) -> Path:
    """The checkpoint called `latest` or `best`, or of a version; raises CheckpointError."""
    if name == LATEST:
        return latest_checkpoint(folder)
    best = best_checkpoint(folder)
    if name == BEST and best is not None:
        return best
    known = {int(read_manifest(path)["version"]): path for path in _readable(folder)}
    if name.isascii() and name.isdigit() and int(name) in known:
        return known[int(name)]
    there = ", ".join(str(version) for version in known) or "none"
    raise CheckpointError(
        f"there is no checkpoint {name!r} in {folder}: there is {LATEST}, "
        f"{BEST + ', ' if best is not None else ''}and those of versions {there}"
    )


def score_of(path: Path) -> Score | None:
    """What the manifest of a checkpoint says it is worth, where it does."""
    try:
        mean_return, kind = read_manifest(path)["score"]
        return Score(float(mean_return), str(kind)) if math.isfinite(mean_return) else None
    except (TypeError, ValueError, KeyError):  # those before had none
        return None


def _listed(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("[0-9]*") if (p / _MANIFEST).exists())


def _readable(folder: Path) -> list[Path]:
    """Those whose manifest can be read, in the order they were written."""
    found: list[tuple[tuple[int, int, bool], Path]] = []
    for path in _listed(folder):
        try:
            found.append((_order(path), path))
        except CheckpointError:
            continue
    return [path for _, path in sorted(found)]


def _order(path: Path) -> tuple[int, int, bool]:
    """What checkpoints are sorted by: serial numbers, which those before them do not have."""
    manifest = read_manifest(path)
    try:
        numbers = int(manifest.get("serial", 0)), int(manifest["version"])
    except (TypeError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path / _MANIFEST} has no version: {error!r}") from error
    return *numbers, not _is_replaced(path)


def _is_replaced(path: Path) -> bool:
    """Whether there is, or should have been, a newer one of its version."""
    return "." in path.name


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
