import json

import pytest

from srl.telemetry.progress import Progress

UPDATE = {
    "version": 1,
    "updates": 4,
    "blocks": 2,
    "staleness_mean": 0.5,
    "staleness_max": 1,
    "train_samples_total": 64,
    "skipped_batches": 3,
    "policy_loss": 0.25,
}


def test_progress_adds_counters_over_workers_and_starts():
    progress = Progress()
    progress.base["env_steps"] = 100
    progress.on_report("actor-0", {"env_steps": 5}, {}, [(1.0, 3, "main")])
    progress.on_report("actor-1", {"env_steps": 7}, {}, [(3.0, 5, "main")])
    progress.on_report("actor-0", {"env_steps": 9}, {}, [])
    assert progress.total("env_steps") == 116
    assert progress.episodes == 2
    assert progress.mean_return == 2.0


def test_progress_keeps_an_account_a_policy():
    progress = Progress(["a", "b"], frozen=["c"])
    episodes = [(1.0, 3, "a"), (3.0, 5, "b"), (5.0, 5, "b"), (100.0, 1, "c")]
    progress.on_report("actor-0", {"env_steps": 5}, {}, episodes)
    progress.on_update("a", UPDATE)
    row = progress.on_update("b", {**UPDATE, "version": 7, "updates": 9, "staleness_max": 3})
    assert (row["policy"], row["version"], row["updates"]) == ("b", 7, 9)
    assert (row["episodes"], row["mean_return"], row["mean_length"]) == (2, 4.0, 5.0)
    assert {p: facts.mean_return for p, facts in progress.policies.items()} == {
        "a": 1.0,
        "b": 4.0,
        "c": 100.0,
    }
    assert progress.mean_return == 3.0  # frozen policies do not count
    assert (progress.version, progress.updates, progress.train_samples) == (7, 13, 128)
    assert progress.skipped_batches == 6
    assert (progress.episodes, progress.staleness_mean, progress.staleness_max) == (3, 0.5, 3)
    assert progress.policies["c"].summary()["frozen"]


@pytest.mark.parametrize("of_b", [99, 100])
def test_progress_window_is_full_when_that_of_every_learner_is(of_b):
    progress = Progress(["a", "b"], frozen=["c"])
    progress.on_report("actor-0", {}, {}, [(1.0, 3, "a")] * 150 + [(3.0, 5, "b")] * of_b)
    assert progress.is_window_full == (of_b == 100)
    assert progress.mean_return == pytest.approx((100 + 3.0 * of_b) / (100 + of_b))


def test_progress_weighs_staleness_by_blocks():
    progress = Progress()
    progress.on_update("main", UPDATE)
    progress.on_update("main", {**UPDATE, "version": 2, "blocks": 6, "staleness_mean": 0.0})
    assert progress.staleness_mean == (0.5 * 2 + 0.0 * 6) / 8
    assert progress.staleness_max == 1


def test_progress_is_not_spoiled_by_a_return_that_is_not_finite():
    progress = Progress()
    returns = [1.0, float("nan"), float("inf"), 3.0]
    progress.on_report("actor-0", {}, {}, [(value, 3, "main") for value in returns])
    assert (progress.mean_return, progress.episodes) == (2.0, 4)


def test_progress_of_before_skipped_batches_were_counted_is_read():
    old = Progress().to_dict()
    del old["policies"]["main"]["skipped_batches"]
    progress = Progress()
    progress.load(old)
    assert progress.skipped_batches == 0


def test_progress_goes_on_from_its_plain_form():
    before = Progress(["a", "b"])
    counters = {"env_steps": 5, "agent_steps": 3}
    before.on_report("actor-0", counters, {}, [(1.5, 3, "a"), (2.5, 3, "b")])
    before.on_update("b", UPDATE)
    after = Progress(["a", "b"])
    after.load(json.loads(json.dumps(before.to_dict())))
    assert after.to_dict() == before.to_dict()
    assert after.policies["b"].version == 1


def test_progress_splits_time_by_worker_kind():
    progress = Progress()
    progress.on_report("actor-0", {}, {"env": 1.0}, [])
    progress.on_report("actor-1", {}, {"env": 2.0, "send": 1.0}, [])
    assert progress.splits() == {"actor": {"env": 3.0, "send": 1.0}}
