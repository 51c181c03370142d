import os
from contextlib import ExitStack, closing

import numpy as np
import pytest
import zmq

from srl.core.spec import Field, Spec
from srl.streams.parameters.shm import ShmPublisher, ShmSubscriber, parameter_arena_bytes
from srl.streams.parameters.tcp import ParameterSink, ParameterSource
from srl.testing.stream_contract import eventually
from srl.transport import sockets
from srl.transport.arena import Arena
from srl.transport.codec import Header, Kind, pack
from srl.transport.keys import Doorkeeper, make_keys
from srl.transport.listener import address_of, listen
from srl.transport.sockets import Client, Server
from tests.slow_link import SlowLink
from tests.streams.test_contract import TcpParameterHarness


@pytest.fixture
def hosts():
    with closing(TcpParameterHarness()) as harness:
        yield harness


def test_only_tensors_that_changed_are_sent(hosts):
    weights = hosts.weights(1)
    hosts.publisher().publish(weights, 0)
    assert hosts.source.tensors_sent == 2  # "empty" has no bytes
    weights["count"] += 1
    hosts.publisher().publish(weights, 1)
    assert hosts.source.tensors_sent == 3
    hosts.publisher().publish(weights, 2)
    assert hosts.source.tensors_sent == 3
    version, fetched = hosts.subscriber().fetch()
    assert version == 2
    assert all(np.array_equal(fetched[name], weights[name]) for name in weights)


def test_tensors_that_are_not_a_number_count_as_unchanged(hosts):
    weights = hosts.weights(1)
    weights["big"][:] = np.nan
    hosts.publisher().publish(weights, 0)
    before = hosts.source.tensors_sent
    hosts.publisher().publish(weights, 1)
    assert hosts.source.tensors_sent == before


def test_version_whose_weights_were_lost_is_asked_for_again(hosts):
    hosts.publisher().publish(hosts.weights(1), 0)
    hosts._publisher.publish(hosts.weights(2), 1)
    send, lost = hosts.source._server.send, []

    def lose_first(peer, header, *frames):
        if header.kind is Kind.WEIGHTS and not lost:
            lost.append(header)
            return True
        return send(peer, header, *frames)

    hosts.source._server.send = lose_first
    hosts._publish(hosts.weights(2), 1)
    assert lost
    assert hosts.subscriber().latest() == 1


@pytest.mark.parametrize(
    "frames", [(), (b"1234567",), (bytes(8),), (bytes(8), b"short"), (b"\xff" * 8, b"")]
)
def test_weights_that_are_not_alike_change_nothing(hosts, frames):
    hosts.publisher().publish(hosts.weights(1), 0)
    (peer,) = hosts.source._peers
    digest = hosts.source._digest
    hosts.source._server.send(peer, Header(Kind.WEIGHTS, 0, 0, 0, 7, 0, digest=digest), *frames)

    def is_counted():
        hosts.sink.step()
        return hosts.sink._client.rejected == 1

    eventually(is_counted, "the foreign message")
    assert hosts.subscriber().latest() == 0
    hosts.publisher().publish(hosts.weights(2), 1)


PART = 1000
SIZES = [PART] * 8 + [400]
"""Of the parts of the first tensor, then the second has 8 bytes."""


