"""The contract suite of srl.testing over every substrate of every edge."""

import math
import os
import shutil
import tempfile
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import zmq

from srl.core.algorithm import Records
from srl.core.block import Layout, route_spec
from srl.core.env import AgentSpec, Discrete, Observation
from srl.core.errors import StreamError
from srl.core.spec import Spec, spec_of
from srl.core.streams import Request
from srl.streams.inference.inline import InlineInference
from srl.streams.inference.shm import ReplyLayout, ShmInferenceClient, ShmInferenceServer
from srl.streams.inference.tcp import FrameLayouts, TcpInferenceClient, TcpInferenceServer
from srl.streams.parameters.inline import InlineParameters
from srl.streams.parameters.shm import ShmPublisher, ShmSubscriber, parameter_arena_bytes
from srl.streams.parameters.tcp import ParameterSink, ParameterSource
from srl.streams.samples.inline import InlineSamples
from srl.streams.samples.shm import ShmConsumer, ShmProducer
from srl.streams.samples.tcp import TcpConsumer, TcpProducer
from srl.testing.fakes import FakePolicy
from srl.testing.stream_contract import (
    PARAMETER_CHECKS,
    check_parameters,
    check_random_walk,
    eventually,
    inference_checks,
    sample_checks,
)
from srl.transport import sockets
from srl.transport.arena import Arena
from srl.transport.blocks import BlockArena, block_arena_bytes
from srl.transport.codec import Kind
from srl.transport.compression import Compression, Lz4
from srl.transport.keys import Doorkeeper, make_keys
from srl.transport.listener import address_of, listen
from srl.transport.sockets import Client, Server

AGENT = AgentSpec((Observation("obs", (3,), "float32"),), Discrete(2))
OUTPUTS = FakePolicy(AGENT).records.outputs
LAYOUT = Layout(route_spec(AGENT, Records(OUTPUTS)), rows=4, lanes=2, envs=2)


class InlineSampleHarness:
    num_producers, num_consumers, num_slots = 2, 1, 3
    can_restart = can_refuse = False

    def __init__(self):
        arena = Arena.heap(block_arena_bytes(LAYOUT, self.num_producers, self.num_slots))
        blocks = BlockArena(arena.buffer, LAYOUT, self.num_producers, self.num_slots)
        self._stream = InlineSamples(blocks)
        self._producers = [self._stream.producer(i) for i in range(self.num_producers)]
        self._consumer = self._stream.consumer()

    def producer(self, index):
        return self._producers[index]

    def consumer(self, index):
        return self._consumer

    def settle(self):
        for producer in self._producers:
            producer.poll()

    def restart_producer(self, index):
        raise NotImplementedError

    def restart_consumer(self, index):
        raise NotImplementedError

    def join_with_another_spec(self):
        raise NotImplementedError

    def changed_field(self):
        raise NotImplementedError

    def ledger(self):
        return self._stream.blocks.table.ledger(consumer_lives=True)

    def close(self):
        for end in (*self._producers, self._consumer):
            end.close()
            end.close()


