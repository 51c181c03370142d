"""Versions of a policy kept on disk: weights in files, what is known of them in an index.

    versions/main-00000042.safetensors     weights, and in its header what the version is worth
             index.sqlite                  the same as a table, and the tags

A file is written aside, synced and renamed, so it is whole or is not there; its header holds a
checksum, and everything an index that was lost is made again from. Every wait for the index is
bounded. No pickle: a poisoned file can at worst be refused.
"""

import hashlib
import json
import os
import re
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import safetensors
import safetensors.numpy

from srl.core.arrays import Arrays
from srl.core.errors import CheckpointError, ConfigError
from srl.core.names import nearest

BEST, EVALUATED = "best", "eval"
"""Tags that a run sets: the highest return of all evaluations, and the newest evaluation."""
LATEST = "latest"
"""Not a tag, but the newest checkpoint: a name that tags cannot have."""

_INDEX = "index.sqlite"
_BUSY_SECONDS = 10.0
_TABLES = """
CREATE TABLE IF NOT EXISTS versions (
    policy TEXT NOT NULL, version INTEGER NOT NULL, env_steps INTEGER, seconds REAL,
    eval_return REAL, eval_std REAL, eval_episodes INTEGER, created REAL NOT NULL,
    sha256 TEXT NOT NULL, file TEXT NOT NULL, PRIMARY KEY (policy, version)
);
CREATE TABLE IF NOT EXISTS tags (
    policy TEXT NOT NULL, tag TEXT NOT NULL, version INTEGER NOT NULL, PRIMARY KEY (policy, tag)
);
"""
COLUMNS = ("version", "env_steps", "seconds", "eval_return", "eval_std", "eval_episodes", "created")
"""What `where` knows."""
_COMPARISON = re.compile(
    r"\s*([a-z_]+)\s*(<=|>=|==|!=|=|<|>)\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*", re.ASCII
)
_TAG = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Version:
    """One version of one policy, as the index knows it."""

    policy: str
    version: int
    env_steps: int | None = None
    """Env transitions the run had made when it was learned; None where that is not known."""
    seconds: float | None = None
    eval_return: float | None = None
    eval_std: float | None = None
    eval_episodes: int | None = None
    created: float = 0.0
    """Unix time."""
    sha256: str = ""
    """Of its weights."""
    file: str = ""
    """Name of its file in the folder."""


_FIELDS = tuple(field.name for field in fields(Version))


def write_weights(folder: Path, version: Version, weights: Mapping[str, np.ndarray]) -> Version:
    """Write the weights of a version; what it is, with its file, checksum and time."""
    folder.mkdir(exist_ok=True)
    arrays = {name: np.asarray(array, order="C") for name, array in weights.items()}
    name = f"{quote(version.policy, safe='')}-{version.version:08d}.safetensors"
    whole = replace(version, created=time.time(), sha256=_digest(arrays), file=name)
    known = {k: getattr(whole, k) for k in _FIELDS if k != "file"}
    data = safetensors.numpy.save(arrays, metadata={"srl": json.dumps(known)})
    path, aside = folder / name, folder / f".{name}.writing"
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError:
        with suppress(OSError):  # a full disk needs the room
            aside.unlink(missing_ok=True)
        raise
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return whole


