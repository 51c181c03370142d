"""What is lost between two hosts is sent again, in order, and delivered once."""

import os
from contextlib import ExitStack, closing

import lz4.block
import numpy as np
import pytest
import zmq

from srl.core.block import Layout
from srl.core.spec import Field, Spec
from srl.streams.samples.tcp import TcpConsumer, TcpProducer
from srl.testing.stream_contract import eventually
from srl.transport import sockets
from srl.transport.arena import Arena
from srl.transport.blocks import BlockArena, block_arena_bytes
from srl.transport.codec import Header, Kind
from srl.transport.keys import Doorkeeper, make_keys
from srl.transport.listener import address_of, listen
from srl.transport.slots import SlotTable, table_bytes
from srl.transport.sockets import Server
from tests.slow_link import SlowLink
from tests.streams.test_contract import LAYOUT, Lz4SampleHarness, TcpSampleHarness


@pytest.fixture
def hosts():
    with closing(TcpSampleHarness()) as harness:
        harness.settle()
        yield harness


def fill_and_send(hosts, value):
    producer = hosts.producer(0)
    grant = producer.acquire()
    assert grant is not None
    grant.block.buffer[:] = value
    producer.send(grant)


def received(hosts, count):
    """Blocks that arrive while both ends go on, hellos included."""
    deliveries = []

    def has_come():
        hosts.settle()
        deliveries.extend(hosts.consumer(0).recv(9))
        return len(deliveries) >= count

    eventually(has_come, f"{count} blocks")
    return [int(d.block.buffer[0]) for d in deliveries], deliveries


def test_block_that_was_lost_comes_again_and_in_order(hosts):
    hosts.consumer(0).grant({0: 3, 1: 0}, 0)
    hosts.settle()
    client = hosts.producer(0)._client
    send, lost = client.send, []

    def lose_first(header, *frames):
        if header.kind is Kind.BLOCK and not lost:
            lost.append(header)
            return True
        return send(header, *frames)

    client.send = lose_first
    for value in (1, 2, 3):
        fill_and_send(hosts, value)
    values, _ = received(hosts, 3)
    assert values == [1, 2, 3]
    assert lost
    assert hosts.consumer(0).out_of_order >= 2
    assert hosts.producer(0).resent >= 3
    assert hosts.ledger().adds_up


def test_block_that_no_queue_had_room_for_is_sent_with_the_next_credit(hosts):
    hosts.consumer(0).grant({0: 1, 1: 0}, 0)
    hosts.settle()
    producer = hosts.producer(0)
    client, hellos = producer._client, producer._hellos
    send = client.send
    client.send = lambda header, *frames: False
    fill_and_send(hosts, 4)
    client.send = send
    producer._hello_at = producer._look_at = float("inf")  # no hello is needed for it
    hosts.consumer(0).grant({0: 2, 1: 0}, 0)
    arrived = []

    def has_come():
        producer.poll()
        arrived.extend(hosts.consumer(0).recv(9))
        return arrived

    eventually(has_come, "the block")
    assert [int(d.block.buffer[0]) for d in arrived] == [4]
    assert (producer._hellos, producer.resent) == (hellos, 0)


def test_block_that_comes_twice_is_delivered_once(hosts):
    hosts.consumer(0).grant({0: 1, 1: 0}, 0)
    hosts.settle()
    fill_and_send(hosts, 7)
    hosts.producer(0)._hand_over(0, 1)
    values, _ = received(hosts, 1)
    hosts.settle()
    assert values == [7]
    assert hosts.consumer(0).recv(9) == []
    assert hosts.consumer(0).repeated_notices == 1