class ShmSampleHarness:
    """A hello and its welcome fence both ways: nothing sent before them is still under way."""

    num_producers, num_consumers, num_slots = 2, 1, 3
    can_restart = can_refuse = True

    def __init__(self):
        self._folder = tempfile.mkdtemp(prefix="srl-", dir="/tmp")
        self._context = zmq.Context()
        shape = self.num_producers, self.num_slots, self.num_consumers
        self._arena = Arena.create("test", block_arena_bytes(LAYOUT, *shape))
        self._consumers = [self._make_consumer(i) for i in range(self.num_consumers)]
        self._lives = [0] * self.num_producers
        self._welcomes = [0] * self.num_producers
        self._producers = [self._make_producer(i) for i in range(self.num_producers)]
        self._ended = []

    def producer(self, index):
        return self._producers[index]

    def consumer(self, index):
        return self._consumers[index]

    def settle(self):
        for index, producer in enumerate(self._producers):
            self._welcomes[index] -= 1
            producer._hello_at = 0.0
            producer.poll()
            producer._hello_at = producer._look_at = math.inf

        def is_welcome():
            for end in self._consumers:
                end.recv(0)
            for producer in self._producers:
                producer.poll()
            return not any(self._welcomes)

        eventually(is_welcome, "a welcome")

    def restart_producer(self, index):
        self._ended.append(self._producers[index])  # killed: says no goodbye, sends no more
        self._lives[index] += 1
        self._welcomes[index] = 0
        self._producers[index] = self._make_producer(index)

    def restart_consumer(self, index):
        self._consumers[index].close()
        for number in self._consumers[index].assigned():
            monitor = self._producers[number].monitor  # what a dying connection is sent is gone
            assert monitor.poll(20_000), "no producer noticed that the consumer died"
            monitor.recv_multipart()
        self._consumers[index] = self._make_consumer(index)

    def join_with_another_spec(self):
        spec = LAYOUT.spec
        changed = [replace(f, dtype="float64") if f.name == "reward" else f for f in spec]
        layout = replace(LAYOUT, spec=Spec(tuple(changed)))
        size = block_arena_bytes(layout, self.num_producers, self.num_slots)
        blocks = BlockArena(Arena.heap(size).buffer, layout, self.num_producers, self.num_slots)
        errors = []
        with closing(self._connect(blocks, 0, 9)) as producer:

            def is_refused():
                self._consumers[0].recv(0)
                try:
                    producer.poll()
                except StreamError as error:
                    errors.append(str(error))
                return bool(errors)

            eventually(is_refused, "a refusal")
        return errors[0]

    def changed_field(self):
        return "reward"

    def ledger(self):
        return self._blocks().table.ledger(consumer_lives=True)

    def close(self):
        for end in (*self._producers, *self._ended):
            end._client.socket.disable_monitor()
        for end in (*self._producers, *self._ended, *self._consumers):
            end.close()
            end.close()
        self._context.destroy(linger=0)
        self._arena.close()
        shutil.rmtree(self._folder)

    def _address(self, consumer):
        return f"ipc://{self._folder}/samples-{consumer}"

    def _blocks(self):
        shape = self.num_producers, self.num_slots, self.num_consumers
        return BlockArena(self._arena.buffer, LAYOUT, *shape)

    def _make_consumer(self, index):
        return ShmConsumer(
            self._blocks(), self._address(index), consumer=index, context=self._context
        )

    def _connect(self, blocks, index, incarnation):
        return ShmProducer(
            blocks or self._blocks(),
            self._address(index % self.num_consumers),
            index=index,
            incarnation=incarnation,
            context=self._context,
        )

    def _make_producer(self, index):
        producer = self._connect(None, index, self._lives[index])
        producer._hello_at = producer._look_at = math.inf
        producer.monitor = producer._client.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._welcomes[index] = -1  # the hello of its constructor
        recv_all = producer._client.recv_all
        life = self._lives[index]

        def counted():
            messages = recv_all()
            if life == self._lives[index]:
                kinds = [message.header.kind for message in messages]
                self._welcomes[index] += kinds.count(Kind.WELCOME)
            return messages

        producer._client.recv_all = counted
        return producer


class TwoConsumersHarness(ShmSampleHarness):
    num_producers, num_consumers = 4, 2


