"""What dead runs have left: folders of sockets, and run folders that still say `running`.

A folder is only called dead where it says whose it is and that process is gone.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from srl.core.errors import ConfigError
from srl.launch.folder import RunFolder
from srl.launch.host.owner import is_alive
from srl.launch.host.socket_folder import SOCKET_OWNERS, SOCKET_PREFIX

_DEPTH = 3
"""Levels below a given path where a run folder may lie: runs/NAME/TIME."""


def dead_socket_folders() -> list[Path]:
    """Socket folders of this user whose controller and node agent are both gone."""
    places = {Path(tempfile.gettempdir()), Path("/tmp")}
    found = (f for place in places if place.is_dir() for f in place.glob(f"{SOCKET_PREFIX}*"))
    return sorted(folder for folder in found if _is_dead(folder))


def sweep(folders: Sequence[Path]) -> list[Path]:
    """Remove those of the socket folders that are (still) dead; returns the removed."""
    removed = [folder for folder in folders if _is_dead(folder)]
    for folder in removed:
        shutil.rmtree(folder, ignore_errors=True)
    return [folder for folder in removed if not folder.exists()]


def settle_runs(paths: Sequence[Path]) -> list[str]:
    """Turn runs that died into failed ones; a sentence each."""
    told = []
    for path in paths:
        for folder in _run_folders(path, _DEPTH):
            try:
                reason = RunFolder(folder).settle()
            except (ConfigError, OSError) as error:
                told.append(f"{folder} cannot be read: {error}")
                continue
            if reason is not None:
                told.append(f"{folder} said it was running; now it says failed: {reason}")
    return told


def _is_dead(folder: Path) -> bool:
    if folder.is_symlink() or not folder.is_dir() or folder.stat().st_uid != os.getuid():
        return False
    owners = [folder / name for name in SOCKET_OWNERS if (folder / name).is_file()]
    return bool(owners) and not any(is_alive(owner) for owner in owners)


def _run_folders(path: Path, depth: int) -> Iterator[Path]:
    if (path / "config.json").is_file() and (path / "summary.json").is_file():
        yield path
    elif depth and path.is_dir():
        for below in sorted(path.iterdir()):
            if below.is_dir() and not below.is_symlink():
                yield from _run_folders(below, depth - 1)
