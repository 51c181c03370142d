import json

from srl.telemetry.progress import Progress

UPDATE = {
    "version": 1,
    "updates": 4,
    "blocks": 2,
    "staleness_mean": 0.5,
    "staleness_max": 1,
    "train_samples_total": 64,
    "policy_loss": 0.25,
}


def test_progress_adds_counters_over_workers_and_starts():
    progress = Progress()
    progress.base["env_steps"] = 100
    progress.on_report("actor-0", {"env_steps": 5}, {}, [(1.0, 3)])
    progress.on_report("actor-1", {"env_steps": 7}, {}, [(3.0, 5)])
    progress.on_report("actor-0", {"env_steps": 9}, {}, [])
    assert progress.total("env_steps") == 116
    assert progress.episodes == 2
    assert progress.mean_return == 2.0


def test_progress_weighs_staleness_by_blocks():
    progress = Progress()
    progress.on_update(UPDATE)
    progress.on_update({**UPDATE, "version": 2, "blocks": 6, "staleness_mean": 0.0})
    assert progress.staleness_mean == (0.5 * 2 + 0.0 * 6) / 8
    assert progress.staleness_max == 1


def test_progress_goes_on_from_its_plain_form():
    before = Progress()
    before.on_report("actor-0", {"env_steps": 5, "agent_steps": 3}, {}, [(1.5, 3)])
    before.on_update(UPDATE)
    after = Progress()
    after.load(json.loads(json.dumps(before.to_dict())))
    assert after.to_dict() == before.to_dict()


def test_progress_catches_up_with_a_later_row_and_never_goes_back():
    progress = Progress()
    row = {
        "env_steps": 50,
        "agent_steps": 50,
        "train_samples_total": 9,
        "episodes": 2,
        "version": 3,
        "updates": 9,
        "time": {"seconds": 4.0},
    }
    progress.catch_up(row)
    progress.catch_up({**row, "env_steps": 40, "version": 1})
    assert (progress.total("env_steps"), progress.version) == (50, 3)


def test_progress_splits_time_by_worker_kind():
    progress = Progress()
    progress.on_report("actor-0", {}, {"env": 1.0}, [])
    progress.on_report("actor-1", {}, {"env": 2.0, "send": 1.0}, [])
    assert progress.splits() == {"actor": {"env": 3.0, "send": 1.0}}
