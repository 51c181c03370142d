"""Buffers between two streams: a trainer is handed what it would have drawn itself."""

import numpy as np
import pytest

from srl.core.algorithm import Records
from srl.core.block import Layout, route_layout
from srl.core.env import AgentSpec, Discrete, Observation
from srl.core.errors import WorkerError
from srl.core.experiment import OnNan
from srl.core.replay import ReplayConfig, Window
from srl.core.spec import Field, Spec
from srl.learning.drawing import (
    AHEAD,
    SLOTS,
    Drawing,
    draw_layout,
    priority_layout,
    read_news,
    write_news,
)
from srl.learning.finite import Tracer
from srl.learning.guard import Guard
from srl.learning.replay.replay import Replay
from srl.learning.staging import Batch, HostMemory, allocate
from srl.streams.samples.inline import InlineSamples
from srl.transport.arena import Arena
from srl.transport.blocks import BlockArena, block_arena_bytes
from srl.workers.buffer import Buffer

T, L, DRAWN = 4, 2, 6
PRIORITISED = ReplayConfig(
    kind="prioritised", capacity=400, batch=DRAWN, warm_up=2 * T * L, samples_per_insert=1
)
BLOCK = route_layout(
    AgentSpec((Observation("obs", (), "float32"),), Discrete(2)),
    Records(Spec((Field("action", (), "int64"),))),
    rollout=T,
    lanes=L,
    envs=L,
)


def stream(layout: Layout, producers: int, slots: int) -> InlineSamples:
    arena = Arena.heap(block_arena_bytes(layout, producers, slots))
    return InlineSamples(BlockArena(arena.buffer, layout, producers, slots))


def new_replay(shards: int, seed: int) -> Replay:
    return Replay(PRIORITISED, Window(), BLOCK, groups=1, shards=shards, seed=seed)


class Run:
    """An actor for each of some buffers, and a trainer."""

    def __init__(self, buffers: int = 1, on_nan: OnNan = "stop") -> None:
        self.num, self.on_nan = buffers, on_nan
        self.samples = [stream(BLOCK, 1, 8) for _ in range(buffers)]
        self.windows = new_replay(buffers, 0).layout
        self.draws = stream(draw_layout(self.windows), buffers, SLOTS)
        self.told = [stream(priority_layout(self.windows), 1, SLOTS) for _ in range(buffers)]
        self.buffers = [self.buffer(i) for i in range(buffers)]
        self.trainer = self.drawing()
        self.sent = [0] * buffers

    def buffer(self, index: int, life: int = 1) -> Buffer:
        return Buffer(
            f"buffer-{index}",
            new_replay(self.num, index),
            self.samples[index].consumer(),
            self.draws.producer(index),
            self.told[index].consumer(),
            life=life,
            guard=Guard(Tracer(BLOCK), worker="buffer", on_nan=self.on_nan),
        )

    def drawing(self) -> Drawing:
        ends = {i: self.told[i].producer(0) for i in range(self.num)}
        return Drawing(self.draws.consumer(), ends, self.windows)

    def act(self, index: int) -> bool:
        """Send a block, if there is leave to; every number of it tells where it is from."""
        producer = self.samples[index].producer(0)
        grant = producer.acquire()
        if grant is None:
            return False
        write(grant.block.fields, index, self.sent[index])
        producer.send(grant)
        self.sent[index] += 1
        return True

    def settle(self) -> None:
        """Until nobody can do anything more."""
        while True:
            self.trainer.pump()
            moved = [buffer.step() for buffer in self.buffers]
            moved += [self.act(index) for index in range(self.num)]
            if not any(moved):
                return

    def learn(self, version: int, priorities: np.ndarray | None = None) -> Batch:
        batch = self.trainer.front()
        assert batch is not None
        assert self.trainer.pop() is batch
        kept = Batch({k: v.copy() for k, v in batch.arrays.items()}, batch.num_blocks)
        kept.env_steps, kept.oldest_rows = batch.env_steps, list(batch.oldest_rows)
        self.trainer.learned(batch, version, priorities)
        return kept


def write(fields, index: int, number: int) -> None:
    rows = np.arange(T + 1)[:, None] + number * T
    fields["obs"][:] = rows + 1000 * index + 0.5 * np.arange(L)
    fields["lane"][:] = np.arange(L) + index * L
    fields["step"][:] = number * T
    fields["valid"][:] = fields["acting"][:] = True
    fields["version"][:] = number
    fields["reward"][:] = 0


def test_a_trainer_is_handed_what_it_would_have_drawn_itself():
    run = Run()
    run.settle()
    batch = run.learn(1)

    same = new_replay(1, 0)
    out = allocate(same.layout, HostMemory())
    block = run.samples[0].blocks.block(0, 0)  # any: all its fields are written below
    for number in range(batch.num_blocks):
        write(block.fields, 0, number)
        same.insert(block)
    assert same.draw(out)
    for name, array in out.items():
        np.testing.assert_array_equal(batch.arrays[name], array, err_msg=name)


