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
from srl.core.spec import Field, Spec
from srl.core.streams import Grant
from srl.streams.inference import ends, shm
from srl.streams.inference.shm import ReplyLayout, ShmInferenceClient, ShmInferenceServer
from srl.testing.stream_contract import eventually
from srl.transport.arena import Arena
from srl.transport.blocks import BlockArena, block_arena_bytes
from srl.transport.codec import Header, Kind, pack

AGENT = AgentSpec((Observation("obs", (3,), "float32"),), Discrete(2))
OUTPUTS = Spec((Field("action", (), "int64"), Field("mark", (), "float32")))
LAYOUT = Layout(route_spec(AGENT, Records(OUTPUTS)), rows=4, lanes=2, envs=2)
DIGEST = LAYOUT.spec.digest()
SLOTS, GROUPS = 2, 3


class Streams:
    """One client and `num_servers` policy workers in one process, under a clock of ours."""

    def __init__(self, clock, num_servers, **options):
        self.clock = clock
        self.folder = tempfile.mkdtemp(prefix="srl-", dir="/tmp")
        self.context = zmq.Context()
        self.replies = ReplyLayout(OUTPUTS, 1, GROUPS, LAYOUT.lanes)
        self.arena = Arena.create("blocks", block_arena_bytes(LAYOUT, 1, SLOTS))
        self.blocks = BlockArena(self.arena.buffer, LAYOUT, 1, SLOTS)
        self.slabs = [Arena.create("slab", self.replies.nbytes) for _ in range(num_servers)]
        self.servers = [self.server(i, 0) for i in range(num_servers)]
        self.client = ShmInferenceClient(
            self.replies,
            [slab.buffer for slab in self.slabs],
            [self.address(i) for i in range(num_servers)],
            index=0,
            incarnation=0,
            num_slots=SLOTS,
            digest=DIGEST,
            context=self.context,
            **options,
        )
        self.until(lambda: len(self.client._welcomed) == num_servers)

    def address(self, index):
        return f"ipc://{self.folder}/inference-{index}"

    def server(self, index, incarnation):
        return ShmInferenceServer(
            {i: (self.blocks, i) for i in range(self.blocks.table.num_producers)},
            self.replies,
            self.slabs[index].buffer,
            self.address(index),
            inputs=("obs", "first"),
            digest=DIGEST,
            incarnation=incarnation,
            context=self.context,
        )

    def grant(self, slot=0):
        return Grant(slot, self.blocks.block(0, slot), 0)

    def until(self, is_done, what="it"):
        """Pump servers (they get no requests meanwhile) and client until `is_done`."""
        requests = []

        def pumped():
            for server in self.servers:
                requests.extend(server.recv())
            self.client.poll()
            return is_done()

        eventually(pumped, what)
        assert not requests

    def receive(self, server, number=1):
        requests = []

        def has_come():
            requests.extend(server.recv())
            return len(requests) >= number

        eventually(has_come, "a request")
        return requests

    def poll(self, number=1):
        answered = []

        def has_come():
            answered.extend(self.client.poll())
            return len(answered) >= number

        eventually(has_come, "an answer")
        return answered

    def close(self):
        for end in (self.client, *self.servers):
            end.close()
        self.context.destroy(linger=0)
        for arena in (self.arena, *self.slabs):
            arena.close()
        shutil.rmtree(self.folder)


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(ends, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.fixture
def make(clock):
    made = []

    def build(num_servers, **options):
        made.append(Streams(clock, num_servers, **options))
        return made[-1]

    yield build
    for streams in made:
        streams.close()


def outputs(mark):
    return {"action": np.full(2, mark, np.int64), "mark": np.full(2, mark, np.float32)}


def test_late_answer_of_a_stopped_worker_changes_nothing(make, clock):
    streams = make(2, resend_seconds=1.0)
    first, second = streams.servers
    grant = streams.grant()
    streams.client.post(0, grant, 1)
    (stopped,) = streams.receive(first)  # and does not answer
    clock.now += 1.5
    streams.client.poll()
    (request,) = streams.receive(second)
    assert streams.client.resent == 1
    second.reply(request, outputs(5), 9)
    assert streams.poll() == [0]
    before = grant.block.buffer.copy()

    first.reply(stopped, outputs(7), 3)
    eventually(lambda: not streams.client.poll() and streams.client.late == 1, "the late answer")
    assert np.array_equal(grant.block.buffer, before)

    streams.client.post(0, grant, 2)  # the worker that woke is one of the live again
    (request,) = streams.receive(first)
    first.reply(request, outputs(6), 9)
    assert streams.poll() == [0]
    assert (grant.block["mark"][2] == 6).all()
    assert (grant.block["mark"][1] == 5).all()


def test_late_answer_does_not_complete_the_next_request(make, clock):
    streams = make(2, resend_seconds=1.0)
    first, second = streams.servers
    grant = streams.grant()
    streams.client.post(0, grant, 0)
    (stopped,) = streams.receive(first)
    clock.now += 1.5
    streams.client.poll()
    (request,) = streams.receive(second)
    second.reply(request, outputs(5), 1)
    streams.poll()
    streams.client.post(0, grant, 1)
    (following,) = streams.receive(second)
    first.reply(stopped, outputs(7), 3)
    eventually(lambda: not streams.client.poll() and streams.client.late == 1, "the late answer")
    second.reply(following, outputs(8), 1)
    assert streams.poll() == [0]
    assert (grant.block["mark"][:2] == [[5, 5], [8, 8]]).all()


def test_request_goes_to_the_worker_with_the_fewest_outstanding(make):
    streams = make(2, resend_seconds=1000.0)
    first, second = streams.servers
    for group in range(3):
        streams.client.post(group, streams.grant(), group)
    to_first = streams.receive(first, 2)
    (to_second,) = streams.receive(second)
    assert [r.group for r in to_first] == [0, 2]
    assert to_second.group == 1
    for request in to_first:
        first.reply(request, outputs(1), 0)
    streams.poll(2)
    streams.client.post(0, streams.grant(), 3)
    assert streams.receive(first)[0].group == 0


def test_only_worker_is_not_said_to_be_asked_again(make, clock):
    streams = make(1, resend_seconds=1.0)
    streams.client.post(0, streams.grant(), 0)
    for _ in range(5):
        clock.now += 1.5
        streams.client.poll()
    assert streams.client.resent == 0
    assert len(streams.receive(streams.servers[0])) == 1


def test_repeated_request_is_answered_once(make):
    streams = make(1)
    (server,) = streams.servers
    streams.client.post(0, streams.grant(), 0)
    header = Header(Kind.REQUEST, 0, 0, 1, 0, 0, 0, 0, DIGEST)
    streams.client._clients[0].send(header)
    requests = streams.receive(server)
    eventually(lambda: not requests.extend(server.recv()) and server.repeated == 1, "the repeat")
    assert len(requests) == 1


def test_restarted_worker_gets_the_unanswered_request_again(make, clock):
    streams = make(1, resend_seconds=1e9, timeout_seconds=1e9)
    monitor = streams.client._clients[0].socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    grant = streams.grant()
    streams.client.post(2, grant, 3)
    streams.receive(streams.servers[0])
    streams.servers[0].close()
    assert monitor.poll(20_000)
    streams.client._clients[0].socket.disable_monitor()
    monitor.close()
    streams.servers[0] = server = streams.server(0, 1)
    requests = []

    def asked_again():
        clock.now += 1.0  # so that it says hello
        streams.client.poll()
        requests.extend(server.recv())
        return bool(requests)

    eventually(asked_again, "the request")
    server.reply(requests[0], outputs(4), 2)
    assert streams.poll() == [2]
    assert (grant.block["mark"][3] == 4).all()
    assert (grant.block["version"][3] == 2).all()
    assert len(requests) == 1


def test_answer_without_a_stamp_is_ignored(make):
    streams = make(1)
    (server,) = streams.servers
    grant = streams.grant()
    streams.client.post(0, grant, 0)
    (request,) = streams.receive(server)
    before = grant.block.buffer.copy()
    server.reply(request, outputs(1), 0)
    area = streams.replies.block(streams.slabs[0].buffer, 0, 0)
    area["stamp"][0, 0, 0] = 0  # as while another answer is being written
    eventually(lambda: not streams.client.poll() and streams.client.late == 1, "the torn answer")
    assert np.array_equal(grant.block.buffer, before)
    server.reply(request, outputs(2), 0)
    assert streams.poll() == [0]
    assert (grant.block["mark"][0] == 2).all()


def test_answer_that_changes_while_it_is_copied_is_ignored(make, monkeypatch):
    streams = make(1)
    (server,) = streams.servers
    grant = streams.grant()
    streams.client.post(0, grant, 0)
    (request,) = streams.receive(server)
    server.reply(request, outputs(1), 0)
    area = streams.replies.block(streams.slabs[0].buffer, 0, 0)
    write_arrays = shm.write_arrays

    def overtaken(target, source):
        write_arrays(target, source)
        area["stamp"][0, 0, 0] = 0

    monkeypatch.setattr(shm, "write_arrays", overtaken)
    eventually(lambda: not streams.client.poll() and streams.client.late == 1, "the torn answer")
    monkeypatch.setattr(shm, "write_arrays", write_arrays)
    server.reply(request, outputs(3), 0)
    assert streams.poll() == [0]
    assert (grant.block["mark"][0] == 3).all()


def test_nobody_answers_in_time_is_an_error(make, clock):
    streams = make(1, timeout_seconds=60.0)
    streams.client.post(0, streams.grant(), 0)
    clock.now += 59.0
    streams.client.poll()
    clock.now += 2.0
    with pytest.raises(StreamError, match="no policy worker answered for 61 s"):
        streams.client.poll()


def test_request_posted_before_any_worker_is_there_is_asked_later(clock):
    streams = Streams(clock, 1, timeout_seconds=1e9)
    streams.client._welcomed.clear()  # as before the first welcome
    streams.client.post(0, streams.grant(), 0)
    requests = []

    def asked():
        clock.now += 1.0
        streams.client.poll()
        requests.extend(streams.servers[0].recv())
        return bool(requests)

    eventually(asked, "the request")
    streams.close()


def test_client_of_another_spec_is_refused_by_the_field(make, clock):
    streams = make(1)
    other = ReplyLayout(Spec((OUTPUTS["action"], Field("mark", (), "float64"))), 1, GROUPS, 2)
    slab = np.zeros(other.nbytes, np.uint8)
    client = ShmInferenceClient(
        other,
        [slab],
        [streams.address(0)],
        index=0,
        incarnation=0,
        num_slots=SLOTS,
        digest=b"notyours",
        context=streams.context,
    )
    errors = []

    def is_refused():
        streams.servers[0].recv()
        try:
            client.poll()
        except StreamError as error:
            errors.append(str(error))
        return bool(errors)

    eventually(is_refused, "a refusal")
    assert "'mark' is float32" in errors[0]
    client.close()


SOUND = {"sender": 0, "a": 1, "b": 2, "c": 1, "digest": DIGEST}
UNSOUND = {
    "slot": {"a": SLOTS},
    "negative slot": {"a": -1},
    "row": {"b": LAYOUT.rows},
    "negative row": {"b": -1},
    "group": {"c": GROUPS},
    "negative group": {"c": -1},
    "sender": {"sender": 1, "a": SLOTS},
    "other's slot": {"sender": 1},
    "digest": {"digest": bytes(8)},
}


@pytest.mark.parametrize("change", UNSOUND.values(), ids=UNSOUND.keys())
def test_request_that_names_no_row_of_its_sender_is_dropped_and_counted(make, change):
    streams = make(1)
    (server,) = streams.servers
    values = SOUND | change
    header = Header(Kind.REQUEST, incarnation=0, sequence=1, **values)
    streams.client._clients[0].send(header)
    streams.client._clients[0].send(Header(Kind.REQUEST, incarnation=0, sequence=2, **SOUND))
    (request,) = streams.receive(server)
    assert request.sequence == 2
    assert server.rejected == 1


@pytest.fixture(scope="module")
def foreign():
    streams = Streams(SimpleNamespace(now=0.0), 1)
    yield streams
    streams.close()


FRAMES = st.lists(st.binary(max_size=70), min_size=1, max_size=3)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 4)
HEADERS = st.builds(
    lambda kind, **rest: [pack(Header(kind, **rest))],
    kind=st.sampled_from([k for k in Kind if k is not Kind.HELLO]),
    sender=st.integers(0, 2**32 - 1),
    incarnation=st.integers(0, 3),
    sequence=st.integers(0, 2**64 - 1),
    a=NUMBERS,
    b=NUMBERS,
    c=NUMBERS,
    d=NUMBERS,
    digest=st.binary(min_size=8, max_size=8).filter(lambda d: d != DIGEST),
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(parts=FRAMES | HEADERS)
def test_foreign_bytes_are_dropped_and_counted_by_the_server(foreign, parts):
    (server,) = foreign.servers
    before, arena = server.rejected, foreign.arena.buffer.copy()
    foreign.client._clients[0].socket.send_multipart(parts)
    eventually(lambda: not server.recv() and server.rejected == before + 1, "a rejection")
    assert np.array_equal(foreign.arena.buffer, arena)


@settings(max_examples=100, deadline=None)
@given(parts=FRAMES | HEADERS)
def test_foreign_bytes_never_crash_the_client_nor_write_a_row(foreign, parts):
    (server,) = foreign.servers
    client, arena = foreign.client, foreign.arena.buffer.copy()
    peers = []
    client._clients[0].send(Header(Kind.HELLO, 0, 0, 0, digest=DIGEST))

    def has_come():
        peers.extend(m.peer for m in server._server.recv_all())
        return bool(peers)

    eventually(has_come, "a hello")
    seen = []
    recv_all = client._clients[0].recv_all
    client._clients[0].recv_all = lambda: [seen.append(m) or m for m in recv_all()]
    server._server.socket.send_multipart([peers[0], *parts])
    server._server.send(peers[0], Header(Kind.GOODBYE, 0, 0, 0))  # a fence

    def is_through():
        try:
            assert not client.poll()
        except StreamError as error:
            assert "refused" in str(error)  # noqa: PT017 - a REFUSED is an answer of a kind
        return any(m.header.kind is Kind.GOODBYE for m in seen)

    eventually(is_through, "the fence")
    client._clients[0].recv_all = recv_all
    assert np.array_equal(foreign.arena.buffer, arena)
