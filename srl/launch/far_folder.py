"""The folder of a host that does not see the run's: what its workers write there goes to the controller.

The link of the host has it, between the agent's messages and the line. Logs and errors are sent as they
come; what a message speaks of, a part of a checkpoint or a version, is sent before that message. What an
order speaks of, a checkpoint to go on from, is fetched before the agent sees the order. Paths of the one
folder become paths of the other, so that nobody on the host knows of this.

Files wait for the controller to take them, `_WINDOW` bytes at a time; messages go between their pieces.
"""

import contextlib
import json
import shutil
import time
from collections import deque
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from srl.launch.host.socket_folder import make_socket_folder
from srl.transport.control import (
    Backup,
    Evaluated,
    Failure,
    FileData,
    FileTaken,
    FileWanted,
    Framing,
    Message,
    Noted,
    Restart,
    Save,
    Saved,
    StartNode,
    Stop,
    Stopped,
)

_PIECE = 128 << 10
_WINDOW = 2 << 20
"""Bytes that may be on their way: a message behind them waits for no more."""
_LOOK_SECONDS = 0.5


class FarFolder:
    """A folder for this user alone, in the place of the run's, as long as the link lives."""

    def __init__(self, theirs: str, host: int) -> None:
        """Be what `theirs`, the run folder, is for others; for the host of this number."""
        self.path = (
            make_socket_folder()
        )  # known by its owner: should that be killed, it is swept up
        for name in ("logs", "errors", "versions", "checkpoints"):
            (self.path / name).mkdir()
        self._theirs = theirs
        self._host = host
        self._inward, self._outward = Framing(), Framing()
        self._leaving: deque[_Leaving | Message] = deque()
        """Files to send, and the messages that come after them."""
        self._sent: dict[str, int] = {}
        """Log or error to its bytes that are sent, or wait to be."""
        self._on_the_way = 0
        self._look_at = 0.0
        self._waiting: deque[Message] = deque()
        """Orders that the agent has not seen."""
        self._fetches: deque[_Fetch] = deque()
        """Files that the first of them needs."""
        self._has_fetched = False
        self._state: Path | None = None
        """The checkpoint that was fetched last."""
        self._num_states = 0
        self._going_on = frozenset[str]()
        """Workers of this host that need one."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits to be sent, or is on its way."""
        return not self._leaving and self._on_the_way <= 0

    def inward(self, data: bytes) -> tuple[bytes, bytes]:
        """Of what the controller has sent: what the agent is to see; what is to be answered."""
        self._inward.feed(data)
        answer = b""
        for message in self._inward.parse():
            if isinstance(message, FileTaken):
                self._on_the_way -= message.bytes
            elif isinstance(message, FileData):
                answer += self._arrived(message)
            elif not isinstance(message, Backup):  # alone, it could not keep a checkpoint
                self._waiting.append(message)
        orders = b""
        while self._waiting and not self._fetches:
            if not self._has_fetched and (ask := self._fetch_for(self._waiting[0])):
                answer += ask
                break
            orders += self._inward.bytes_of(self._ordered(self._waiting.popleft()))
            self._has_fetched = False
        return orders, answer

    def outward(self, data: bytes) -> bytes:
        """What the controller is to get, now that the agent has sent this."""
        self._outward.feed(data)
        now = b""
        for message in self._outward.parse():
            files = self._files_of(message)
            if isinstance(message, Stopped):
                self._look()
            if files or isinstance(message, Stopped):
                self._leaving += [*files, message]
            else:
                now += self._outward.bytes_of(self._told(message))
        if not self._leaving and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_SECONDS
            self._look()
        return now + self._pieces()

    def finish(self) -> None:
        """Nobody writes any more: have the rest sent, too."""
        self._look()

    def close(self) -> None:
        """Remove it; may be called twice."""
        for leaving in self._leaving:
            if isinstance(leaving, _Leaving):
                leaving.close()
        self._leaving.clear()
        shutil.rmtree(self.path, ignore_errors=True)

    def _look(self) -> None:
        """Have sent what is new of logs and errors."""
        for path in (*self.path.glob("logs/*.log"), *self.path.glob("errors/[!.]*")):
            name = f"{path.parent.name}/{path.name}"
            is_new, sent = name not in self._sent, self._sent.get(name, 0)
            with contextlib.suppress(OSError):
                size = path.stat().st_size
                if is_new or (path.parent.name == "logs" and size > sent):
                    self._sent[name] = size
                    self._leaving.append(_Leaving(name, path, sent, size))

    def _files_of(self, message: Message) -> list["_Leaving"]:
        """What must be there before a message is true."""
        if isinstance(message, Saved):
            folder, file = f"checkpoints/.{message.serial:08d}.writing", message.part.file
        elif isinstance(message, Evaluated) and message.result.file:
            folder, file = "versions", message.result.file
        else:
            return []
        path = self.path / folder / file
        with contextlib.suppress(OSError):
            return [_Leaving(f"{folder}/{file}", path, 0, path.stat().st_size, is_moved=True)]
        return []

    def _pieces(self) -> bytes:
        """As much of what leaves as may be on its way."""
        found = bytearray()
        while self._leaving:
            first = self._leaving[0]
            if not isinstance(first, _Leaving):
                found += self._outward.bytes_of(first)
                self._leaving.popleft()
                continue
            if self._on_the_way >= _WINDOW:
                break
            data, is_last = first.read()
            if first.name.startswith("logs/"):
                data = data.replace(str(self.path).encode(), self._theirs.encode())
            self._on_the_way += len(data)
            if data or is_last:
                piece = FileData(self._host, first.name, data, is_last)
                found += self._outward.bytes_of(piece)
            if first.is_over:
                first.close()
                self._leaving.popleft()
        return bytes(found)

    def _fetch_for(self, message: Message) -> bytes:
        """Begin to fetch what an order needs; empty: it needs nothing."""
        if isinstance(message, StartNode):
            plan = msgspec.json.decode(message.plan)
            kinds = {worker["name"]: worker["kind"] for worker in plan["workers"]}
            going_on = ("trainer", "buffer")
            self._going_on = frozenset(n for n in message.workers if kinds[n] in going_on)
            for route in plan["routes"]:
                for number in range(len(route.get("opponents", ()))):
                    for file in ("opponent.json", "weights.safetensors"):
                        self._fetch(f"pinned/{route['policy']}/{number}/{file}")
        if isinstance(message, StartNode | Restart) and message.state is not None:
            names = message.workers if isinstance(message, Restart) else self._going_on
            if not self._going_on.isdisjoint(names):
                self._num_states += 1
                self._state = self.path / "state" / str(self._num_states)
                shutil.rmtree(self._state.with_name(str(self._num_states - 2)), ignore_errors=True)
                self._fetch(f"checkpoints/{Path(message.state).name}/manifest.json", self._state)
        return self._ask()

    def _fetch(self, name: str, to: Path | None = None) -> None:
        path = self.path / name if to is None else to / Path(name).name
        self._fetches.append(_Fetch(name, path))

    def _ask(self) -> bytes:
        """For the next piece."""
        if not self._fetches:
            return b""
        first = self._fetches[0]
        return self._inward.bytes_of(FileWanted(self._host, first.name, first.offset))

    def _arrived(self, piece: FileData) -> bytes:
        """Keep a piece that was asked for, and ask for the next."""
        if not self._fetches or piece.name != self._fetches[0].name:
            return b""
        first = self._fetches[0]
        first.write(piece.data)
        if piece.is_last:
            self._fetches.popleft()
            self._has_fetched = not self._fetches
            if first.path.name == "manifest.json":
                folder = Path(first.name).parent
                for file in _parts(first.path):
                    self._fetch(f"{folder}/{file}", first.path.parent)
                self._has_fetched = not self._fetches
        return self._ask()

    def _ordered(self, message: Message) -> Message:
        """An order with paths of this host."""
        change = msgspec.structs.replace
        state = None if self._state is None else str(self._state)
        if isinstance(message, StartNode):
            plan = msgspec.json.decode(message.plan) | {"folder": str(self.path)}
            logs = str(self.path / "logs")
            return change(message, plan=msgspec.json.encode(plan), log_folder=logs, state=state)
        if isinstance(message, Restart):
            return change(message, state=state)
        if isinstance(message, Save):
            return self._save(message)
        if isinstance(message, Stop) and message.save is not None:
            return Stop(self._save(message.save))
        return message

    def _save(self, order: Save) -> Save:
        aside = self.path / "checkpoints" / Path(order.folder).name
        with contextlib.suppress(OSError):  # who writes there will say so
            aside.mkdir(exist_ok=True)
        return Save(order.serial, str(aside))

    def _told(self, message: Message) -> Message:
        """What is said of files, with the paths where they will be."""
        here, there = str(self.path), self._theirs
        if isinstance(message, Failure):
            words, traceback = (
                t.replace(here, there) for t in (message.message, message.traceback)
            )
            return msgspec.structs.replace(message, message=words, traceback=traceback)
        if isinstance(message, Noted):
            words = message.note.message.replace(here, there)
            return Noted(message.worker, message.note._replace(message=words))
        return message


