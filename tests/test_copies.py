"""An observation is written once by the env, read once for inference and once for training.

Rows that neighbouring blocks share are excepted: the last row of a block is copied to the row
that the lanes carry, and from there to row 0 of the next block.

Observation fields of blocks are made of an array that counts, row by row, the elements that pass
through it in either direction. What a row's bytes do as part of a whole buffer is not seen, nor
reads through a plain `np.asarray`; the data path does neither.
"""

import shutil
import tempfile
from collections import Counter as Counts

import numpy as np
import pytest
import zmq

from srl.core.block import Block, Layout, route_spec
from srl.core.env import EnvRequest
from srl.envs.toy import Counter
from srl.learning.staging import Staging
from srl.learning.staleness import Gate
from srl.rollout.lanes import RouteEnds
from srl.streams.inference.inline import InlineInference
from srl.streams.inference.shm import ReplyLayout, ShmInferenceClient, ShmInferenceServer
from srl.streams.parameters.inline import InlineParameters
from srl.streams.samples.inline import InlineSamples
from srl.streams.samples.shm import ShmConsumer, ShmProducer
from srl.testing.fakes import FakeLearner, FakePolicy
from srl.testing.stream_contract import eventually
from srl.transport.arena import Arena
from srl.transport.blocks import BlockArena, block_arena_bytes
from srl.workers.actor import Actor
from srl.workers.policy import PolicyWorker
from srl.workers.trainer import Trainer

AGENT = Counter().agent
ROLLOUT, ENVS, GROUPS, AGENTS, BATCH, BATCHES, SLOTS = 5, 2, 2, 2, 2, 4, 5
LANES = ENVS * AGENTS
ROW_ELEMENTS = LANES * 4
LAYOUT = Layout(route_spec(AGENT, FakePolicy(AGENT).records), ROLLOUT + 1, LANES, ENVS)


class Traffic:
    """Elements read and written, by the address of the row they are in."""

    def __init__(self):
        self.reads, self.writes = Counts(), Counts()

    def count(self, counts, view):
        if view.size == 0:
            return
        first = view.__array_interface__["data"][0]
        last = first + sum(s * (n - 1) for s, n in zip(view.strides, view.shape, strict=True))
        rows = range(first // view.row_bytes, last // view.row_bytes + 1)
        origin = view.origin // view.row_bytes
        assert view.origin % view.row_bytes == 0
        for row in rows:
            counts[view.origin, row - origin] += view.size / len(rows)


class Counted(np.ndarray):
    """Views share `traffic`, `origin` (address of the field) and `row_bytes`."""

    traffic: Traffic
    origin: int
    row_bytes: int

    def __array_finalize__(self, parent):
        if isinstance(parent, Counted):
            self.traffic, self.origin = parent.traffic, parent.origin
            self.row_bytes = parent.row_bytes

    def __getitem__(self, key):
        found = super().__getitem__(key)
        if not isinstance(found, Counted) or not _lies_in(found, self):
            self.traffic.count(self.traffic.reads, self)  # a copy, or one element
            return np.asarray(found)
        return found

    def __setitem__(self, key, value):
        self._read(value)
        target = super().__getitem__(key)
        self.traffic.count(self.traffic.writes, target)
        super().__setitem__(key, _plain(value))

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **options):
        for value in inputs:
            self._read(value)
        for target in out:
            if isinstance(target, Counted):
                self.traffic.count(self.traffic.writes, target)
        if out:
            options["out"] = tuple(map(_plain, out))
        return getattr(ufunc, method)(*map(_plain, inputs), **options)

    def __array_function__(self, function, types, args, kwargs):
        if function is np.copyto:
            target, source = args
            if isinstance(target, Counted):
                self.traffic.count(self.traffic.writes, target)
            self._read(source)
            return np.copyto(_plain(target), _plain(source), **kwargs)
        for value in (*args, *kwargs.values()):
            for one in value if isinstance(value, list | tuple) else [value]:
                self._read(one)
        return function(*map(_plain, args), **{k: _plain(v) for k, v in kwargs.items()})

    def copy(self, order="C"):
        self._read(self)
        return np.asarray(self).copy(order)

    def _read(self, value):
        if isinstance(value, Counted):
            value.traffic.count(value.traffic.reads, value)