class TcpSampleHarness(ShmSampleHarness):
    """Producers on one host, consumers on another: each has an arena of its own."""

    compression: Compression | None = None

    def __init__(self):
        self._keys = make_keys()
        self._listeners = [listen("127.0.0.1") for _ in range(self.num_consumers)]
        size = block_arena_bytes(LAYOUT, 1, self.num_slots)
        self._far_arenas = [Arena.create("test", size) for _ in range(self.num_producers)]
        self._keeper = None
        super().__init__()

    def ledger(self):
        far = [self._far_blocks(p).table for p in range(self.num_producers)]
        return super().ledger().with_sent(sum(table.sequence(0) for table in far))

    def close(self):
        self._keeper.close()
        super().close()
        for listener in self._listeners:
            listener.close()
        for arena in self._far_arenas:
            arena.close()

    def _address(self, consumer):
        return address_of(self._listeners[consumer])

    def _far_blocks(self, producer):
        return BlockArena(self._far_arenas[producer].buffer, LAYOUT, 1, self.num_slots)

    def _make_consumer(self, index):
        if self._keeper is None:
            self._keeper = Doorkeeper(self._context, self._keys)
        server = Server(
            self._context,
            self._address(index),
            keeper=self._keeper,
            listener=os.dup(self._listeners[index].fileno()),
        )
        return TcpConsumer(self._blocks(), [server], consumer=index, compression=self.compression)

    def _connect(self, blocks, index, incarnation):
        return TcpProducer(
            blocks or self._far_blocks(index),
            self._address(index % self.num_consumers),
            index=index,
            incarnation=incarnation,
            keys=self._keys,
            context=self._context,
            compression=self.compression,
        )


class TwoTcpConsumersHarness(TcpSampleHarness):
    num_producers, num_consumers = 4, 2


class Lz4SampleHarness(TcpSampleHarness):
    compression = Lz4()


class InlineInferenceHarness:
    num_groups = 3
    outputs = OUTPUTS.names
    can_repeat = False

    def __init__(self):
        size = block_arena_bytes(LAYOUT, 1, self.num_groups)
        self._blocks = BlockArena(Arena.heap(size).buffer, LAYOUT, 1, self.num_groups)
        self._parameters = InlineParameters()
        self._stream = InlineSamples(self._blocks)
        self._producer = self._stream.producer(0)
        self._weight = 0
        self._client = InlineInference(FakePolicy(AGENT), self._parameters, ("obs", "first"))

    def client(self):
        return self._client

    def grant(self, group, min_version):
        return self._producer.resume(group, min_version)

    def expected(self, grant, row):
        policy = FakePolicy(AGENT)
        policy.load_weights({"weight": np.asarray(self._weight, np.float32)})
        return policy.act(grant.block.row(("obs", "first"), row))

    def publish(self, version):
        self._weight = 10 * version
        self._parameters.publish({"weight": np.asarray(self._weight, np.float32)}, version)

    def answer(self):
        return list(self._client.poll())

    def repeat_answer(self, group):
        raise NotImplementedError

    def close(self):
        self._client.close()
        self._client.close()


class ShmInferenceHarness(InlineInferenceHarness):
    """The policy worker is a loop of two lines here."""

    can_repeat = True

    def __init__(self):
        super().__init__()
        self._folder = tempfile.mkdtemp(prefix="srl-", dir="/tmp")
        self._context = zmq.Context()
        self._version = -1
        self._policy = FakePolicy(AGENT)
        replies = ReplyLayout(OUTPUTS, 1, self.num_groups, LAYOUT.lanes)
        self._arena = Arena.create("test", block_arena_bytes(LAYOUT, 1, self.num_groups))
        self._slab = Arena.create("replies", replies.nbytes)
        self._blocks = BlockArena(self._arena.buffer, LAYOUT, 1, self.num_groups)
        self._producer = InlineSamples(self._blocks).producer(0)
        digest, address = LAYOUT.spec.digest(), f"ipc://{self._folder}/inference"
        self._server = ShmInferenceServer(
            {0: (self._blocks, 0)},
            replies,
            self._slab.buffer,
            address,
            inputs=("obs", "first"),
            digest=digest,
            incarnation=0,
            context=self._context,
        )
        self._client = ShmInferenceClient(
            replies,
            [self._slab.buffer],
            [address],
            index=0,
            incarnation=0,
            num_slots=self.num_groups,
            digest=digest,
            context=self._context,
        )
        self._last: dict[int, Request] = {}

    def publish(self, version):
        super().publish(version)
        self._version = version
        self._policy.load_weights({"weight": np.asarray(self._weight, np.float32)})

    def answer(self):
        answered = []

        def is_idle():
            for request in self._server.recv():
                assert self._version >= request.min_version
                self._last[request.group] = request
                outputs = self._policy.act(request.inputs)
                self._server.reply(request, outputs, self._version)
            answered.extend(self._client.poll())
            return not self._client._pending

        eventually(is_idle, "an answer")
        return answered

    def repeat_answer(self, group):
        outputs = self._policy.act(self._last[group].inputs)
        outputs["mark"] += 100
        late, answered = self._client.late, []
        self._server.reply(self._last[group], outputs, self._version + 7)

        def has_come():
            answered.extend(self._client.poll())
            return self._client.late == late + 1

        eventually(has_come, "the repeated answer")
        return answered

    def close(self):
        for end in (self._client, self._server):
            end.close()
            end.close()
        self._context.destroy(linger=0)
        self._arena.close()
        self._slab.close()
        shutil.rmtree(self._folder)


