"""Typed messages between controller, node agent and workers, over a socket pair.

Framed msgpack, decoded by type: nothing is ever executed.
"""

import contextlib
import socket
import struct
from typing import TypeVar

import msgspec

from srl.core.errors import StreamError
from srl.core.telemetry import EvaluatedVersion, Note
from srl.transport.keys import Keys

_LENGTH = struct.Struct("<I")
MAX_BYTES = 256 << 20
"""Of one message."""
_SEND_SECONDS = 20.0


class Network(msgspec.Struct):
    """To a worker: how to reach others over a network, and be reached."""

    keys: Keys
    addresses: dict[str, str]
    """End of a stream to where it is found."""
    listeners: dict[str, int] = {}
    """End of a stream, of this worker, to the inherited descriptor that listens there."""
    own: str = "127.0.0.1"
    """An address of this host."""


class Configure(msgspec.Struct, tag=True):
    """To a worker: what to be. Arenas are inherited descriptors, by name."""

    plan: bytes
    worker: str
    arenas: dict[str, tuple[int, int]]
    """Name to (descriptor, bytes)."""
    socket_folder: str
    python_path: list[str]
    """Where the user's modules are, beside what Python finds by itself."""
    incarnation: int
    state: str | None = None
    """Checkpoint to go on from."""
    network: Network | None = None
    """None: all streams stay on this host."""
    host: int = 0
    """The number of this host."""


class StartNode(msgspec.Struct, tag=True):
    """To a node agent: what to prepare for; `Prepared` follows, then its `Begin`."""

    plan: bytes
    arenas: dict[str, int]
    workers: list[str]
    listeners: dict[str, str]
    """End of a stream to the worker that is found there."""
    log_folder: str
    socket_folder: str
    python_path: list[str]
    state: str | None = None
    keys: Keys | None = None
    """None: all streams stay on this host."""
    host: int = 0
    """The number of this host."""
    address: str = "127.0.0.1"
    """Where it listens."""
    earlier: dict[str, str] = {}
    """End of a stream to where it was found before this host was lost: there again, if possible."""
    sent: dict[str, int] = {}
    """Policy to blocks that the actors of this host had sent when it was lost, as far as it had said."""
    is_late: bool = False
    """The run has begun: workers are started by `Restart` only."""


class Prepared(msgspec.Struct, tag=True):
    """From a node agent: it has what its workers need."""

    addresses: dict[str, str]
    """End of a stream to where it is found."""


class Begin(msgspec.Struct, tag=True):
    """To a node agent: start the workers; later, that others are found elsewhere now."""

    addresses: dict[str, str]
    """End of a stream to where it is found, on all hosts."""


class Restart(msgspec.Struct, tag=True):
    """To a node agent: end these workers where they still live, then start them again."""

    workers: list[str]
    incarnation: int
    state: str | None
    """Checkpoint that trainers go on from."""


class Restarted(msgspec.Struct, tag=True):
    """From a node agent: these workers are gone, and their next life begins."""

    workers: list[str]
    ledgers: dict[str, dict[str, int]]
    """Policy to what had become of its blocks in between."""


class Retire(msgspec.Struct, tag=True):
    """To trainers, by their node agents: this actor will not come back."""

    actor: int


class Enlist(msgspec.Struct, tag=True):
    """To trainers, by their node agents: this actor, which was not there before, has come."""

    actor: int


class Backup(msgspec.Struct, tag=True):
    """To a node agent, now and then: how to write a checkpoint should the controller be lost."""

    folder: str
    keep: int
    manifest: bytes


class Examine(msgspec.Struct, tag=True):
    """To a node agent: look at every worker; `Examined` follows."""


class Examination(msgspec.Struct, frozen=True):
    """What a worker's process is doing, seen from outside."""

    pid: int
    state: str
    """What the kernel says of it: R, S, D, T, Z ..."""
    busy: float
    """Cores it kept busy meanwhile."""
    stack: str
    """Of all its threads; empty where it did not give it."""


