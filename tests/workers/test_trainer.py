import threading

import numpy as np
import pytest

from srl.core.block import Layout, route_spec
from srl.core.env import AgentSpec, Discrete, Observation
from srl.core.errors import StreamError, WorkerError
from srl.learning.finite import Tracer
from srl.learning.guard import MOST_IN_A_ROW, Guard
from srl.learning.staging import Staging
from srl.learning.staleness import Gate
from srl.streams.parameters.inline import InlineParameters
from srl.streams.samples.inline import InlineSamples
from srl.testing.fakes import FakeLearner, FakePolicy, ThreadRanks, run_ranks
from srl.transport.arena import Arena
from srl.transport.blocks import BlockArena, block_arena_bytes
from srl.workers import trainer as trainer_module
from srl.workers.trainer import Trainer

AGENT = AgentSpec((Observation("obs", (2,), "float32"),), Discrete(2))
LAYOUT = Layout(route_spec(AGENT, FakePolicy(AGENT).records), rows=3, lanes=2, envs=2)


class Made:
    def __init__(
        self, max_staleness=0, total_env_steps=None, ranks=None, saves_staged=True, on_nan="stop"
    ):
        buffer = Arena.heap(block_arena_bytes(LAYOUT, 1, 8)).buffer
        self.stream = InlineSamples(BlockArena(buffer, LAYOUT, 1, 8))
        self.producer = self.stream.producer(0)
        self.parameters = InlineParameters()
        self.learner = FakeLearner(FakePolicy(AGENT))
        gate = Gate(num_producers=1, batch=2, max_staleness=max_staleness)
        staging = Staging(self.stream.consumer(), gate, LAYOUT, burn_in=0)
        self.trainer = Trainer(
            "trainer-0",
            self.learner,
            staging,
            None if ranks is not None and ranks.rank else self.parameters,
            total_env_steps=total_env_steps,
            ranks=ranks,
            saves_staged=saves_staged,
            guard=Guard(Tracer(LAYOUT), on_nan=on_nan, worker="trainer-0"),
        )

    @property
    def ledger(self):
        return self.stream.blocks.table.ledger(consumer_lives=True)

    def send(self, fill, version, valid=True):
        grant = self.producer.acquire()
        assert grant is not None
        grant.block["obs"][:] = fill
        grant.block["valid"][:] = valid
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


def open_with(made, *fills):
    """Open, and send a batch whose blocks are filled so."""
    made.trainer.open()
    made.trainer.step()
    for fill in fills:
        made.send(fill, 0)
    return made


def test_batch_that_is_not_finite_stops_the_trainer_before_it_is_learned():
    made = open_with(Made(), 1, np.nan)
    with pytest.raises(WorkerError, match=r"env 0 showed obs\[0\] = nan in step 0"):
        made.trainer.step()
    assert made.learner.seen == []
    assert made.parameters.latest() == made.trainer.version == 0
    assert (made.ledger.consumed, made.ledger.in_flight) == (0, 2)
    assert made.trainer.save()["counters"][0] == 0  # what it has is sound
    made.trainer.close()


def test_skipped_batch_makes_a_version_of_the_same_weights_and_the_next_is_let_come():
    made = open_with(Made(on_nan="skip", total_env_steps=16), 1, np.nan)
    assert made.trainer.step()
    assert made.learner.seen == []
    assert made.parameters.latest() == made.trainer.version == 1
    assert made.parameters.fetch()[1]["weight"] == 0
    assert made.ledger.consumed == 2
    for fill in (3, 4):  # staleness 0: only the next version lets them come
        made.send(fill, 1)
    assert made.trainer.step()
    np.testing.assert_array_equal(made.learner.seen[0]["obs"][0, :, 0], [3, 3, 4, 4])
    assert made.learner.progress == [0.5]  # schedules go on
    skipped, learned = made.trainer.telemetry.take_updates()
    assert (skipped["version"], skipped["skipped_batches"]) == (1, 1)
    assert (skipped["train_samples"], skipped["updates"], skipped["blocks"]) == (0, 0, 2)
    assert (learned["version"], learned["skipped_batches"], learned["updates"]) == (2, 1, 1)
    assert learned["train_samples_total"] == 12
    assert made.ledger.adds_up


