"""Local: one process a worker. It learns in every topology, and its books are in order."""

import json
from pathlib import Path
from typing import Any

import pytest

import srl
from srl.learning.checkpoint import list_checkpoints, read_checkpoint

TOPOLOGIES = {
    "inline inference": {"inference": "inline"},
    "one of two actors answers itself": {
        "inference": "shm",
        "actors__count": 2,
        "actors__inline": 1,
    },
    "one policy worker": {"inference": "shm", "policies__count": 1},
    "two policy workers": {"inference": "shm", "policies__count": 2, "max_staleness": 2},
    "blocks over tcp": {
        "samples": "tcp",
        "network__receivers": 2,
        "network__compression": "lz4",
    },
    "all over tcp": {"samples": "tcp", "inference": "tcp", "policies__count": 2},
}


SIMPLER = ("one policy worker",)
"""Of which others show the same: left to `make slow`."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(t, marks=[pytest.mark.slow] if t in SIMPLER else []) for t in TOPOLOGIES],
)
def run(
    request: pytest.FixtureRequest, auditing: str, tmp_path_factory: pytest.TempPathFactory
) -> srl.Run:
    options = TOPOLOGIES[request.param]
    folder = tmp_path_factory.mktemp("local") / "run"
    return srl.train(auditing, launcher="local", seed=1, out=str(folder), **options)


def rows_of(run: srl.Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]


def config_of(run: srl.Run) -> dict[str, Any]:
    return json.loads((run.folder / "config.json").read_text())


def test_run_learns(run: srl.Run) -> None:
    assert run.summary["status"] == "completed"
    assert run.summary["eval_return"] >= 15  # of 16; guessing gives 4


def test_ledger_adds_up(run: srl.Run, assert_ledger_adds_up: Any) -> None:
    assert_ledger_adds_up(run.summary)
    assert run.summary["blocks_lost"] == 0


def test_every_version_is_a_batch(run: srl.Run) -> None:
    rows, summary = rows_of(run), run.summary
    blocks_a_batch = 2  # 256 rows of blocks of 16 x 8
    assert [row["version"] for row in rows] == list(range(1, len(rows) + 1))
    assert summary["version"] == len(rows)
    assert summary["updates"] == rows[-1]["updates"]
    assert sum(row["blocks"] for row in rows) == blocks_a_batch * len(rows)
    # a batch handed to the learner while the run was stopped may have made no version
    assert 0 <= summary["blocks_consumed"] - blocks_a_batch * len(rows) <= blocks_a_batch
    assert summary["train_samples"] == sum(row["train_samples"] for row in rows)
    assert summary["env_steps"] >= rows[-1]["consumed_env_steps"]


def test_staleness_keeps_its_bound(run: srl.Run) -> None:
    bound = config_of(run)["max_staleness"]
    assert run.summary["staleness_max"] <= bound
    assert max(row["staleness_max"] for row in rows_of(run)) <= bound


def test_every_row_is_what_its_version_answers(run: srl.Run) -> None:
    assert max(row["audit_max_difference"] for row in rows_of(run)) < 1e-4


def test_final_checkpoint_is_of_the_last_version(run: srl.Run) -> None:
    newest = max((run.folder / "checkpoints").iterdir())
    manifest = json.loads((newest / "manifest.json").read_text())
    assert int(newest.name) == manifest["version"] == run.summary["version"]


def test_checkpoints_are_written_beside_the_learning(auditing: str, tmp_path: Path) -> None:
    run = srl.train(
        auditing,
        launcher="local",
        out=str(tmp_path / "run"),
        checkpoint__seconds=0.1,
        checkpoint__keep=1000,
        stop__env_steps=80_000,  # long enough for a fast machine, too
    )
    assert run.summary["status"] == "completed"
    paths = list_checkpoints(run.folder / "checkpoints")
    assert run.summary["checkpoints"]["written"] >= len(paths) > 2  # one version may be twice
    assert run.summary["checkpoints"]["failed"] == 0
    for path in paths:
        checkpoint = read_checkpoint(path)
        version = checkpoint.manifest["version"]
        # state and account are of one moment, although the trainer went on while it was written
        assert checkpoint.sections["trainer-0"]["counters"][0] == version
        assert checkpoint.manifest["progress"]["policies"]["main"]["version"] == version
        (row,) = (row for row in rows_of(run) if row["version"] == version)
        assert int(checkpoint.sections["trainer-0"]["learner.updates"]) == row["updates"]
        assert checkpoint.manifest["progress"]["policies"]["main"]["updates"] == row["updates"]
    assert run.summary["time_split"]["trainer"]["checkpoint"] > 0


@pytest.mark.parametrize(
    ("inference", "workers"),
    [
        ("shm", ["actor-0", "policy-0"]),
        pytest.param("inline", ["actor-0"], marks=pytest.mark.slow),
    ],
)
def test_who_acts_is_small(inference: str, workers: list[str], start_run: Any) -> None:
    run = start_run("cartpole", "--inference", inference, "--launcher", "local")
    run.wait_for_rows(3)  # it is at work, not only ready
    for worker in workers:
        facts = run.read(f"logs/{worker}.json")
        process = Path("/proc") / str(facts["pid"])
        peak = next(x for x in (process / "status").read_text().splitlines() if "VmHWM" in x)

        assert not facts["has_torch"]
        assert "libtorch" not in (process / "maps").read_text()
        assert facts["resident_megabytes"] < 80
        assert int(peak.split()[1]) / 1024 < 80
        assert facts["cpu_seconds"] < 1  # 0.3 on an idle machine; with torch 2