def test_producer_hears_once_of_all_blocks_that_were_taken(hosts):
    consumer = hosts.consumer(0)
    consumer.grant({0: 4, 1: 0}, 0)
    hosts.settle()
    for value in (1, 2, 3):
        fill_and_send(hosts, value)
    _, deliveries = received(hosts, 3)
    (server,) = consumer._servers
    send, sent = server.send, []
    server.send = lambda peer, header, *frames: (
        sent.append(header.kind) or send(peer, header, *frames)
    )
    for delivery in deliveries:
        consumer.take(delivery, dropped=False)
    assert sent == []
    consumer.recv(0)
    assert sent == [Kind.CREDIT]
    consumer.recv(0)
    assert sent == [Kind.CREDIT]
    eventually(lambda: hosts.producer(0).poll() or hosts.producer(0).acquire(), "a free slot")


class RoomyHarness(TcpSampleHarness):
    """Half of a producer's slots are two."""

    num_slots = 4


def test_producer_hears_of_half_its_slots_or_when_nothing_comes():
    with closing(RoomyHarness()) as hosts:
        hosts.settle()
        consumer = hosts.consumer(0)
        consumer.grant({0: 8, 1: 0}, 0)
        hosts.settle()
        for value in (1, 2, 3, 4):
            fill_and_send(hosts, value)
        _, deliveries = received(hosts, 4)
        (server,) = consumer._servers
        sent = []
        server.send = lambda peer, header, *frames: sent.append(header.kind)
        arrived = consumer._arrived
        consumer.take(deliveries[0], dropped=False)
        arrived.append(deliveries[3])  # something has come
        assert consumer.recv(9) == [deliveries[3]]
        assert sent == []
        consumer.take(deliveries[1], dropped=False)
        arrived.append(deliveries[3])
        assert consumer.recv(9) == [deliveries[3]]
        assert sent == [Kind.CREDIT]
        consumer.take(deliveries[2], dropped=False)
        consumer._tell_at = 0.0
        assert consumer.recv(9) == []
        assert sent == [Kind.CREDIT] * 2


@pytest.mark.parametrize("size", [0, LAYOUT.nbytes - 1, LAYOUT.nbytes + 1])
def test_block_of_another_size_is_dropped_and_counted(hosts, size):
    producer, consumer = hosts.producer(0), hosts.consumer(0)
    before, rejected = hosts._arena.buffer.copy(), consumer.rejected
    producer._client.send(producer._header(Kind.BLOCK, 0, 1, 1), bytes(size))
    producer._client.send(producer._header(Kind.BLOCK, 99, 1, 1), bytes(LAYOUT.nbytes))
    producer._client.send(producer._header(Kind.BLOCK, 0, 5, 1), bytes(LAYOUT.nbytes))
    hosts.settle()
    assert consumer.recv(9) == []
    assert consumer.rejected == rejected + 2
    assert consumer.out_of_order == 1
    assert np.array_equal(hosts._arena.buffer, before)


@pytest.mark.parametrize("make", [TcpSampleHarness, Lz4SampleHarness])
def test_packed_block_that_is_not_whole_or_not_asked_for_is_dropped_and_counted(make):
    packed = lz4.block.compress(bytes(LAYOUT.nbytes), store_size=False)
    bomb = lz4.block.compress(bytes(1 << 24), store_size=False)
    frames = [b"", packed[:-1], bomb, bytes(LAYOUT.nbytes)]
    with closing(make()) as hosts:
        hosts.settle()
        producer, consumer = hosts.producer(0), hosts.consumer(0)
        before, rejected = hosts._arena.buffer.copy(), consumer.rejected
        is_off = hosts.compression is None
        for frame in [packed, *frames[:-1]] if is_off else frames:
            producer._client.send(producer._header(Kind.BLOCK, 0, 1, 1)._replace(c=1), frame)
        hosts.settle()
        assert consumer.recv(9) == []
        assert consumer.rejected == rejected + 4
        assert np.array_equal(hosts._arena.buffer, before)