def test_rows_that_are_not_valid_do_not_matter():
    made = open_with(Made(), 1)
    made.send(np.nan, 0, valid=False)
    assert made.trainer.step()
    assert len(made.learner.seen) == 1


def diverge(made, how):
    """The learner's weights become NaN, and its metrics say so or do not."""
    learn = made.learner.learn

    def diverging(*args):
        metrics = learn(*args)
        made.learner.policy.load_weights({"weight": np.asarray(np.nan, np.float32)})
        return metrics | ({"grad_norm": float("nan")} if how == "metrics" else {})

    made.learner.learn = diverging
    return learn


@pytest.mark.parametrize(("how", "name"), [("metrics", "grad_norm is nan"), ("weights", "weight")])
def test_learning_that_diverges_is_undone(how, name, caplog):
    made = open_with(Made(on_nan="skip"), 1, 2)
    learn = diverge(made, how)
    assert made.trainer.step()
    assert f"learning has diverged: {name}" in caplog.text
    assert made.parameters.latest() == made.trainer.version == 1
    assert made.parameters.fetch()[1]["weight"] == 0
    assert made.learner.updates == 0
    (row,) = made.trainer.telemetry.take_updates()
    assert (row["skipped_batches"], row["train_samples"], row["updates"]) == (1, 0, 0)
    assert "grad_norm" not in row
    made.learner.learn = learn
    made.send(1, 1)
    made.send(2, 1)
    assert made.trainer.step()
    assert made.parameters.fetch()[1]["weight"] == 1


def test_weights_that_are_not_finite_stop_the_trainer_and_are_not_published():
    made = open_with(Made(), 1, 2)
    diverge(made, "weights")
    with pytest.raises(WorkerError, match="weight is not finite after version 0"):
        made.trainer.step()
    assert made.parameters.latest() == 0
    with pytest.raises(StreamError, match="nothing to save"):
        made.trainer.save()
    made.trainer.close()


def test_trainer_that_only_skips_stops_at_last_and_a_resumed_one_goes_on_counting():
    made = Made(on_nan="skip")
    made.trainer.open()
    made.trainer.step()
    for version in range(MOST_IN_A_ROW):
        made.send(np.inf, version)
        made.send(1, version)
        assert made.trainer.step()
    again = Made(on_nan="skip")
    again.stream.load(made.stream.save())
    again.trainer.load(made.trainer.save())
    again.trainer.open()
    again.trainer.step()
    again.send(np.inf, MOST_IN_A_ROW)
    again.send(1, MOST_IN_A_ROW)
    with pytest.raises(WorkerError, match=f"{MOST_IN_A_ROW} batches were skipped right before"):
        again.trainer.step()
    old = {name: array for name, array in made.trainer.save().items() if name != "skipped"}
    Made().trainer.load(old)  # of before there was such a count


def test_ranks_skip_a_batch_together_if_one_of_them_has_a_fault():
    def work(ranks):
        made = open_with(Made(ranks=ranks, on_nan="skip"), 1, np.nan if ranks.rank else 2)
        assert made.trainer.step()
        made.send(3, 1)
        made.send(4, 1)
        assert made.trainer.step()
        return made

    for made in run_ranks(2, work):
        assert (made.trainer.version, made.learner.updates) == (2, 1)
        assert made.learner.seen[0]["obs"][0, 0, 0] == 3
        assert made.ledger.consumed == 4