class _Leaving:
    """A file, or the new end of a log, that is to be sent."""

    def __init__(
        self, name: str, path: Path, start: int, end: int, *, is_moved: bool = False
    ) -> None:
        self.name = name
        self.is_over = False
        self._path = path
        self._left = end - start
        self._start = start
        self._is_moved = is_moved
        self._file: BinaryIO | None = None

    def read(self) -> tuple[bytes, bool]:
        """The next piece, and whether it is the last; nothing where the file is gone."""
        try:
            if self._file is None:
                self._file = self._path.open("rb")
                self._file.seek(self._start)
            data = self._file.read(min(_PIECE, self._left))
        except OSError:
            self.is_over = True
            return b"", False
        self._left -= len(data)
        is_whole = self._left == 0
        self.is_over = is_whole or not data
        return data, is_whole

    def close(self) -> None:
        """Let go of it; it is not needed here any more where others have it."""
        if self._file is not None:
            self._file.close()
        if self._is_moved and self.is_over:
            with contextlib.suppress(OSError):
                self._path.unlink()


class _Fetch:
    """A file that is wanted from the run folder."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self.offset = 0

    def write(self, data: bytes) -> None:
        """Add a piece; where the disk is full, who needs the file will say that it is damaged."""
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.write(data)
        self.offset += len(data)


def _parts(manifest: Path) -> list[str]:
    """The files of a checkpoint; none where it is damaged, as who reads it will say."""
    try:
        found: Any = json.loads(manifest.read_bytes())
        return [Path(part["file"]).name for part in found["parts"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