class TcpInferenceHarness(ShmInferenceHarness):
    """The same, but rows and answers travel."""

    def __init__(self):
        super().__init__()
        self._client.close()
        self._server.close()
        self._listener, keys = listen("127.0.0.1"), make_keys()
        self._keys, self._keeper = keys, Doorkeeper(self._context, keys)
        address, digest = address_of(self._listener), LAYOUT.spec.digest()
        layouts = FrameLayouts.make(
            LAYOUT, ("obs", "first"), OUTPUTS, num_clients=1, num_groups=self.num_groups
        )
        server = Server(
            self._context, address, keeper=self._keeper, listener=os.dup(self._listener.fileno())
        )
        self._server = TcpInferenceServer(layouts, server, digest=digest, incarnation=0)
        self._client = TcpInferenceClient(
            layouts,
            [address],
            keys=keys,
            context=self._context,
            index=0,
            incarnation=0,
            num_slots=self.num_groups,
            digest=digest,
        )

    def close(self):
        self._keeper.close()
        super().close()
        self._listener.close()


def _weights(fill):
    return {
        "big": np.full((300, 7), fill, np.float32),
        "count": np.full((), fill, np.int64),
        "empty": np.full((0, 3), fill, np.float32),
    }


class InlineParameterHarness:
    weights = staticmethod(_weights)

    def __init__(self):
        self._stream = InlineParameters()

    def publisher(self):
        return self._stream

    def subscriber(self):
        return self._stream

    def restart_publisher(self):
        """It lives and dies with the process."""

    def close(self):
        self._stream.close()
        self._stream.close()


class ShmParameterHarness:
    weights = staticmethod(_weights)

    def __init__(self):
        self._spec = spec_of(_weights(0))
        self._arena = Arena.create("parameters", parameter_arena_bytes(self._spec))
        self._publisher = ShmPublisher(self._arena.buffer, self._spec)

    def publisher(self):
        return self._publisher

    def subscriber(self):
        return ShmSubscriber(self._arena.buffer, self._spec)

    def restart_publisher(self):
        self._publisher = ShmPublisher(self._arena.buffer, self._spec)

    def close(self):
        self._publisher.close()
        self._publisher.close()
        self._arena.close()