@pytest.mark.parametrize("faulty", [0, 1])
def test_rank_with_a_fault_stops_and_the_others_wait_for_orders_with_sound_weights(faulty):
    def work(ranks):
        ranks = _counted(ranks)
        made = open_with(Made(ranks=ranks), 1, np.nan if ranks.rank == faulty else 2)
        if ranks.rank == faulty:
            with pytest.raises(WorkerError, match="showed obs"):
                made.trainer.step()
        else:
            assert not made.trainer.step()
            assert not made.trainer.step()
            assert made.trainer.save()["counters"][0] == 0
        assert made.learner.seen == []
        made.trainer.close()
        return ranks.meetings

    assert run_ranks(2, work) == [2, 2]  # after opening, and with the fault: nobody waits


def test_ranks_that_do_not_agree_on_what_came_of_learning_are_an_error():
    def work(ranks):
        made = open_with(Made(ranks=ranks, on_nan="skip"), 1, 2)
        if ranks.rank:
            diverge(made, "metrics")
        with pytest.raises(WorkerError, match="different numbers of batches"):
            made.trainer.step()
        made.trainer.close()

    run_ranks(2, work)


def _counted(ranks: ThreadRanks):
    """Count the meetings a rank comes to."""
    gather, ranks.meetings = ranks.gather, 0

    def counted(values):
        ranks.meetings += 1
        return gather(values)

    ranks.gather = counted
    return ranks


def test_ranks_learn_together_and_rank_0_speaks_for_all():
    def work(ranks):
        made = Made(max_staleness=1, total_env_steps=28, ranks=ranks)
        made.trainer.open()
        made.trainer.step()
        for version in (0, 0, 1, 1):
            # Of rank 1 only the first of two lanes has a valid row 0, and its last blocks are old.
            valid = np.array([[True, False]] * 3) if ranks.rank else True
            made.send(version, 0 if ranks.rank else version, valid)
            made.trainer.step()
        return made

    one, two = run_ranks(2, work)
    assert one.trainer.version == two.trainer.version == 2
    # 2 blocks x 2 rows x 2 lanes of rank 0, half as many of rank 1
    assert one.learner.progress == two.learner.progress == [0, 12 / 28]
    assert one.parameters.latest() == 2
    assert two.parameters.latest() == -1
    first, second = one.trainer.telemetry.take_updates()
    assert two.trainer.telemetry.take_updates() == []
    assert (first["blocks"], first["consumed_env_steps"]) == (4, 12)
    assert (first["staleness_mean"], first["staleness_max"]) == (0, 0)
    assert (second["version"], second["blocks"], second["consumed_env_steps"]) == (2, 4, 24)
    assert (second["staleness_mean"], second["staleness_max"]) == (0.5, 1)


def test_rank_0_has_published_before_any_rank_lets_blocks_of_a_version_come():
    events = []

    def work(ranks):
        made = Made(ranks=ranks)
        publish, grant = made.parameters.publish, made.trainer._staging._consumer.grant

        def slow_publish(weights, version):
            threading.Event().wait(0.1)  # the other rank would have gone on by now
            publish(weights, version)
            events.append(("published", version))

        def noted_grant(limits, min_version):
            events.append(("granted", min_version))
            grant(limits, min_version)

        made.parameters.publish = slow_publish
        made.trainer._staging._consumer.grant = noted_grant
        made.trainer.open()
        made.trainer.step()
        for version in range(2):
            made.send(0, version)
            made.send(0, version)
            assert made.trainer.step()

    run_ranks(2, work)
    for version in range(3):
        assert events.index(("published", version)) < events.index(("granted", version))


@pytest.mark.parametrize("stopper", [0, 1])
@pytest.mark.parametrize("num_learned", [0, 2])
def test_rank_with_a_full_batch_gives_it_up_when_another_stops(stopper, num_learned):
    def work(ranks):
        made = Made(ranks=_counted(ranks))
        made.trainer.open()
        made.trainer.step()
        for version in range(num_learned):
            made.send(0, version)
            made.send(0, version)
            assert made.trainer.step()
        if ranks.rank == stopper:
            made.send(0, num_learned)
            assert not made.trainer.step()  # half a batch
        else:
            made.send(0, num_learned)
            made.send(0, num_learned)
            assert not made.trainer.step()  # waits for the other
            assert not made.trainer.step()  # and never again
        state = made.trainer.save()
        made.trainer.close()
        made.trainer.close()
        ledger = made.stream.blocks.table.ledger(consumer_lives=True)
        return ranks.meetings, state["counters"][0], ledger.consumed, ledger.in_flight

    results = run_ranks(2, work)
    meetings = 1 + 2 * num_learned + 1  # after opening; before and after learning; to stop
    for rank, result in enumerate(results):
        in_flight = 1 if rank == stopper else 2
        assert result == (meetings, num_learned, 2 * num_learned, in_flight)


