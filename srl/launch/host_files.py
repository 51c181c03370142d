"""The controller's side of hosts that do not see the run folder: it writes there what they send.

A file is there when it is whole; logs grow. A host can name what its workers write, and nothing else: no
message writes, or reads, outside the folder.
"""

import contextlib
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from srl.launch.graph.plan import Plan
from srl.transport.control import (
    Evaluated,
    FileData,
    FileTaken,
    FileWanted,
    Message,
    Saved,
    SaveFailed,
)

log = logging.getLogger(__name__)

_NAME = r"[A-Za-z0-9][A-Za-z0-9_.%-]*"
_LOG = re.compile(rf"logs/{_NAME}\.log")
_WRITTEN = re.compile(rf"(errors|versions|checkpoints/\.[0-9]{{8}}\.writing)/{_NAME}")
_READ = re.compile(rf"(checkpoints/[0-9][0-9.]*|pinned/{_NAME}/[0-9]+)/{_NAME}")
_PIECE = 1 << 20
"""Bytes of a file that a host gets at once."""
_SYNC = 16 << 20
"""Bytes after which the disk is waited for: one wait for all of a large file would be long."""


class _Line(Protocol):
    def send(self, message: Message) -> None: ...


@dataclass
class _Open:
    """A file that is being sent."""

    name: str
    file: BinaryIO
    aside: Path
    unsynced: int = 0


class HostFiles:
    """Keeps what hosts send, and gives them what they need."""

    def __init__(self, plan: Plan, folder: Path, lines: Mapping[int, _Line]) -> None:
        """Write to the run folder `folder`, and answer over the hosts' lines."""
        self.far = set[int]()
        """Hosts that do not see the folder."""
        self._plan = plan
        self._folder = folder
        self._lines = lines
        self._open: dict[int, _Open] = {}
        """Host to the file that it sends: one after another."""
        self._failed: dict[str, str] = {}
        """File to why it could not be written."""

    def hear(self, messages: Sequence[Message]) -> list[Message]:
        """Do what is about files; what is left."""
        rest: list[Message] = []
        for message in messages:
            if isinstance(message, FileData):
                self._take(message)
                self._answer(message.host, FileTaken(len(message.data)))
            elif isinstance(message, FileWanted):
                self._answer(message.host, self._read(message))
            else:
                rest.append(self._check(message))
        return rest

    def forget(self, host: int) -> None:
        """A host is gone: what it sent of a file is of no use."""
        if (begun := self._open.pop(host, None)) is not None:
            _abandon(begun)

    def close(self) -> None:
        """Remove what never became whole; may be called twice."""
        for host in [*self._open]:
            self.forget(host)

    def _answer(self, host: int, message: Message) -> None:
        if (line := self._lines.get(host)) is not None:
            line.send(message)

    def _take(self, piece: FileData) -> None:
        try:
            if _LOG.fullmatch(piece.name):
                with (self._folder / piece.name).open("ab") as file:
                    file.write(piece.data)
            elif _WRITTEN.fullmatch(piece.name):
                self._write(piece)
            else:
                log.warning("host %d may not write %r", piece.host, piece.name)
        except OSError as error:  # a full disk; or a checkpoint that was given up
            self._failed[piece.name] = str(error)
            self.forget(piece.host)

    def _write(self, piece: FileData) -> None:
        begun = self._open.get(piece.host)
        if begun is None or begun.name != piece.name:
            self.forget(piece.host)
            path = self._folder / piece.name
            aside = path.with_name(f".{path.name}.writing")
            begun = self._open[piece.host] = _Open(piece.name, aside.open("wb"), aside)
            self._failed.pop(piece.name, None)
        begun.file.write(piece.data)
        begun.unsynced += len(piece.data)
        if piece.is_last or begun.unsynced >= _SYNC:
            begun.unsynced = 0
            begun.file.flush()
            os.fsync(begun.file.fileno())
        if piece.is_last:
            del self._open[piece.host]
            begun.file.close()
            begun.aside.replace(self._folder / piece.name)

    def _read(self, wanted: FileWanted) -> FileData:
        """A piece of a file; none, and the last, where it is not there."""
        data, is_last = b"", True
        if _READ.fullmatch(wanted.name):
            with contextlib.suppress(OSError), (self._folder / wanted.name).open("rb") as file:
                file.seek(wanted.offset)
                data = file.read(_PIECE)
                is_last = wanted.offset + len(data) >= os.fstat(file.fileno()).st_size
        else:
            log.warning("host %d may not read %r", wanted.host, wanted.name)
        return FileData(wanted.host, wanted.name, data, is_last)

    def _check(self, message: Message) -> Message:
        """A message that speaks of a file is true when the file is here."""
        if not isinstance(message, Saved | Evaluated):
            return message
        if self._plan.host_of(message.worker) not in self.far:
            return message
        if isinstance(message, Evaluated):
            name = f"versions/{message.result.file}"
            if message.result.file and not (self._folder / name).is_file():
                return msgspec.structs.replace(message, result=message.result._replace(file=""))
            return message
        name = f"checkpoints/.{message.serial:08d}.writing/{message.part.file}"
        with contextlib.suppress(OSError):
            if (self._folder / name).stat().st_size == message.part.bytes:
                return message
        reason = self._failed.get(name, f"{message.part.file} did not arrive")
        return SaveFailed(message.worker, message.serial, reason)


def _abandon(begun: _Open) -> None:
    with contextlib.suppress(OSError):
        begun.file.close()
    with contextlib.suppress(OSError):
        begun.aside.unlink()