class Examined(msgspec.Struct, tag=True):
    """From a node agent: its workers, and how full their streams are."""

    workers: dict[str, Examination]
    unread: dict[str, int]
    """Policy to blocks that wait for its trainers."""
    streams: list[str]
    """In words."""


class Preempted(msgspec.Struct, tag=True):
    """From a worker or a node agent: the host's owner told it to go (SIGTERM)."""

    worker: str


class Stop(msgspec.Struct, tag=True):
    """Stop in order; with `save`, trainers write their parts of a checkpoint first."""

    save: "Save | None" = None


class Save(msgspec.Struct, tag=True):
    """To a writer: write its part of a checkpoint into a folder, between two batches."""

    serial: int
    """Which checkpoint of this process of the run: parts of another are not for it."""
    folder: str


class Part(msgspec.Struct, frozen=True):
    """What one writer wrote: a file of a checkpoint."""

    file: str
    sha256: str
    bytes: int
    sections: tuple[str, ...]


class Copied(msgspec.Struct, tag=True):
    """From a writer: its part holds its state of this moment; it goes on while a thread writes it."""

    worker: str
    serial: int


class SaveFailed(msgspec.Struct, tag=True):
    """From a writer: its part could not be written."""

    worker: str
    serial: int
    message: str


class Saved(msgspec.Struct, tag=True):
    """From a writer: its part is on disk."""

    worker: str
    serial: int
    part: Part
    versions: dict[str, int]
    """Policy to its version in this part."""
    ledgers: dict[str, dict[str, int]]
    """Policy to what had become of its blocks when the part was copied."""
    counts: dict[str, dict[str, int]] = {}
    """Policy to what its trainer had counted then: `env_steps`, `train_samples`, `updates`."""


class Ready(msgspec.Struct, tag=True):
    """From a worker: it is open and steps."""

    worker: str
    pid: int
    cpu_seconds: float
    resident_megabytes: float
    has_torch: bool
    incarnation: int = 1


class Report(msgspec.Struct, tag=True):
    """From a worker, several times a second, or of who came to a door. Counters and seconds are totals of this life of it."""

    worker: str
    incarnation: int = 1
    counters: dict[str, int] = {}
    seconds: dict[str, float] = {}
    episodes: list[tuple[float, int, str]] = []
    """Return, length, policy."""
    updates: list[dict[str, float]] = []
    waits_in: str = ""
    """What it waits for; empty: it has something to do."""


class Reports(msgspec.Struct, tag=True):
    """From a node agent: what its actors report, one each."""

    reports: list[Report]


class Evaluated(msgspec.Struct, tag=True):
    """From an evaluator: it has played a version and kept its weights."""

    worker: str
    result: EvaluatedVersion


class Noted(msgspec.Struct, tag=True):
    """From a worker: something went wrong and was dealt with; the run goes on."""

    worker: str
    note: Note


class Failure(msgspec.Struct, tag=True):
    """A worker raised, or died without a word."""

    worker: str
    message: str
    traceback: str
    incarnation: int = 1
    is_user_error: bool = False
    """The message is meant for the user and says all: no traceback needed."""
    is_raised: bool = False
    """The worker raised it, and was not killed."""
    is_final: bool = False
    """It would come again in another life: a wrong option, an env that cannot work."""
    is_homeless: bool = False
    """Its host is lost, and there is no other for it."""
    hung_seconds: float = 0.0
    """How long it hung before it was ended for that."""


class Accounts(msgspec.Struct, tag=True):
    """From a node agent, every second: the ledger of its arenas so far."""

    ledgers: dict[str, dict[str, int]]
    megabytes: dict[str, float] = {}
    """Worker to the memory of its own; empty where it was not looked at."""