@pytest.mark.parametrize(
    ("numbers", "sizes"),
    [
        pytest.param((0, 1), [*SIZES, 8], id="sound"),
        pytest.param((0, 1), [8400, 8], id="whole"),
        pytest.param((0, 1), [*SIZES[1:], 8], id="missing part"),
        pytest.param((0, 1), [*SIZES[:-1], 8], id="missing end"),
        pytest.param((0, 1), [*SIZES[:-1], 399, 8], id="short end"),
        pytest.param((0, 1), [PART, *SIZES, 8], id="surplus part"),
        pytest.param((0, 1), [*SIZES, 8, 8], id="surplus tensor"),
        pytest.param((0, 1), [*SIZES], id="missing tensor"),
        pytest.param((0, 1), [8, *SIZES], id="another order"),
        pytest.param((0, 1), [*SIZES[:-1], 200, 200, 8], id="smaller parts"),
        pytest.param((1, 1), [8, 8], id="the same tensor twice"),
    ],
)
def test_parts_that_are_not_those_of_the_tensors_change_nothing(monkeypatch, numbers, sizes):
    monkeypatch.setattr(sockets, "PART_BYTES", PART)
    with closing(TcpParameterHarness()) as hosts:
        hosts.publisher().publish(hosts.weights(1), 0)
        kept = {name: array.copy() for name, array in hosts.subscriber().fetch()[1].items()}
        header = Header(Kind.WEIGHTS, 0, 0, 0, 7, 0, digest=hosts.source._digest)
        which = np.array(numbers, np.int64).tobytes()
        parts = [pack(header), which, *(b"\1" * size for size in sizes)]
        hosts.sink._on_message(hosts.sink._client.parse(parts))
        is_sound = sizes == [*SIZES, 8]
        assert hosts.sink._client.rejected == (0 if is_sound else 1)
        version, weights = hosts.subscriber().fetch()
        assert version == (7 if is_sound else 0)
        if is_sound:
            assert set(weights["big"].tobytes()) == {1}
        else:
            assert all(np.array_equal(weights[name], kept[name]) for name in kept)


@pytest.fixture
def slow(monkeypatch):
    """A source and a sink with a link between them on which a tensor takes much longer than the silence that is a loss."""
    monkeypatch.setattr(sockets, "_HEARTBEAT_MILLISECONDS", 100)
    monkeypatch.setattr(sockets, "_SILENCE_MILLISECONDS", 800)
    monkeypatch.setattr(sockets, "_PATIENCE_MILLISECONDS", 800, raising=False)
    with ExitStack() as stack:
        yield SlowHosts(stack)


class SlowHosts:
    def __init__(self, stack):
        spec = Spec((Field("large", (1_200_000,), "float32", "env"), Field("b", (3,), "float32")))
        context, keys = zmq.Context(), make_keys()
        stack.callback(context.destroy, linger=0)
        keeper = stack.enter_context(closing(Doorkeeper(context, keys)))
        listener = stack.enter_context(closing(listen("127.0.0.1")))
        address, arenas = address_of(listener), []
        for name in ("near", "far"):
            arena = Arena.create(name, parameter_arena_bytes(spec))
            arenas.append(stack.enter_context(closing(arena)).buffer)
        self.link = stack.enter_context(closing(SlowLink(address, bytes_per_second=2e6)))
        self.publisher = ShmPublisher(arenas[0], spec)
        server = Server(context, address, keeper=keeper, listener=os.dup(listener.fileno()))
        client = Client(context, self.link.address, keys=keys)
        self.source = ParameterSource(ShmSubscriber(arenas[0], spec), spec, server)
        self.sink = ParameterSink(ShmPublisher(arenas[1], spec), spec, client)
        self.far = ShmSubscriber(arenas[1], spec)
        for end in (self.source, self.sink):
            stack.callback(end.close)

    def publish(self, value, version):
        self.publisher.publish(
            {"large": np.full(1_200_000, value, np.float32), "b": np.zeros(3, np.float32)}, version
        )

    def until(self, is_done, what):
        def has_come():
            self.source.step()
            self.sink.step()
            self.sink._client.socket.poll(10)
            return is_done()

        eventually(has_come, what, 20.0)


def test_tensor_that_takes_longer_than_the_silence_of_a_lost_connection_arrives_at_once(slow):
    slow.publish(2.5, 3)
    slow.until(lambda: slow.sink.version == 3, "the version")
    version, weights = slow.far.fetch()
    assert version == 3
    assert (weights["large"] == 2.5).all()
    assert slow.link.connections == 1
    assert slow.source.tensors_sent == 2


def test_version_whose_connection_is_cut_halfway_is_not_shown_and_begins_anew(slow):
    slow.publish(1.5, 0)
    slow.until(lambda: slow.link.back > 1_500_000, "a part of the tensor")
    assert slow.sink.version == slow.far.latest() == -1
    slow.link.cut()
    slow.until(lambda: slow.sink.version == 0, "the version")
    assert (slow.far.fetch()[1]["large"] == 1.5).all()
    assert slow.link.connections == 2
    assert slow.sink._client.rejected == 0