def _lies_in(part, whole):
    start = whole.__array_interface__["data"][0]
    return start <= part.__array_interface__["data"][0] < start + max(whole.nbytes, 1)


def _plain(value):
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value))
    return np.asarray(value) if isinstance(value, Counted) else value


class CountablePolicy(FakePolicy):
    """Sums without `np.asarray`, so that reading a row in place is seen."""

    def act(self, inputs):
        mark = (inputs["obs"].sum(axis=1) + self._weight).astype(np.float32)
        self.batches.append(len(mark))
        return {"action": (mark % 2).astype(np.int64), "mark": mark}


@pytest.fixture
def traffic(monkeypatch):
    traffic, view_of = Traffic(), Block._view

    def counted(self, field):
        view = view_of(self, field)
        if field.name != "obs":
            return view
        view = view.view(Counted)
        view.traffic, view.origin = traffic, view.__array_interface__["data"][0]
        view.row_bytes = view.strides[0]
        return view

    monkeypatch.setattr(Block, "_view", counted)
    return traffic


def make_actor(producer, inference):
    request = EnvRequest(
        name="counter",
        options={"length": 3, "agents": AGENTS},
        wrappers=(),
        num_envs=ENVS,
        seed=0,
        first_env=0,
        reseed="episode",
    )
    envs = [Counter.make_batch(request) for _ in range(GROUPS)]
    ends = RouteEnds(
        AGENT, tuple(range(AGENTS)), LAYOUT, producer, inference, FakePolicy(AGENT).records
    )
    return Actor("actor-0", envs, [ends], first_env=0)


def make_trainer(consumer, parameters):
    gate = Gate(num_producers=1, batch=BATCH, max_staleness=0)
    staging = Staging(consumer, gate, LAYOUT, burn_in=0)
    learner = FakeLearner(FakePolicy(AGENT))
    return Trainer("trainer-0", learner, staging, parameters, total_env_steps=None)


def run(trainer, workers):
    """Step all until the last batch is learned: nothing is in flight then, nothing being filled."""

    def is_learned():
        for worker in workers:
            worker.step()
        return trainer.step() and trainer.version == BATCHES

    trainer.open()
    for worker in workers:
        worker.open()
    eventually(is_learned, "the last batch")


def check(traffic, actor, blocks):
    ledger = blocks.table.ledger(consumer_lives=True)
    assert (ledger.consumed, ledger.in_flight) == (BATCH * BATCHES, 0)
    lives = {}
    for slot in range(SLOTS):
        origin = blocks.block(0, slot)["obs"].origin
        lives[origin] = blocks.table.generation(0, slot)
        for row in range(ROLLOUT + 1):
            is_last = row == ROLLOUT
            times = lives[origin] * ROW_ELEMENTS
            written = 1  # by the env, or in row 0 from the carried row
            read = 1 + 1  # inference (the last row: the carried row) and training
            assert traffic.writes[origin, row] == written * times, (slot, row, is_last)
            assert traffic.reads[origin, row] == read * times, (slot, row, is_last)
    assert sum(lives.values()) == BATCH * BATCHES
    carried = [group.lanes[0].carry["obs"].origin for group in actor._ring]
    for origin in carried:
        num_blocks = BATCH * BATCHES // GROUPS
        assert traffic.writes[origin, 0] == (num_blocks + 1) * ROW_ELEMENTS  # one at the reset
        assert traffic.reads[origin, 0] == num_blocks * ROW_ELEMENTS
    assert {origin for origin, _ in traffic.writes} == set(carried) | {
        origin for origin, count in lives.items() if count
    }