class FileData(msgspec.Struct, tag=True):
    """A piece of a file of the run folder, from a host that does not see it; or to it, if it asked."""

    host: int
    name: str
    """Below the run folder."""
    data: bytes
    is_last: bool = False
    """The file is whole with this piece."""


class FileTaken(msgspec.Struct, tag=True):
    """To a host: so many bytes of its files are taken, and as many more may come."""

    bytes: int


class FileWanted(msgspec.Struct, tag=True):
    """From a host that does not see the run folder: it needs a file of it, from this byte on."""

    host: int
    name: str
    offset: int


class Stopped(msgspec.Struct, tag=True):
    """From a node agent, last: everything has ended; here is the ledger of its arenas."""

    ledgers: dict[str, dict[str, int]]


Message = (
    Configure
    | StartNode
    | Prepared
    | Begin
    | Restart
    | Restarted
    | Retire
    | Enlist
    | Backup
    | Examine
    | Examined
    | Preempted
    | Stop
    | Save
    | Copied
    | Saved
    | SaveFailed
    | Ready
    | Report
    | Reports
    | Evaluated
    | Noted
    | Failure
    | Accounts
    | FileData
    | FileTaken
    | FileWanted
    | Stopped
)


MessageT = TypeVar("MessageT")


class Framing:
    """Messages as bytes, one after another."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._decoder = msgspec.msgpack.Decoder(Message)
        self._encoder = msgspec.msgpack.Encoder()

    def bytes_of(self, message: Message) -> bytes:
        """What is sent of a message."""
        data = self._encoder.encode(message)
        return _LENGTH.pack(len(data)) + data

    def feed(self, data: bytes) -> None:
        """Take in bytes that have arrived."""
        self._buffer += data

    def parse(self) -> list[Message]:
        """Messages that are whole; raises StreamError where bytes are none."""
        messages, position = [], 0
        while len(self._buffer) - position >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, position)
            if length > MAX_BYTES:
                raise StreamError(f"a control message of {length} bytes")
            start = position + _LENGTH.size
            if len(self._buffer) < start + length:
                break
            try:
                messages.append(self._decoder.decode(self._buffer[start : start + length]))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise StreamError(f"malformed control message: {error}") from error
            position = start + length
        del self._buffer[:position]
        return messages


class Channel:
    """One end of a socket pair that carries messages both ways."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._framing = Framing()
        self._unread: list[Message] = []
        self.closed = False
        """The other end is gone."""

    @classmethod
    def from_fd(cls, fd: int) -> "Channel":
        """The end whose descriptor this process inherited."""
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        """Descriptor to poll on."""
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Send; a peer that is gone, or does not read for 20 s, closes the channel."""
        if self.closed:
            return
        data = self._framing.bytes_of(message)
        self._socket.settimeout(_SEND_SECONDS)
        try:
            self._socket.sendall(data)
        except OSError:
            self.closed = True

    def recv_all(self) -> list[Message]:
        """Every message that is here now; sets `closed` at the end of the stream."""
        unread, self._unread = self._unread, []
        self._socket.settimeout(0)
        while not self.closed:
            try:
                data = self._socket.recv(1 << 20)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                self.closed = True
                break
            if not data:
                self.closed = True
            self._framing.feed(data)
        return unread + self._framing.parse()

    def recv_first(self, kind: type[MessageT]) -> MessageT | None:
        """The first message of a kind, if it is here; what came after it is kept for later."""
        messages = self.recv_all()
        for index, message in enumerate(messages):
            if isinstance(message, kind):
                self._unread = messages[index + 1 :]
                return message
        return None

    def close(self) -> None:
        """Close this end; the other sees the end of the stream."""
        self.closed = True
        with contextlib.suppress(OSError):
            self._socket.close()


def channel_pair() -> tuple[Channel, socket.socket]:
    """This process's end, and the socket to hand to a child."""
    mine, theirs = socket.socketpair()
    return Channel(mine), theirs