def test_ranks_that_all_stop_without_a_batch_meet_once():
    def work(ranks):
        made = Made(ranks=_counted(ranks))
        made.trainer.open()
        made.trainer.close()
        return ranks.meetings

    assert run_ranks(3, work) == [2] * 3


def test_rank_left_between_two_batches_waits_for_orders_and_can_save(monkeypatch):
    def work(ranks):
        made = Made(ranks=ranks)
        made.trainer.open()
        made.trainer.step()
        if ranks.rank == 1:
            ranks.abort()  # dies
            return
        made.send(0, 0)
        made.send(0, 0)
        assert not made.trainer.step()
        assert not made.trainer.step()
        assert made.trainer.save()["counters"][0] == 0
        assert made.stream.blocks.table.ledger(consumer_lives=True).in_flight == 2
        monkeypatch.setattr(trainer_module.time, "monotonic", lambda: float("inf"))
        with pytest.raises(StreamError, match="was left by another"):
            made.trainer.step()
        made.trainer.close()

    run_ranks(2, work)


def test_rank_left_while_learning_has_nothing_to_save():
    def work(ranks):
        made = Made(ranks=ranks)

        def learn(batch, progress):
            if ranks.rank == 1:
                ranks.abort()  # dies
            raise StreamError("left")

        made.learner.learn = learn
        made.trainer.open()
        made.trainer.step()
        made.send(0, 0)
        made.send(0, 0)
        assert not made.trainer.step()
        assert made.stream.blocks.table.ledger(consumer_lives=True).consumed == 2
        with pytest.raises(StreamError, match="nothing to save"):
            made.trainer.save()
        made.trainer.close()

    run_ranks(2, work)


def test_rank_that_fails_alone_while_learning_does_not_wait_for_the_others():
    def work(ranks):
        made = Made(ranks=_counted(ranks))
        made.trainer.open()
        made.trainer.step()
        made.send(0, 0)
        made.send(0, 0)
        if ranks.rank == 1:
            made.learner.learn = lambda batch, progress: {"loss": float("nan")}
            with pytest.raises(WorkerError, match="diverged"):
                made.trainer.step()
            made.trainer.close()
            ranks.abort()  # its process ends
        else:
            assert not made.trainer.step()
            made.trainer.close()
        return ranks.meetings

    assert run_ranks(2, work) == [3, 2]


def test_ranks_of_different_versions_are_an_error():
    def work(ranks):
        made = Made(ranks=ranks)
        state = made.trainer.save()
        state["counters"][0] = ranks.rank
        made.trainer.load({k: v for k, v in state.items() if not k.startswith("staging.")})
        with pytest.raises(WorkerError, match="different numbers of batches"):
            made.trainer.open()

    run_ranks(2, work)


@pytest.mark.parametrize("saves_staged", [True, False])
def test_what_is_staged_is_saved_only_where_blocks_come_back(saves_staged):
    made = Made(saves_staged=saves_staged)
    made.trainer.open()
    made.trainer.step()
    made.send(1, 0)
    made.trainer.step()
    state = made.trainer.save()
    assert any(name.startswith("staging.") for name in state) == saves_staged
    other = Made(saves_staged=False)  # a run of several processes that goes on from either
    other.trainer.load({**Made().trainer.save(), **state})
    other.trainer.open()
    other.trainer.step()
    for fill in (1, 2):
        other.send(fill, 0)
    assert other.trainer.step()
