import itertools
import os
import shutil
import tempfile

import pytest
import zmq
from hypothesis import example, given, settings
from hypothesis import strategies as st

from srl.testing.stream_contract import eventually
from srl.transport import sockets
from srl.transport.codec import Header, Kind, pack
from srl.transport.sockets import (
    _COPIED_BYTES,
    PART_BYTES,
    Client,
    Server,
    _cut,
    join,
    join_into,
    part_sizes,
)

HELLO = Header(Kind.HELLO, 3, 1, 7, digest=b"12345678")


@pytest.fixture(scope="module")
def wires():
    """A context, and addresses nobody used before (a closing socket unlinks its path late)."""
    folder, context = tempfile.mkdtemp(prefix="srl-", dir="/tmp"), zmq.Context()
    yield ((context, f"ipc://{folder}/{number}") for number in itertools.count())
    context.destroy(linger=0)
    shutil.rmtree(folder)


@pytest.fixture
def ends(wires):
    wire = next(wires)
    server, client = Server(*wire), Client(*wire)
    yield server, client
    for end in (client, server):
        end.close()
        end.close()


def receive(endpoint, number=1):
    messages = []

    def has_come():
        messages.extend(endpoint.recv_all())
        return len(messages) >= number

    eventually(has_come, "a message")
    return messages


def test_message_and_answer_cross_with_their_frames(ends):
    server, client = ends
    assert client.send(HELLO, b"one", b"")
    (message,) = receive(server)
    assert message.header == HELLO
    assert message.frames == [b"one", b""]
    assert server.send(message.peer, Header(Kind.WELCOME, 0, 0, 0), b"two")
    (answer,) = receive(client)
    assert answer.header.kind is Kind.WELCOME
    assert answer.frames == [b"two"]
    assert answer.peer == b""


def test_receiving_never_blocks(ends):
    server, client = ends
    assert server.recv_all() == []
    assert client.recv_all() == []


def test_messages_of_one_client_keep_their_order(ends):
    server, client = ends
    for sequence in range(200):
        client.send(HELLO._replace(sequence=sequence))
    assert [m.header.sequence for m in receive(server, 200)] == list(range(200))


def test_answer_to_a_peer_nobody_knows_is_not_sent(ends):
    assert not ends[0].send(b"nobody", HELLO)


def test_client_finds_a_restarted_server(wires):
    wire = next(wires)
    server, client = Server(*wire), Client(*wire)
    monitor = client.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    client.send(HELLO)
    receive(server)
    server.close()
    assert monitor.poll(20_000)
    client.send(HELLO._replace(sequence=8))
    server = Server(*wire)
    (message,) = receive(server)
    assert message.header.sequence == 8
    client.socket.disable_monitor()
    monitor.close()
    client.close()
    server.close()


def test_full_queue_is_said_and_not_waited_for(wires):
    client = Client(*next(wires))
    client.socket.setsockopt(zmq.LINGER, 0)
    sent = [client.send(HELLO) for _ in range(3000)]
    assert sent[0]
    assert not sent[-1]
    client.close()


def test_flood_is_received_in_parts(ends, monkeypatch):
    monkeypatch.setattr(sockets, "_MOST_AT_ONCE", 10)
    server, client = ends
    for number in range(40):
        client.socket.send_multipart([pack(HELLO)] if number % 2 else [b"junk"])
    eventually(lambda: server.socket.poll(0), "the first")
    heard = []
    while server.rejected < 20:
        before = server.rejected
        messages = server.recv_all()
        assert len(messages) + server.rejected - before <= 10
        heard += messages
    heard += receive(server, 1) if len(heard) < 20 else []
    assert len(heard) == 20


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.binary(max_size=80), min_size=1, max_size=3), min_size=1, max_size=5))
def test_foreign_bytes_are_dropped_and_counted(wires, foreign):
    wire = next(wires)
    server, client = Server(*wire), Client(*wire)
    for parts in foreign:
        client.socket.send_multipart(parts)
    client.send(HELLO)
    (message,) = receive(server)
    assert message.header == HELLO
    assert server.rejected == len(foreign)
    for parts in foreign:
        server.socket.send_multipart([message.peer, *parts])
    server.send(message.peer, HELLO)
    assert [m.header for m in receive(client)] == [HELLO]
    assert client.rejected == len(foreign)
    client.close()
    server.close()


def test_a_small_frame_travels_in_one_part_with_its_header_and_a_large_one_does_not(ends):
    server, client = ends
    large = bytes(_COPIED_BYTES + 1)
    for frame, num_parts in ((b"small", 1), (large, 2)):
        client.send(HELLO, frame)
        eventually(lambda: server.socket.poll(0), "a message")
        _, *parts = server.socket.recv_multipart()
        assert len(parts) == num_parts
        assert b"".join(parts) == pack(HELLO) + frame
        assert server.parse([b"peer", *parts]) == (b"peer", HELLO, [frame])


@pytest.mark.parametrize("changed", [(0, 88), (3, 1), (4, 99)], ids=["magic", "format", "kind"])
def test_header_that_is_not_ours_is_dropped_and_counted(ends, changed):
    server, client = ends
    data = bytearray(pack(HELLO))
    data[changed[0]] = changed[1]
    client.socket.send_multipart([bytes(data)])
    eventually(lambda: not server.recv_all() and server.rejected == 1, "a rejection")


@given(st.integers(0, 5 * PART_BYTES))
@example(0)
@example(PART_BYTES)
@example(3 * PART_BYTES)
@example(3 * PART_BYTES + 1)
def test_parts_are_whole_but_for_the_last_and_add_up(num_bytes):
    *whole, last = part_sizes(num_bytes)
    assert set(whole) <= {PART_BYTES}
    assert sum(whole) + last == num_bytes
    assert 0 < last <= PART_BYTES or num_bytes == 0


@pytest.mark.parametrize(
    "num_bytes", [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES]
)
def test_large_frame_crosses_in_parts_both_ways(ends, num_bytes):
    server, client = ends
    data = os.urandom(num_bytes)
    sizes = [2, *part_sizes(num_bytes), 3]
    client.send(HELLO, b"in", memoryview(data), b"out")
    (message,) = receive(server)
    server.send(message.peer, HELLO, b"in", data, b"out")
    (answer,) = receive(client)
    for frames in (message.frames, answer.frames):
        assert [len(frame) for frame in frames] == sizes
        assert bytes(join(frames[1:-1])) == data
        target = bytearray(num_bytes)
        join_into(memoryview(target), frames[1:-1])
        assert target == data


def test_parts_are_not_copied_before_they_are_sent():
    data = bytearray(2 * PART_BYTES + 1)
    parts = _cut(memoryview(data))
    data[-1] = 7
    assert [len(part) for part in parts] == part_sizes(len(data))
    assert parts[-1][0] == 7