def test_blocks_travel_packed():
    with closing(Lz4SampleHarness()) as hosts:
        hosts.settle()
        hosts.consumer(0).grant({0: 1, 1: 0}, 0)
        hosts.settle()
        client = hosts.producer(0)._client
        send, sizes = client.send, []

        def measured(header, *frames):
            sizes.extend(len(frame) for frame in frames if header.kind is Kind.BLOCK)
            return send(header, *frames)

        client.send = measured
        fill_and_send(hosts, 5)
        values, _ = received(hosts, 1)
        assert values == [5]
        assert sizes[0] < LAYOUT.nbytes / 2


@pytest.mark.parametrize("size", [0, 8, 57])
def test_credit_with_another_account_gives_nothing(hosts, size):
    producer, consumer = hosts.producer(0), hosts.consumer(0)
    server, peer = consumer._peers[0]
    header = Header(Kind.CREDIT, 0, 0, 0, 100, digest=LAYOUT.spec.digest())
    server.send(peer, header, bytes(size))
    hosts.settle()
    assert producer.acquire() is None
    assert producer._client.rejected == 1


def test_actor_on_a_new_host_goes_on_where_its_consumer_is(hosts):
    """Its host died, and with it the table that said what it had sent."""
    hosts.consumer(0).grant({0: 2, 1: 0}, 0)
    hosts.settle()
    fill_and_send(hosts, 1)
    _, (delivery,) = received(hosts, 1)
    hosts.consumer(0).take(delivery, dropped=False)
    hosts._far_arenas[0].buffer[:] = 0
    hosts.restart_producer(0)
    hosts.settle()
    fill_and_send(hosts, 2)
    values, _ = received(hosts, 1)
    assert values == [2]
    assert hosts.producer(0).acquire() is None, "a new host gave credit"


def test_account_of_another_consumer_frees_no_slot_that_was_not_sent():
    table = SlotTable(np.zeros(table_bytes(1, 2), np.uint8), 1, 2)
    table.publish(0, 0)
    table.learn(0, [0, 0, 5, 5, 0])
    assert not table.is_free(0, 0)
    assert table.is_free(0, 1)
    table.learn(0, [1, 0, 1, 0, 0])
    assert table.is_free(0, 0)


def test_blocks_that_take_longer_than_the_silence_of_a_lost_connection_arrive_once(monkeypatch):
    monkeypatch.setattr(sockets, "_HEARTBEAT_MILLISECONDS", 100)
    monkeypatch.setattr(sockets, "_SILENCE_MILLISECONDS", 800)
    layout = Layout(Spec((Field("obs", (2_500_000,), "uint8"),)), rows=1, lanes=1, envs=1)
    context, keys, size = zmq.Context(), make_keys(), block_arena_bytes(layout, 1, 2)
    near, far = (BlockArena(Arena.heap(size).buffer, layout, 1, 2) for _ in range(2))
    with ExitStack() as stack:
        stack.callback(context.destroy, linger=0)
        keeper = stack.enter_context(closing(Doorkeeper(context, keys)))
        listener = stack.enter_context(closing(listen("127.0.0.1")))
        address = address_of(listener)
        link = stack.enter_context(closing(SlowLink(address, bytes_per_second=2e6)))
        fd = os.dup(listener.fileno())
        server = Server(context, address, keeper=keeper, listener=fd)
        consumer = stack.enter_context(closing(TcpConsumer(near, [server])))
        producer = stack.enter_context(
            closing(
                TcpProducer(far, link.address, index=0, incarnation=0, keys=keys, context=context)
            )
        )
        consumer.grant({0: 2}, 0)
        found = []

        def has_come():
            producer.poll()
            if (grant := producer.acquire()) is not None:
                grant.block.buffer[:] = 7 + grant.slot
                producer.send(grant)
            found.extend(consumer.recv(9))
            server.socket.poll(10)
            return len(found) == 2

        eventually(has_come, "two blocks", 20.0)
        assert all((d.block.buffer == 7 + d.slot).all() for d in found)
        assert {d.slot for d in found} == {0, 1}
        assert producer.resent == 0
        assert link.connections == 1