def read_weights(path: Path) -> tuple[Version, Arrays]:
    """A version and its weights; raises CheckpointError where a byte is missing or changed."""
    again = "it cannot be used: remove it, and choose another of 'srl versions'"
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            arrays = {name: np.array(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118 - no dict
        known = json.loads(header["srl"])
        found = Version(**{**{k: known[k] for k in _FIELDS if k != "file"}, "file": path.name})
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path} is missing or truncated ({error}); {again}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path} holds no version of SRL ({error!r}); {again}") from error
    if _digest(arrays) != found.sha256:
        raise CheckpointError(f"{path} is corrupted: its checksum is another; {again}")
    return found, arrays


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    """Checksum of named arrays, whatever their order."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name}:{array.dtype.str}{array.shape};".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


class VersionStore:
    """The versions in one folder. The controller adds to it; others read, and set tags."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def exists(self) -> bool:
        """Whether a run has kept any version."""
        return (self.folder / _INDEX).is_file() or any(self.folder.glob("*.safetensors"))

    def add(self, version: Version) -> bool:
        """Index a version whose file is written, and tag it; True where it is the best so far."""
        values = ", ".join("?" for _ in _FIELDS)
        with self._write() as db:
            db.execute(
                f"INSERT OR REPLACE INTO versions ({', '.join(_FIELDS)}) VALUES ({values})",
                [getattr(version, name) for name in _FIELDS],
            )
            _tag(db, version.policy, EVALUATED, version.version)
            best = db.execute(
                "SELECT version FROM versions WHERE policy = ? AND eval_return IS NOT NULL "
                "ORDER BY eval_return DESC, version LIMIT 1",
                [version.policy],
            ).fetchone()
            if best is not None:
                _tag(db, version.policy, BEST, best[0])
        return best is not None and best[0] == version.version

    def prune(self, policy: str, keep: int) -> list[int]:
        """Remove all but the newest `keep` and those with a tag; the versions removed."""
        return self._remove(
            "SELECT version, file FROM versions WHERE policy = ? AND version NOT IN (SELECT "
            "version FROM versions WHERE policy = ? ORDER BY version DESC LIMIT ?)",
            [policy, policy, keep],
        )

    def roll_back(self, policy: str, version: int) -> list[int]:
        """Remove what comes after `version`, and will be learned again, unless it has a tag."""
        return self._remove(
            "SELECT version, file FROM versions WHERE policy = ? AND version > ?", [policy, version]
        )

    def tag(self, policy: str, version: int, name: str) -> None:
        """Give a version a tag, which then keeps it; one that had the tag loses it."""
        check_tag(name)
        with self._write() as db:
            known = db.execute(
                "SELECT 1 FROM versions WHERE policy = ? AND version = ?", [policy, version]
            ).fetchone()
            if known is None:
                raise ConfigError(
                    f"version {version} of policy {policy!r} is not kept: 'srl versions' lists "
                    "those that are"
                )
            _tag(db, policy, name, version)

    def tags(self, policy: str) -> dict[str, int]:
        """Every tag and its version."""
        with self._read() as db:
            found = db.execute("SELECT tag, version FROM tags WHERE policy = ?", [policy])
            return dict(sorted(found))

    def newest(self, policy: str, n: int) -> list[Version]:
        """At most the newest `n` versions of a policy, newest first."""
        return self._select("policy = ?", [policy], n)

    def where(self, expression: str, *, policy: str, limit: int | None = None) -> list[Version]:
        """Versions that satisfy `column op number [and ...]`, newest first."""
        condition, numbers = parse_where(expression)
        return self._select(f"policy = ? AND {condition}", [policy, *numbers], limit)

    def tagged(self, name: str, *, policy: str) -> Version:
        """The version with a tag; raises ConfigError where none has it."""
        tags = self.tags(policy)
        if name not in tags:
            known = ", ".join(tags) or "none"
            raise ConfigError(
                f"no version of policy {policy!r} has the tag {name!r}{nearest(name, list(tags))} "
                f"(tags there are: {known})"
            )
        return self.get(policy, tags[name])

    def get(self, policy: str, version: int) -> Version:
        """One version; raises ConfigError where it is not kept."""
        found = self._select("policy = ? AND version = ?", [policy, version], 1)
        if not found:
            raise ConfigError(
                f"version {version} of policy {policy!r} is not kept in {self.folder}"
            )
        return found[0]

    def policies(self) -> list[str]:
        """Policies of which there are versions."""
        with self._read() as db:
            return [row[0] for row in db.execute("SELECT DISTINCT policy FROM versions ORDER BY 1")]

    def weights(self, version: Version) -> Arrays:
        """The weights of a version; raises CheckpointError where they are not those indexed."""
        path = self.folder / Path(version.file).name
        found, arrays = read_weights(path)
        if (found.policy, found.version, found.sha256) != (
            version.policy,
            version.version,
            version.sha256,
        ):
            raise CheckpointError(
                f"{path} holds version {found.version} of {found.policy!r} with another checksum "
                f"than the index: remove {self.folder / _INDEX}, it is made again from the files"
            )
        return arrays

    def repair(self) -> list[str]:
        """Make index and files agree: what was found to be wrong, in words. For the owner alone.

        Files that the index does not know (or knows otherwise) are indexed by their headers; entries
        without a file are removed, and so are files that were never finished.
        """
        for path in self.folder.glob(".*.writing"):
            path.unlink(missing_ok=True)
        return self._index_files() if self.exists else []

    def _index_files(self) -> list[str]:
        """Make the index agree with the files, which are left alone: a run may be writing one."""
        notes, found = [], {}
        for path in sorted(self.folder.glob("*.safetensors")):
            try:
                version = read_weights(path)[0]
                found[version.policy, version.version] = version
            except CheckpointError as error:
                notes.append(str(error))
        with self._write() as db:
            known = {(v.policy, v.version): v for v in _versions(db, "1", [], None)}
            for key in known.keys() - found.keys():
                notes.append(f"the file of version {key[1]} of {key[0]!r} is gone or unusable")
                for table in ("versions", "tags"):
                    db.execute(f"DELETE FROM {table} WHERE policy = ? AND version = ?", key)
        for key, version in sorted(found.items()):
            if key not in known or known[key].sha256 != version.sha256:
                self.add(version)
        return notes

    def _remove(self, query: str, values: list[Any]) -> list[int]:
        """Remove untagged versions of a query for (version, file), files last."""
        with self._write() as db:
            rows = db.execute(
                f"{query} AND NOT EXISTS (SELECT 1 FROM tags WHERE tags.policy = versions.policy "
                "AND tags.version = versions.version)",
                values,
            ).fetchall()
            for number, _ in rows:
                db.execute(
                    "DELETE FROM versions WHERE policy = ? AND version = ?", [values[0], number]
                )
        for _, file in rows:
            (self.folder / file).unlink(missing_ok=True)
        return sorted(number for number, _ in rows)

    def _select(self, condition: str, values: list[Any], limit: int | None) -> list[Version]:
        with self._read() as db:
            return _versions(db, condition, values, limit)

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        if not self.exists:
            raise ConfigError(
                f"there are no versions in {self.folder}: a run keeps those it evaluates, also "
                "while it trains with --evaluation.count 1"
            )
        if not (self.folder / _INDEX).is_file():
            self._index_files()
        path = (self.folder / _INDEX).resolve()
        with self._connected(f"file:{quote(str(path))}?mode=ro", uri=True) as db:
            yield db

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it or nothing."""
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"{self.folder} cannot be written: {error}") from error
        with self._connected(str(self.folder / _INDEX), uri=False) as db:
            db.executescript(_TABLES)
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    db.execute("ROLLBACK")
                raise

    @contextmanager
    def _connected(self, database: str, *, uri: bool) -> Iterator[sqlite3.Connection]:
        path = self.folder / _INDEX
        try:
            with closing(
                sqlite3.connect(database, timeout=_BUSY_SECONDS, isolation_level=None, uri=uri)
            ) as db:
                yield db
        except OverflowError as error:
            raise ConfigError(f"there are no versions beyond {2**63 - 1}") from error
        except sqlite3.OperationalError as error:
            raise CheckpointError(f"{path} cannot be opened now: {error}") from error
        except sqlite3.Error as error:
            raise CheckpointError(
                f"{path} is damaged ({error}): remove it, it is made again from the files (without "
                "your tags)"
            ) from error


def check_tag(name: str) -> None:
    """Raise ConfigError for a tag that a user cannot set."""
    if name in (BEST, EVALUATED, LATEST):
        raise ConfigError(f"the tag {name!r} is set by the run itself: choose another")
    if not _TAG.fullmatch(name):
        raise ConfigError(
            f"a tag is a letter and then letters, digits, '_', '.' or '-' (64 at most), got {name!r}"
        )


def parse_where(expression: str) -> tuple[str, list[float]]:
    """SQL of `column op number [and ...]`, made of our own words, and the numbers beside it."""
    parts, numbers = [], []
    for part in re.split(r"\band\b", expression, flags=re.IGNORECASE):
        match = _COMPARISON.fullmatch(part)
        if match is None:
            raise ConfigError(
                f"{part.strip()!r} is no condition: write 'COLUMN < NUMBER' (or <= > >= = !=), "
                f"joined by 'and'; columns are {', '.join(COLUMNS)}"
            )
        column, comparison, number = match.groups()
        if column not in COLUMNS:
            hint = nearest(column, list(COLUMNS))
            raise ConfigError(f"there is no column {column!r}{hint} (of {', '.join(COLUMNS)})")
        parts.append(f"{COLUMNS[COLUMNS.index(column)]} {comparison} ?")
        numbers.append(float(number))
    return " AND ".join(parts), numbers


def _tag(db: sqlite3.Connection, policy: str, tag: str, version: int) -> None:
    db.execute(
        "INSERT OR REPLACE INTO tags (policy, tag, version) VALUES (?, ?, ?)",
        [policy, tag, version],
    )


def _versions(
    db: sqlite3.Connection, condition: str, values: list[Any], limit: int | None
) -> list[Version]:
    """Versions of the index, newest first. `condition` is ours: it never holds a user's text."""
    rows = db.execute(
        f"SELECT {', '.join(_FIELDS)} FROM versions WHERE {condition} "
        "ORDER BY version DESC, policy LIMIT ?",
        [*values, -1 if limit is None else limit],
    )
    return [Version(**dict(zip(_FIELDS, row, strict=True))) for row in rows]
