import socket
import struct

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from srl.core.errors import StreamError
from srl.core.telemetry import EvaluatedVersion, Note
from srl.transport.control import (
    Accounts,
    Backup,
    Begin,
    Channel,
    Configure,
    Copied,
    Enlist,
    Evaluated,
    Examination,
    Examine,
    Examined,
    Failure,
    FileData,
    FileTaken,
    FileWanted,
    Message,
    Noted,
    Part,
    Preempted,
    Prepared,
    Ready,
    Report,
    Reports,
    Restart,
    Restarted,
    Retire,
    Save,
    Saved,
    SaveFailed,
    StartNode,
    Stop,
    Stopped,
    channel_pair,
)

SAVED = Saved(
    "trainer-0",
    3,
    Part("state-trainer-0.safetensors", "ab" * 32, 2**40, ("trainer-0",)),
    {"main": 42},
    {"main": {"sent": 3}},
)
MESSAGES = [
    Configure(b"plan", "actor-0", {"samples/main": (5, 64)}, "/tmp/x", ["/path"], 2, "checkpoint"),
    StartNode(b"plan", {"samples/main": 4096}, ["actor-0"], {}, "/logs", "/tmp/x", ["/path"]),
    Prepared({"samples/main/0/0": "tcp://127.0.0.1:1"}),
    Begin({"samples/main/0/0": "tcp://127.0.0.1:1"}),
    Stop(),
    Stop(Save(3, "/run/checkpoints/.00000003.writing")),
    Save(3, "/run/checkpoints/.00000003.writing"),
    Copied("trainer-0", 3),
    SAVED,
    SaveFailed("trainer-0", 3, "No space left on device"),
    Ready("actor-0", 123, 0.5, 40.0, has_torch=False),
    Report("actor-0", 2, {"env_steps": 2**40}, {"env": 0.5}, [(1.5, 7, "main")], [{"loss": 0.1}]),
    Reports([Report("actor-0", counters={"env_steps": 3}), Report("actor-1", 2)]),
    Restart(["trainer-0", "trainer-1"], 3, "checkpoint"),
    Restarted(["actor-0"], {"main": {"sent": 3}}),
    Retire(3),
    Enlist(3),
    FileData(1, "logs/actor-0.log", b"\x00line", is_last=True),
    FileTaken(2**40),
    FileWanted(1, "checkpoints/00000042/manifest.json", 2**40),
    Backup("/run/checkpoints", 3, b"{}"),
    Examine(),
    Examined({"actor-0": Examination(7, "S", 0.5, "Thread ...")}, {"main": 3}, ["samples/main"]),
    Preempted("actor-0"),
    Evaluated("evaluator-0", EvaluatedVersion("main", 3, 1.5, 0.5, 20, 1e9, "ab" * 32, "x")),
    Noted("actor-0", Note("env 3 raised", "Traceback ...", (("repro-env-3.json", "{}"),))),
    Failure("actor-0", "it broke", "Traceback ...", is_user_error=True),
    Accounts({"main": {"sent": 3}}),
    Stopped({"main": {"sent": 3}}),
]


@pytest.fixture
def ends():
    mine, theirs = channel_pair()
    yield mine, theirs
    mine.close()
    theirs.close()


def frame(data):
    return struct.pack("<I", len(data)) + data


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_message_arrives_as_it_was_sent(ends, message):
    mine, theirs = ends
    other = Channel(theirs)
    mine.send(message)
    assert other.recv_all() == [message]
    other.send(message)
    assert mine.recv_all() == [message]


def test_every_kind_of_message_is_covered():
    assert {type(m) for m in MESSAGES} == set(Message.__args__)


def test_nothing_arrived_is_an_empty_list_and_not_an_end(ends):
    mine, _ = ends
    assert mine.recv_all() == []
    assert not mine.closed


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(1, 40), max_size=60))
def test_messages_survive_any_fragmentation(cuts):
    mine, theirs = channel_pair()
    data = b"".join(frame(msgspec.msgpack.encode(m)) for m in MESSAGES)
    received = []
    for size in [*cuts, len(data)]:
        if not data:
            break
        theirs.sendall(data[:size])
        data = data[size:]
        received += mine.recv_all()
    assert received == MESSAGES
    mine.close()
    theirs.close()


def test_end_of_the_stream_closes_after_the_last_message(ends):
    mine, theirs = ends
    theirs.sendall(frame(msgspec.msgpack.encode(Stop())) + b"\x05\x00")
    theirs.close()
    assert mine.recv_all() == [Stop()]
    assert mine.closed
    mine.send(Stop())  # to nobody, without an error


def test_sending_to_a_peer_that_is_gone_closes(ends):
    mine, theirs = ends
    theirs.close()
    mine.send(Stop())
    mine.send(Stop())
    assert mine.closed


def test_oversized_message_is_refused_before_it_is_read(ends):
    mine, theirs = ends
    theirs.sendall(struct.pack("<I", 1 << 31))
    with pytest.raises(StreamError, match="2147483648 bytes"):
        mine.recv_all()


MALFORMED = {
    "empty": b"",
    "no message": msgspec.msgpack.encode([1, 2]),
    "unknown kind": msgspec.msgpack.encode({"type": "Exec", "code": "boom()"}),
    "wrong type": msgspec.msgpack.encode({"type": "Ready", "worker": 3}),
    "missing field": msgspec.msgpack.encode({"type": "Saved", "worker": "a"}),
    "bad text": b"\x83\xa4type\xa5Saved\xa6worker\xa2\xff\xff\xa4path\xa1a",
    "deep": b"\x82\xa4type\xa4Stop\xa3zzz" + b"\x91" * 100_000 + b"\xc0",
    "pickle": b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94.",
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_message_is_refused_and_nothing_else_happens(ends, data):
    mine, theirs = ends
    theirs.sendall(frame(data))
    with pytest.raises(StreamError, match="malformed control message"):
        mine.recv_all()


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_messages_or_are_refused(data):
    mine, theirs = channel_pair()
    theirs.sendall(data)
    try:
        for message in mine.recv_all():
            assert isinstance(message, tuple(Message.__args__))
    except StreamError:
        pass
    finally:
        mine.close()
        theirs.close()


def test_channel_from_an_inherited_descriptor(ends):
    mine, theirs = ends
    other = Channel.from_fd(theirs.detach())
    mine.send(Stop())
    assert other.recv_all() == [Stop()]
    assert other.fileno() >= 0
    other.close()
    other.close()
    assert isinstance(theirs, socket.socket)


def test_recv_first_keeps_what_came_after_it(ends):
    mine, theirs = ends
    other = Channel(theirs)
    start = MESSAGES[1]
    for message in (start, Stop(), SAVED):
        other.send(message)
    assert mine.recv_first(StartNode) == start
    assert mine.recv_all() == [Stop(), SAVED]
    assert mine.recv_first(StartNode) is None