class TcpParameterHarness(ShmParameterHarness):
    """A trainer's host and another, each with an arena of its own."""

    def __init__(self):
        super().__init__()
        self._context, keys, self._listener = zmq.Context(), make_keys(), listen("127.0.0.1")
        self._keys, self._keeper = keys, Doorkeeper(self._context, keys)
        self._far_arena = Arena.create("parameters", parameter_arena_bytes(self._spec))
        address = address_of(self._listener)
        server = Server(
            self._context, address, keeper=self._keeper, listener=os.dup(self._listener.fileno())
        )
        self.source = ParameterSource(
            ShmSubscriber(self._arena.buffer, self._spec), self._spec, server
        )
        self.sink = ParameterSink(
            ShmPublisher(self._far_arena.buffer, self._spec),
            self._spec,
            Client(self._context, address, keys=keys),
        )

    def publisher(self):
        return SimpleNamespace(publish=self._publish)

    def subscriber(self):
        return ShmSubscriber(self._far_arena.buffer, self._spec)

    def _publish(self, weights, version):
        self._publisher.publish(weights, version)

        def has_come():
            self.source.step()
            self.sink.step()
            return self.sink.version == version

        eventually(has_come, f"version {version}")

    def close(self):
        self._keeper.close()
        for end in (self.source, self.sink):
            end.close()
            end.close()
        self._context.destroy(linger=0)
        self._listener.close()
        self._far_arena.close()
        super().close()


SAMPLE_HARNESSES = (
    InlineSampleHarness,
    ShmSampleHarness,
    TwoConsumersHarness,
    TcpSampleHarness,
    TwoTcpConsumersHarness,
    Lz4SampleHarness,
)
INFERENCE_HARNESSES = (InlineInferenceHarness, ShmInferenceHarness, TcpInferenceHarness)


def _cases(harnesses, checks_of):
    return [
        pytest.param(make, check, id=f"{make.__name__}-{check.__name__}")
        for make in harnesses
        for check in checks_of(make)
    ]


@pytest.mark.parametrize(("make", "check"), _cases(SAMPLE_HARNESSES, sample_checks))
def test_sample_stream_keeps_its_promises(make, check):
    with closing(make()) as harness:
        check(harness)


@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("make", SAMPLE_HARNESSES)
def test_sample_stream_survives_any_order_of_calls_and_deaths(make, seed):
    with closing(make()) as harness:
        check_random_walk(harness, seed)


@pytest.mark.parametrize(("make", "check"), _cases(INFERENCE_HARNESSES, inference_checks))
def test_inference_stream_keeps_its_promises(make, check):
    with closing(make()) as harness:
        check(harness)


@pytest.mark.parametrize("make", [InlineParameterHarness, ShmParameterHarness, TcpParameterHarness])
@pytest.mark.parametrize("check", PARAMETER_CHECKS, ids=lambda check: check.__name__)
def test_parameter_stream_keeps_its_promises(make, check):
    with closing(make()) as harness:
        check(harness)


@pytest.fixture
def small_parts(monkeypatch):
    """Every block, row, answer and Spec travels in several parts."""
    monkeypatch.setattr(sockets, "_COPIED_BYTES", 32)
    monkeypatch.setattr(sockets, "PART_BYTES", 100)
    monkeypatch.setattr(sockets, "limit_frames", lambda socket, most_bytes: None)  # nor handshakes


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(
    ("make", "check"),
    [
        *_cases((TcpSampleHarness, Lz4SampleHarness), sample_checks),
        *_cases((TcpInferenceHarness,), inference_checks),
        *_cases((TcpParameterHarness,), lambda make: PARAMETER_CHECKS),
    ],
)
def test_streams_between_hosts_keep_their_promises_in_parts(make, check):
    with closing(make()) as harness:
        check(harness)


def test_suite_finds_a_broken_substrate():
    class GoesBack(InlineParameterHarness):
        def weights(self, fill):
            return _weights(0 if fill == 2 else fill + 1)

    class Forgets(InlineParameters):
        def latest(self):
            return 0

    harness = InlineParameterHarness()
    harness._stream = Forgets()
    with pytest.raises(AssertionError, match="not -1"):
        check_parameters(lambda: harness)


def test_inference_answers_nothing_older_than_demanded():
    with closing(InlineInferenceHarness()) as harness:
        harness.publish(3)
        with pytest.raises(StreamError, match="version 4"):
            harness.client().post(0, harness.grant(0, 4), 0)
