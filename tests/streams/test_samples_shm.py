import shutil
import tempfile
from types import SimpleNamespace

import numpy as np
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from srl.core.algorithm import Records
from srl.core.block import Layout, route_spec
from srl.core.env import AgentSpec, Discrete, Observation
from srl.core.errors import StreamError
from srl.core.spec import Spec
from srl.streams.samples import ends
from srl.streams.samples.shm import ShmConsumer, ShmProducer
from srl.testing.stream_contract import eventually
from srl.transport.arena import Arena
from srl.transport.blocks import BlockArena, block_arena_bytes
from srl.transport.codec import Header, Kind, pack

AGENT = AgentSpec((Observation("obs", (3,), "float32"),), Discrete(2))
LAYOUT = Layout(route_spec(AGENT, Records(Spec((AGENT.action.field,)))), rows=3, lanes=2, envs=2)
DIGEST = LAYOUT.spec.digest()


class Stream:
    """One consumer and producer 0 of two, under a clock of ours."""

    def __init__(self):
        self.folder, self.context = tempfile.mkdtemp(prefix="srl-", dir="/tmp"), zmq.Context()
        self.address = f"ipc://{self.folder}/samples"
        self.arena = Arena.create("blocks", block_arena_bytes(LAYOUT, 2, 3))
        self.blocks = BlockArena(self.arena.buffer, LAYOUT, 2, 3)
        self.consumer = ShmConsumer(self.blocks, self.address, context=self.context)
        self.producer = self.join(1)
        self.until(lambda: self.consumer.producers() == (0,))

    def join(self, incarnation):
        return ShmProducer(
            self.blocks, self.address, index=0, incarnation=incarnation, context=self.context
        )

    def until(self, is_done, what="it"):
        def pumped():
            self.consumer.recv(0)
            self.producer.poll()
            return is_done()

        eventually(pumped, what)

    def send(self):
        grants = []
        self.until(lambda: grants.extend(g for g in [self.producer.acquire()] if g) or grants)
        self.producer.send(grants[0])

    def close(self):
        self.producer.close()
        self.consumer.close()
        self.context.destroy(linger=0)
        self.arena.close()
        shutil.rmtree(self.folder)


@pytest.fixture(scope="module")
def shared():
    stream = Stream()
    yield stream
    stream.close()


@pytest.fixture
def stream():
    stream = Stream()
    yield stream
    stream.close()


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(ends, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_producer_says_hello_again_and_again(clock, stream):
    stream.until(lambda: True)
    known = ShmConsumer.producers
    stream.consumer._peers.clear()  # as a restarted consumer
    stream.consumer.recv(0)
    assert known(stream.consumer) == ()
    clock.now += 1.0
    stream.until(lambda: known(stream.consumer) == (0,), "a hello")


def test_hello_again_notices_no_block_twice(clock, stream):
    stream.consumer.grant({0: 2}, 0)
    stream.send()
    stream.send()
    arrived = []
    eventually(lambda: arrived.extend(stream.consumer.recv(9)) or len(arrived) == 2, "blocks")
    clock.now += 1.0
    stream.producer.poll()
    peers = []
    on_hello = stream.consumer._on_hello
    stream.consumer._on_hello = lambda *message: peers.append(message) or on_hello(*message)
    eventually(lambda: arrived.extend(stream.consumer.recv(9)) or peers, "a hello")
    assert len(arrived) == 2
    assert stream.consumer.repeated_notices == 0


def test_repeated_notice_is_counted_and_not_delivered(stream):
    stream.consumer.grant({0: 1}, 0)
    stream.send()
    header = stream.producer._header(Kind.BLOCK, a=0, b=1)
    stream.producer._client.send(header)
    arrived = []

    def is_repeated():
        arrived.extend(stream.consumer.recv(9))
        return stream.consumer.repeated_notices == 1

    eventually(is_repeated, "the repeated notice")
    assert len(arrived) == 1


def test_notice_that_got_lost_is_made_up_for_by_the_table(clock, stream):
    stream.consumer.grant({0: 1}, 0)
    grants = []
    stream.until(lambda: grants.extend(g for g in [stream.producer.acquire()] if g) or grants)
    stream.blocks.table.publish(0, grants[0].slot)  # and no word about it
    clock.now += 1.0
    stream.producer.poll()
    arrived = []
    eventually(lambda: arrived.extend(stream.consumer.recv(9)) or arrived, "the block")
    assert [d.slot for d in arrived] == [grants[0].slot]


def test_hello_of_an_earlier_life_that_comes_late_is_dropped(stream):
    peer = stream.consumer._peers[0][1]
    late = stream.join(0)
    before = stream.consumer.rejected
    stream.until(lambda: stream.consumer.rejected > before, "the late hello")
    assert stream.consumer._peers[0][1] == peer
    late.close()


def test_slot_of_a_shared_arena_is_not_resumed(stream):
    with pytest.raises(StreamError, match="not part of a checkpoint"):
        stream.producer.resume(0, 0)


def test_min_version_of_a_grant_never_goes_back(stream):
    stream.consumer.grant({0: 1}, 5)
    stream.consumer.grant({0: 2}, 3)
    grants = []
    stream.until(
        lambda: grants.extend(g for g in [stream.producer.acquire()] if g) or len(grants) == 2
    )
    assert [g.min_version for g in grants] == [5, 5]


NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 4)
FOREIGN = st.lists(st.binary(max_size=70), min_size=1, max_size=3) | st.builds(
    lambda kind, rest, **numbers: [pack(Header(kind, incarnation=1, **numbers)), *rest],
    kind=st.sampled_from([k for k in Kind if k not in (Kind.GOODBYE, Kind.ABANDON)]),
    rest=st.lists(st.binary(max_size=20), max_size=1),
    sender=st.integers(0, 2**32 - 1),
    sequence=st.integers(0, 2**64 - 1),
    a=NUMBERS,
    b=NUMBERS,
    c=NUMBERS,
    d=NUMBERS,
    digest=st.binary(min_size=8, max_size=8).filter(lambda d: d != DIGEST),
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(parts=FOREIGN)
def test_foreign_bytes_never_crash_the_consumer_nor_the_producer(shared, parts):
    stream, arena = shared, shared.arena.buffer.copy()
    stream.producer._client.socket.send_multipart(parts)
    stream.consumer._servers[0].socket.send_multipart([stream.consumer._peers[0][1], *parts])
    stream.producer._client.send(Header(Kind.ABANDON, 0, 1, 0))  # fences, which change nothing
    stream.consumer._servers[0].send(stream.consumer._peers[0][1], Header(Kind.GOODBYE, 0, 0, 0))
    up, down = [], []
    _watch(stream.consumer._servers[0], up)
    _watch(stream.producer._client, down)

    def is_through():
        assert stream.consumer.recv(9) == []
        try:
            stream.producer.poll()
        except StreamError as error:
            assert "refused" in str(error)  # noqa: PT017 - an answer of a kind
        return Kind.ABANDON in up and Kind.GOODBYE in down

    eventually(is_through, "the fences")
    for endpoint in (stream.consumer._servers[0], stream.producer._client):
        del endpoint.recv_all
    assert stream.producer.acquire() is None  # foreign credit is none
    assert np.array_equal(stream.arena.buffer, arena)


def _watch(endpoint, kinds):
    recv_all = endpoint.recv_all

    def watched():
        messages = recv_all()
        kinds.extend(message.header.kind for message in messages)
        return messages

    endpoint.recv_all = watched
