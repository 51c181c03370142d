import numpy as np
import pytest

from srl.core.block import Layout, route_spec
from srl.core.env import AgentSpec, Discrete, Observation
from srl.core.errors import WorkerError
from srl.learning.staging import Staging
from srl.learning.staleness import Gate
from srl.streams.parameters.inline import InlineParameters
from srl.streams.samples.inline import InlineSamples
from srl.testing.fakes import FakeLearner, FakePolicy
from srl.transport.arena import Arena
from srl.transport.blocks import BlockArena, block_arena_bytes
from srl.workers.trainer import Trainer

AGENT = AgentSpec((Observation("obs", (2,), "float32"),), Discrete(2))
LAYOUT = Layout(route_spec(AGENT, FakePolicy(AGENT).records), rows=3, lanes=2, envs=2)


class Made:
    def __init__(self, max_staleness=0, total_env_steps=None):
        buffer = Arena.heap(block_arena_bytes(LAYOUT, 1, 8)).buffer
        self.stream = InlineSamples(BlockArena(buffer, LAYOUT, 1, 8))
        self.producer = self.stream.producer(0)
        self.parameters = InlineParameters()
        self.learner = FakeLearner(FakePolicy(AGENT))
        gate = Gate(num_producers=1, batch=2, max_staleness=max_staleness)
        staging = Staging(self.stream.consumer(), gate, LAYOUT, burn_in=0, num_buffers=1)
        self.trainer = Trainer(
            "trainer-0",
            self.learner,
            staging,
            self.parameters,
            thread=None,
            total_env_steps=total_env_steps,
        )

    def send(self, fill, version):
        grant = self.producer.acquire()
        assert grant is not None
        grant.block["obs"][:] = fill
        grant.block["valid"][:] = True
        grant.block["version"][:] = version
        self.producer.send(grant)


def test_opening_publishes_the_first_version():
    made = Made()
    assert made.parameters.latest() == -1
    made.trainer.open()
    assert made.parameters.latest() == 0


def test_full_batch_is_learned_and_published_and_the_next_is_let_come():
    made = Made(total_env_steps=16)
    made.trainer.open()
    assert not made.trainer.step()
    for version in range(3):
        for fill in (1, 2):
            made.send(10 * version + fill, version)
        assert made.producer.acquire() is None
        assert made.trainer.step()
        assert made.parameters.latest() == version + 1 == made.trainer.version
        assert made.parameters.fetch()[1]["weight"] == version + 1
        obs = made.learner.seen[version]["obs"]
        assert obs.shape == (3, 4, 2)
        np.testing.assert_array_equal(obs[0, :, 0] - 10 * version, [1, 1, 2, 2])
    assert made.learner.progress == [0, 0.5, 1]
    assert made.stream.blocks.table.ledger(consumer_lives=True).consumed == 6


def test_report_says_how_stale_the_blocks_were():
    made = Made(max_staleness=1)
    made.trainer.open()
    made.trainer.step()
    for _ in range(4):
        made.send(0, 0)
    made.trainer.step()
    made.trainer.step()
    first, second = made.trainer.telemetry.take_updates()
    assert (first["staleness_mean"], first["staleness_max"]) == (0, 0)
    assert (second["staleness_mean"], second["staleness_max"]) == (1, 1)
    assert (second["version"], second["updates"], second["blocks"]) == (2, 2, 2)
    assert second["consumed_env_steps"] == 2 * 2 * 2 * 2
    assert second["train_samples_total"] == 2 * 3 * 4


def test_saved_and_loaded_trainer_goes_on():
    made = Made()
    made.trainer.open()
    made.trainer.step()
    made.send(1, 0)
    made.trainer.step()  # one block is staged
    again = Made()
    again.stream.load(made.stream.save())
    again.trainer.load(made.trainer.save())
    again.trainer.open()
    again.send(2, 0)
    assert again.trainer.step()
    np.testing.assert_array_equal(again.learner.seen[0]["obs"][0, :, 0], [1, 1, 2, 2])
    assert again.trainer.version == 1


def test_learning_that_diverges_is_an_error_and_not_published():
    made = Made()
    made.trainer.open()
    made.trainer.step()
    learn = made.trainer._learner.learn
    made.trainer._learner.learn = lambda *a: learn(*a) | {"policy_loss": float("nan")}
    for _ in range(2):
        made.send(0, 0)
    with pytest.raises(WorkerError, match="policy_loss is nan after version 0"):
        made.trainer.step()
    assert made.parameters.latest() == 0
    made.trainer.close()
