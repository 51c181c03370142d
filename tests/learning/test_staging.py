import numpy as np

from srl.core.algorithm import Records
from srl.core.block import Layout, route_spec
from srl.core.env import AgentSpec, Discrete, Observation
from srl.core.spec import Field, Spec
from srl.learning.staging import Staging
from srl.learning.staleness import Gate
from srl.streams.samples.inline import InlineSamples
from srl.transport.arena import Arena
from srl.transport.blocks import BlockArena, block_arena_bytes

AGENT = AgentSpec((Observation("obs", (3,), "float32"),), Discrete(2))
STATE = Spec((Field("state", (2,), "float32", "env"),))
ROLLOUT, LANES, ENVS, BATCH = 2, 4, 2, 3
LAYOUT = Layout(
    route_spec(AGENT, Records(Spec((AGENT.action.field,)))) + STATE, ROLLOUT + 1, LANES, ENVS
)


class Stage:
    def __init__(self, producers=2, max_staleness=0):
        size = block_arena_bytes(LAYOUT, producers, 4)
        blocks = BlockArena(Arena.heap(size).buffer, LAYOUT, producers, 4)
        self.stream = InlineSamples(blocks)
        self.producers = [self.stream.producer(i) for i in range(producers)]
        self.gate = Gate(num_producers=producers, batch=BATCH, max_staleness=max_staleness)
        self.consumer = self.stream.consumer()
        self.staging = Staging(self.consumer, self.gate, LAYOUT, burn_in=0)
        self.rng = np.random.default_rng(0)

    def send(self, producer, version=0):
        """Send a block of random content whose rows are of `version`; a copy of its fields."""
        grant = self.producers[producer].acquire()
        if grant is None:
            return None
        for name, array in grant.block.fields.items():
            array[...] = (
                self.rng.integers(0, 2, array.shape)
                if array.dtype == bool
                else (self.rng.integers(0, 100, array.shape))
            )
            if name in ("version", "valid"):
                array[...] = version if name == "version" else True
        fields = {name: array.copy() for name, array in grant.block.fields.items()}
        self.producers[producer].send(grant)
        return fields

    def ledger(self):
        return self.stream.blocks.table.ledger(consumer_lives=True)


def test_gate_deals_to_the_producers_of_its_consumer_only():
    stage = Stage(producers=4)
    stage.consumer.assigned = lambda: (1, 3)
    gate = Gate(num_producers=2, batch=BATCH, max_staleness=0)
    staging = Staging(stage.consumer, gate, LAYOUT, burn_in=0)
    staging.pump()
    assert stage.stream.limits.tolist() == [0, 2, 0, 1]
    for producer in (1, 3):
        assert stage.send(producer) is not None
    staging.pump()
    assert gate.delivered == [1, 1]


def _expected(blocks):
    joined = {}
    for field in LAYOUT.spec:
        axis = 0 if field.per == "head" else 1
        joined[field.name] = np.concatenate([b[field.name] for b in blocks], axis)
    return joined


def _assert_same(arrays, blocks):
    for name, array in _expected(blocks).items():
        np.testing.assert_array_equal(arrays[name], array, err_msg=name)
        assert arrays[name].dtype == array.dtype


def test_batch_is_its_blocks_side_by_side():
    stage = Stage()
    stage.staging.pump()
    blocks = [stage.send(p) for p in (0, 1, 0)]
    assert stage.staging.pop() is None
    stage.staging.pump()
    batch = stage.staging.pop()
    _assert_same(batch.arrays, blocks)
    assert batch.num_blocks == BATCH
    assert batch.env_steps == BATCH * ROLLOUT * ENVS
    assert batch.oldest_rows == [0, 0, 0]