def check_learned(trainer):
    """The rows did come through, unharmed by the counting."""
    (first, *_) = trainer._learner.seen
    steps = first["obs"][:, :LANES, 0]
    np.testing.assert_array_equal(steps[:, 0], [0, 1, 2, 3, 0, 1])
    np.testing.assert_array_equal(first["mark"][:-1], first["obs"][:-1].sum(-1))


def test_observation_is_written_once_and_read_twice_over_shared_memory(traffic):
    folder, context = tempfile.mkdtemp(prefix="srl-", dir="/tmp"), zmq.Context()
    arena = Arena.create("blocks", block_arena_bytes(LAYOUT, 1, SLOTS))
    replies = ReplyLayout(FakePolicy(AGENT).records.outputs, 1, GROUPS, LANES)
    slab = Arena.create("replies", replies.nbytes)
    digest, parameters = LAYOUT.spec.digest(), InlineParameters()

    def blocks():
        return BlockArena(arena.buffer, LAYOUT, 1, SLOTS)

    samples, inference = f"ipc://{folder}/samples", f"ipc://{folder}/inference"
    consumer = ShmConsumer(blocks(), samples, context=context)
    producer = ShmProducer(blocks(), samples, index=0, incarnation=0, context=context)
    server = ShmInferenceServer(
        {0: (blocks(), 0)},
        replies,
        slab.buffer,
        inference,
        inputs=("obs", "first"),
        digest=digest,
        incarnation=0,
        context=context,
    )
    client = ShmInferenceClient(
        replies,
        [slab.buffer],
        [inference],
        index=0,
        incarnation=0,
        num_slots=SLOTS,
        digest=digest,
        context=context,
    )
    actor, trainer = make_actor(producer, client), make_trainer(consumer, parameters)
    policy = PolicyWorker("policy-0", CountablePolicy(AGENT), server, parameters)
    run(trainer, [actor, policy])
    check(traffic, actor, blocks())
    check_learned(trainer)
    for worker in (actor, policy, trainer):
        worker.close()
    context.destroy(linger=0)
    for shared in (arena, slab):
        shared.close()
    shutil.rmtree(folder)


def test_observation_is_written_once_and_read_twice_inline(traffic):
    buffer = Arena.heap(block_arena_bytes(LAYOUT, 1, SLOTS)).buffer
    stream = InlineSamples(BlockArena(buffer, LAYOUT, 1, SLOTS))
    parameters = InlineParameters()
    client = InlineInference(CountablePolicy(AGENT), parameters, ("obs", "first"))
    actor = make_actor(stream.producer(0), client)
    trainer = make_trainer(stream.consumer(), parameters)
    run(trainer, [actor])
    check(traffic, actor, stream.blocks)
    check_learned(trainer)


def test_counting_sees_every_way_to_touch_a_row(traffic):
    block = Block.allocate(LAYOUT)
    obs, n = block["obs"], ROW_ELEMENTS
    origin = obs.origin

    def touched():
        found = dict(traffic.reads), dict(traffic.writes)
        traffic.reads.clear()
        traffic.writes.clear()
        return found

    obs[1][:] = 1.0
    assert touched() == ({}, {(origin, 1): n})
    obs[1].reshape(2, -1)[0] = 1.0
    assert touched() == ({}, {(origin, 1): n / 2})
    np.copyto(obs[2], obs[3])
    assert touched() == ({(origin, 3): n}, {(origin, 2): n})
    obs[4] = obs[5]
    assert touched() == ({(origin, 5): n}, {(origin, 4): n})
    obs[0] += 1
    assert touched() == ({(origin, 0): n}, {(origin, 0): 2 * n})  # in place, then set
    obs[0].copy(), obs[1].sum(), np.stack([obs[2], obs[3]]), obs[4] + 1
    assert touched() == ({(origin, row): n for row in range(5)}, {})
    obs[0][np.array([True] + [False] * (LANES - 1))]
    assert touched() == ({(origin, 0): n}, {})