def test_what_came_is_told_with_the_draw_after_it():
    run = Run()
    run.settle()
    first, sent = run.learn(1), run.sent[0]
    run.settle()
    second = run.learn(2)
    blocks = first.num_blocks + second.num_blocks
    assert blocks <= sent
    assert first.env_steps == first.num_blocks * T * L
    # of so many blocks, numbered from 0, as their versions are
    assert sum(first.oldest_rows + second.oldest_rows) == sum(range(blocks))
    assert min(first.oldest_rows) == 0
    assert len(first.oldest_rows) == first.num_blocks


def test_nobody_acts_before_the_trainer_is_there():
    run = Run()
    for _ in range(3):
        run.buffers[0].step()
    assert not run.act(0)
    assert run.buffers[0].waiting == "wait_for_leave"
    run.trainer.pump()
    run.buffers[0].step()
    assert run.act(0)
    assert run.buffers[0].waiting == "wait_for_blocks"


def test_a_buffer_is_at_most_one_draw_ahead_and_holds_its_rate():
    run = Run()
    for version in range(1, 20):
        run.settle()
        assert run.buffers[0].telemetry.counters["draws"] == version - 1 + AHEAD
        drawn, came = (version - 1 + AHEAD) * DRAWN, run.sent[0] * T * L
        warm_up, tolerance = 2 * T * L, DRAWN + T * L
        assert abs(came - warm_up - drawn) <= tolerance + T * L  # and a block under way
        run.learn(version)


def test_several_buffers_share_every_batch():
    run = Run(buffers=2)
    for version in range(1, 6):
        run.settle()
        batch = run.learn(version)
        origin = batch.arrays["obs"][0] // 1000
        np.testing.assert_array_equal(origin, np.repeat([0, 1], DRAWN // 2))
        assert batch.num_blocks == len(batch.oldest_rows)


def test_a_batch_waits_for_every_buffer():
    run = Run(buffers=2)
    run.trainer.pump()
    for _ in range(20):
        run.buffers[0].step()
        run.act(0)
        run.trainer.pump()
    assert run.trainer.front() is None
    run.settle()
    assert run.trainer.front() is not None


def test_priorities_decide_what_is_drawn():
    run, told, again = Run(), [], 0
    for version in range(1, 60):
        run.settle()
        items = run.learn(version, np.full(DRAWN, 1e-9, np.float32)).arrays["item"]
        before = {item for known in told[:-AHEAD] for item in known}
        again += len(before.intersection(items.tolist()))
        told.append(set(items.tolist()))
    assert again < 10, "of 350 windows, those that there is nothing to learn from"


def test_priorities_of_an_earlier_life_are_not_of_its_rows():
    run, changed = Run(), []
    run.settle()
    buffer = run.buffers[0]
    buffer._life = 2  # as if what was drawn so far, AHEAD draws, was drawn by one before it
    buffer._replay.update = lambda items, _: changed.append(items)  # type: ignore[method-assign]
    for version in range(1, AHEAD + 1):
        run.learn(version, np.ones(DRAWN, np.float32))
        run.settle()
    assert not changed
    run.learn(AHEAD + 1, np.ones(DRAWN, np.float32))
    run.settle()
    assert len(changed) == 1


def test_what_is_saved_is_drawn_again():
    run = Run()
    run.settle()
    state = {k: v.copy() for k, v in run.buffers[0].save().items()}
    other = Run()
    other.buffers[0].load(state)
    assert other.buffers[0]._replay.size == run.buffers[0]._replay.size
    other.trainer.pump()
    assert other.buffers[0].step(), "it is warm already"
    other.trainer.pump()
    batch = other.trainer.front()
    assert batch is not None
    assert (batch.num_blocks, batch.env_steps) == (0, 0)  # nothing new came


def poison(run: Run) -> None:
    """Send a block with a reward that is none."""
    producer, grant, version = run.samples[0].producer(0), None, 0
    run.settle()
    while grant is None:
        version += 1
        run.learn(version)
        run.trainer.pump()
        run.buffers[0].step()
        run.trainer.pump()
        grant = producer.acquire()
    write(grant.block.fields, 0, run.sent[0])
    grant.block["reward"][1] = np.nan
    producer.send(grant)
    run.sent[0] += 1


def test_a_block_with_a_nan_stops_the_run_before_it_is_kept():
    run = Run()
    poison(run)
    with pytest.raises(WorkerError, match=r"gave reward = nan in step \d+ of episode 0"):
        run.settle()


def test_or_is_dropped_and_never_drawn_and_another_comes_in_its_place():
    run = Run(on_nan="skip")
    poison(run)
    for version in range(10, 70):
        run.settle()
        assert np.isfinite(run.learn(version).arrays["reward"]).all()
    table = run.samples[0].blocks.table
    assert table.ledger(consumer_lives=True).dropped == 1
    assert table.ledger(consumer_lives=True).adds_up


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_news_have_the_number_the_sum_and_the_least(blocks: int):
    rng = np.random.default_rng(blocks)
    came = Batch({}, blocks, 11, rng.integers(3, 50, size=blocks).tolist())
    news = np.zeros((4, 5), np.int64)
    write_news(news, 1, came)
    heard = Batch({})
    read_news(news, heard)
    assert (heard.num_blocks, heard.env_steps) == (blocks, 11)
    assert len(heard.oldest_rows) == blocks
    assert sum(heard.oldest_rows) == sum(came.oldest_rows)
    assert min(heard.oldest_rows) == min(came.oldest_rows)