def test_slots_are_free_as_soon_as_they_are_staged_and_consumed_when_popped():
    stage = Stage()
    stage.staging.pump()
    for producer in (0, 1, 0):
        stage.send(producer)
    stage.staging.pump()
    assert all(stage.stream.blocks.table.is_free(p, s) for p in range(2) for s in range(4))
    assert (stage.ledger().consumed, stage.ledger().in_flight) == (0, 3)
    stage.staging.pop()
    assert (stage.ledger().consumed, stage.ledger().in_flight) == (3, 0)


def test_only_valid_rows_of_the_rollout_count():
    stage = Stage()
    stage.staging.pump()
    grant = stage.producers[0].acquire()
    grant.block["valid"][:] = [[0, 0, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1]]
    grant.block["version"][:] = [[2, 0, 1, 2], [2, 2, 2, 0], [0, 0, 0, 0]]
    stage.producers[0].send(grant)
    stage.staging.pump()
    assert stage.staging._filling.oldest_rows == [1]
    assert stage.staging._filling.env_steps == 3  # of two envs, one of them ends in row 0


def test_nothing_is_granted_beyond_the_gate_until_the_batch_is_learned():
    stage = Stage()
    stage.staging.pump()
    sent = [stage.send(p) for p in (0, 1, 0, 1, 0)]
    assert [s is not None for s in sent] == [True, True, True, False, False]
    stage.staging.pump()
    batch = stage.staging.pop()
    assert stage.send(0) is None
    stage.staging.learned(batch, 1)
    assert [stage.send(p, 1) is not None for p in (0, 1, 0, 1)].count(True) == 3
    stage.staging.pump()
    assert stage.staging.pop() is not None


def test_block_that_is_too_old_is_dropped_counted_and_granted_again():
    stage = Stage(producers=1)
    stage.staging.rebase(5)
    stage.staging.pump()
    kept = [stage.send(0, 5)]
    stage.send(0, 4)
    kept.append(stage.send(0, 5))
    stage.staging.pump()
    assert stage.staging.telemetry.counters["blocks_too_old"] == 1
    assert stage.ledger().dropped == 1
    kept.append(stage.send(0, 5))
    assert kept[-1] is not None
    stage.staging.pump()
    batch = stage.staging.pop()
    _assert_same(batch.arrays, kept)
    assert stage.ledger().adds_up


def test_abandoned_block_is_granted_again():
    stage = Stage(producers=1)
    stage.staging.pump()
    stage.producers[0].abandon(stage.producers[0].acquire())
    stage.staging.pump()
    blocks = [stage.send(0) for _ in range(3)]
    assert None not in blocks
    stage.staging.pump()
    _assert_same(stage.staging.pop().arrays, blocks)


def test_blocks_wait_in_their_slots_while_no_batch_is_free():
    stage = Stage(producers=1, max_staleness=1)
    stage.staging.pump()
    for _ in range(4):
        stage.send(0)
    stage.staging.pump()
    for _ in range(2):
        stage.send(0)
    stage.staging.pump()  # there is one batch, and it is full
    assert stage.ledger().in_flight == 6
    assert sum(stage.stream.blocks.table.is_free(0, s) for s in range(4)) == 1
    batch = stage.staging.pop()
    stage.staging.learned(batch, 1)
    stage.staging.pump()
    assert stage.staging.pop() is not None


def test_save_and_load_continue_a_half_filled_batch():
    stage = Stage()
    stage.staging.pump()
    blocks = [stage.send(0), stage.send(1)]
    stage.staging.pump()
    again = Stage()
    again.stream.load(stage.stream.save())
    again.staging.load(stage.staging.save(with_blocks=True), version=0, with_blocks=True)
    again.rng = stage.rng
    again.staging.pump()
    blocks.append(again.send(0))
    assert again.send(1) is None
    again.staging.pump()
    batch = again.staging.pop()
    _assert_same(batch.arrays, blocks)
    assert batch.env_steps == BATCH * ROLLOUT * ENVS
    again.staging.learned(batch, 1)
    assert again.gate.limits == [3, 3]
