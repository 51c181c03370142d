"""The run folder: everything a run leaves behind, and the only place it writes to."""

import fcntl
import json
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from srl.core.errors import ConfigError
from srl.learning.checkpoint import remove_unfinished
from srl.telemetry.files import replace_file
from srl.telemetry.sinks import read_rows

_RESERVED = 64 << 10
"""Bytes: for a summary, and what a worker said last."""


class RunFolder:
    """JSON files and their lines, `tb/`, `checkpoints/`, `versions/`, `logs/`, `errors/`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def lock(self) -> None:
        """Claim the folder for this process until it ends; raises ConfigError where it is taken."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            owner = "unknown"
            with suppress(ConfigError):  # of a run that has just begun
                owner = self.read("summary.json").get("pid", owner)
            raise ConfigError(
                f"{self.path} is being run by process {owner}; where that is gone, its workers are "
                "still writing a last checkpoint: wait until they have ended"
            ) from error
        self._lock = descriptor

    @property
    def held(self) -> list[int]:
        """The descriptor that claims the folder, where it is claimed: for others to hold, too."""
        return [] if self._lock is None else [self._lock]

    def unlock(self) -> None:
        """Give the folder back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @classmethod
    def create(cls, path: Path) -> "RunFolder":
        """A new folder; refuses one that holds anything, or that cannot be written."""
        try:
            if path.exists() and (not path.is_dir() or any(path.iterdir())):
                raise ConfigError(
                    f"the output folder {path} is not empty: choose another --out, or go on with "
                    f"the run that is there: srl resume {path}"
                )
            _make_folders(path)
        except OSError as error:
            raise ConfigError(
                f"the output folder {path} cannot be written: {error}: choose another --out"
            ) from error
        return cls(path)

    @classmethod
    def open(cls, path: Path, *, to_write: bool = False) -> "RunFolder":
        """A folder that a run made; raises ConfigError where it is none."""
        if not (path / "config.json").is_file():
            raise ConfigError(f"{path} is not a run folder: it has no config.json")
        if to_write:
            try:
                _make_folders(path)
            except OSError as error:
                raise ConfigError(f"the run folder {path} cannot be written: {error}") from error
        return cls(path)

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints lie."""
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        """One JSON object a learned batch."""
        return self.path / "metrics.jsonl"

    @property
    def evaluations(self) -> Path:
        """One JSON object an evaluated version."""
        return self.path / "evaluations.jsonl"

    @property
    def versions(self) -> Path:
        """Where evaluated versions are kept."""
        return self.path / "versions"

    def read(self, name: str) -> dict[str, Any]:
        """A JSON file of the run."""
        try:
            data = json.loads((self.path / name).read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.path / name} cannot be read: {error}") from error
        if not isinstance(data, dict):
            raise ConfigError(f"{self.path / name} is not a JSON object")
        return data

    def write(self, name: str, data: Mapping[str, Any]) -> None:
        """Write a JSON file, whole or not at all."""
        replace_file(self.path / name, (json.dumps(data, indent=1) + "\n").encode())

    def reserve(self) -> None:
        """Keep some room on the disk: should it be full, what is said of the end has a place."""
        self._reserve.write_bytes(bytes(_RESERVED))

    def release(self) -> None:
        """Give that room back, for what is written now."""
        with suppress(OSError):
            self._reserve.unlink(missing_ok=True)

    @property
    def _reserve(self) -> Path:
        return self.path / ".reserved"

    def discard(self) -> None:
        """Remove what was made for a run that was refused before anything was started."""
        shutil.rmtree(self.path, ignore_errors=True)

    def remove_unfinished(self) -> None:
        """Remove checkpoints and versions that were never finished."""
        remove_unfinished(self.checkpoints)
        for path in self.versions.glob(".*.writing"):
            path.unlink(missing_ok=True)

    @property
    def is_running(self) -> bool:
        """Whether a process holds the folder."""
        try:
            self.lock()
        except ConfigError:
            return True
        self.unlock()
        return False

    def settle(self) -> str | None:
        """Where the run was left by a controller that died, write down that it failed, and say why.

        The account is the last row of the metrics. None where there was nothing to do.
        """
        if not (self.path / "summary.json").is_file():
            return None
        summary = self.read("summary.json")
        if summary.get("status") != "running" or self.is_running:
            return None
        reason = f"its controller (process {summary.get('pid')}) died without a word"
        self.release()
        self.write("summary.json", summary | self._last_facts() | _failed(reason))
        return reason

    def _last_facts(self) -> dict[str, Any]:
        """What the metrics know and the summary of a run that was killed does not."""
        rows = list(read_rows(self.metrics)) if self.metrics.is_file() else []
        last = {row.get("policy"): row for row in rows}.values()
        if not last:
            return {}
        known = [row["mean_return"] for row in last if row.get("mean_return") is not None]
        return {
            "version": max(row.get("version", 0) for row in last),
            "updates": sum(row.get("updates", 0) for row in last),
            "episodes": sum(row.get("episodes", 0) for row in last),
            "env_steps": rows[-1].get("env_steps", 0),
            "mean_return": sum(known) / len(known) if known else None,
            **rows[-1].get("time", {}),
        }

    def write_error(self, worker: str, text: str) -> Path:
        """Keep a worker's error, where the disk has room for it."""
        path = self.path / "errors" / f"{worker}.txt"
        try:
            self.append_error(path.name, text)
        except OSError:
            self.release()
            with suppress(OSError):
                self.append_error(path.name, text)
        return path

    def free_error(self, name: str) -> Path:
        """Where a file beside the errors can be kept: under another name where there is one.

        After `a.txt` comes `a-2.txt`, and so it does after `a-1.txt`.
        """
        wanted = self.path / "errors" / Path(name).name
        path, number = wanted, 1
        while path.exists():
            number += 1
            path = wanted.with_stem(f"{wanted.stem.removesuffix('-1')}-{number}")
        return path

    def append_error(self, name: str, text: str) -> None:
        """Add a paragraph to a file beside the errors."""
        with (self.path / "errors" / name).open("a", encoding="utf-8") as file:
            file.write(f"\n{text}" if file.tell() else text)


def _make_folders(path: Path) -> None:
    """Make what is missing of a run's folders; raises OSError where one cannot be written."""
    for folder in (path, *(path / name for name in ("tb", "checkpoints", "logs", "errors"))):
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.write_bytes(b"")
        probe.unlink()


def _failed(reason: str) -> dict[str, str]:
    return {"status": "failed", "reason": reason}


def default_folder(experiment: str) -> Path:
    """`runs/NAME/TIME`, with a number where two runs start in one second."""
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in experiment)
    base = Path("runs") / name / time.strftime("%Y%m%d-%H%M%S")
    path, number = base, 1
    while path.exists():
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path
