"""Numbers that are not finite in real runs: named, kept, and skipped or the reason of the end."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from srl import cli
from srl.learning.checkpoint import latest_checkpoint, read_checkpoint
from srl.learning.guard import MOST_IN_A_ROW, read_batch

UNFINITE = f"{Path(__file__).parent / 'unfinite.py'}:experiment"
ENV, EPISODE, STEP = 5, 2, 3  # where it breaks
LAUNCHERS = {
    "inline": ("--launcher", "inline"),
    "local": ("--launcher", "local"),
    "policy worker": ("--launcher", "local", "--inference", "shm"),
    "two trainers": ("--launcher", "local", "--trainers.count", "2"),
}
slow = pytest.mark.slow
# the policy computes with what it is shown
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def options(**values: Any) -> tuple[str, str]:
    return "--env.options", json.dumps(values)


def kept(folder: Path) -> list[tuple[dict[str, np.ndarray], dict[str, Any]]]:
    """The batches kept, in order."""
    return [read_batch(path) for path in sorted((folder / "errors").glob("nan-*.safetensors"))]


@pytest.mark.parametrize(
    ("launcher", "fault", "value"),
    [
        ("inline", "obs", "NaN"),
        ("inline", "reward", "-Infinity"),
        pytest.param("two trainers", "obs", "NaN", marks=slow),
        pytest.param("local", "reward", "Infinity", marks=slow),
        pytest.param("policy worker", "obs", "-Infinity", marks=slow),
    ],
)
def test_run_stops_and_names_the_env(launcher: str, fault: str, value: str, start_run: Any) -> None:
    words = ("--env.options", f'{{"fault": "{fault}", "value": {value}}}')
    run = start_run(UNFINITE, *LAUNCHERS[launcher], *words)
    assert run.wait() == 3, run.output
    summary = run.summary
    assert summary["status"] == "failed"
    trainer = "trainer-1" if launcher == "two trainers" else "trainer-0"  # whose actor-1 is
    did = "showed obs[1]" if fault == "obs" else "gave reward"
    what = f"{did} = {float(value)}"
    where = f"step {STEP} of episode {EPISODE}"
    assert summary["reason"].startswith(f"{trainer}: env {ENV} (actor-1) {what} in {where}")
    assert "--on-nan skip" in summary["reason"]
    assert f"srl resume {run.folder}" in summary["reason"]
    ((batch, header),) = kept(run.folder)
    place = header["place"]
    assert place["env"] == place["lane"] == ENV
    assert (place["field"], place["actor"], place["step"]) == (fault, 1, STEP)
    value = batch[fault][place["row"], place["column"]]
    assert not np.isfinite(value).all()
    assert summary["version"] == header["version"]  # what came before it was learned
    assert "NaN" not in (run.folder / "metrics.jsonl").read_text()
    run.assert_nothing_left()


@pytest.mark.parametrize(
    "launcher",
    ["inline", *(pytest.param(x, marks=slow) for x in ("local", "policy worker", "two trainers"))],
)
def test_batch_is_skipped_and_the_run_goes_on(
    launcher: str, start_run: Any, assert_ledger_adds_up: Any
) -> None:
    # an actor that a busy machine holds back may neither be too late nor have its block dropped
    patient = ("--max-staleness", "8", "--stop.env-steps", "6000")
    run = start_run(UNFINITE, *LAUNCHERS[launcher], *patient, "--on-nan", "skip")
    assert run.wait() == 0, run.output
    summary, rows = run.summary, run.rows()
    assert summary["status"] == "completed"
    assert summary["env_steps"] >= 6000
    assert_ledger_adds_up(summary)
    assert summary["skipped_batches"] == rows[-1]["skipped_batches"] == 1
    assert summary["policies"]["main"]["skipped_batches"] == 1
    assert [row["version"] for row in rows] == list(range(1, len(rows) + 1))
    assert {row["blocks"] for row in rows} == {2}
    (skipped,) = [row for row in rows if not row["train_samples"]]
    ((_, header),) = kept(run.folder)
    assert skipped["version"] == header["version"] + 1
    assert summary["updates"] == rows[-1]["updates"] == 4 * (len(rows) - 1)
    assert np.isfinite(summary["mean_return"])
    assert run.output.count("skipped for a number that is not finite") == 1
    trainer = read_checkpoint(latest_checkpoint(run.folder / "checkpoints")).sections["trainer-0"]
    assert all(np.isfinite(array).all() for array in trainer.values())


def test_run_that_only_skips_stops(start_run: Any) -> None:
    run = start_run(
        UNFINITE, "--launcher", "inline", "--on-nan", "skip", *options(always=True, length=6)
    )
    code = run.wait()
    skipped = [row["version"] for row in run.rows() if not row["train_samples"]]
    # an episode is 7 rows and a block has 8: every block of the env has such a step
    assert code == 3, run.output
    assert len(skipped) == run.summary["skipped_batches"] == MOST_IN_A_ROW
    assert f"{MOST_IN_A_ROW} batches were skipped right before" in run.summary["reason"]


def test_run_that_stopped_goes_on_where_it_is_told_to_skip(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["--launcher", "inline", "--out", str(out), "--checkpoint.seconds", "0.1"]
    assert cli.main(["train", UNFINITE, *words, *options(), "--stop.env-steps", "100"]) == 0
    assert cli.main(["resume", str(out), "--stop.env-steps", "1000"]) == 3
    reason = json.loads((out / "summary.json").read_text())["reason"]
    newest = latest_checkpoint(out / "checkpoints").name
    assert f"goes on from checkpoint {newest}" in reason
    assert cli.main(["resume", str(out), "--stop.env-steps", "1000", "--on-nan", "skip"]) == 0
    assert json.loads((out / "summary.json").read_text())["skipped_batches"] == 1


def test_skipping_costs_no_bit_of_a_resumed_run(tmp_path: Path) -> None:
    """Interrupted after the skipped batch and resumed: the same rows and weights as in one go."""
    found = []
    for steps in ((1000,), (300, 1000)):
        out = tmp_path / f"{len(steps)}"
        words = ["--launcher", "inline", "--out", str(out), "--on-nan", "skip"]
        words += ["--evaluation.episodes", "0", "--algorithm.learning-rate-schedule", "constant"]
        assert cli.main(["train", UNFINITE, *words, "--stop.env-steps", str(steps[0])]) == 0
        for more in steps[1:]:
            summary = json.loads((out / "summary.json").read_text())
            assert summary["skipped_batches"] == 1
            assert cli.main(["resume", str(out), "--stop.env-steps", str(more)]) == 0
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        rows = [{k: v for k, v in row.items() if k != "time"} for row in rows]
        sections = read_checkpoint(latest_checkpoint(out / "checkpoints")).sections
        found.append((rows, sections["trainer-0"]))
    (rows, weights), (again, weights_again) = found
    assert rows == again
    assert weights.keys() == weights_again.keys()
    for name, array in weights.items():
        np.testing.assert_array_equal(array, weights_again[name])


def test_diverging_learning_is_undone_until_it_is_too_much(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["--launcher", "inline", "--out", str(out), "--on-nan", "skip", *options(fault="none")]
    assert cli.main(["train", UNFINITE, *words, "--algorithm.learning-rate", "1e30"]) == 3
    summary = json.loads((out / "summary.json").read_text())
    assert "learning has diverged" in summary["reason"]
    assert "Lower the learning rate" in summary["reason"]
    assert summary["skipped_batches"] >= MOST_IN_A_ROW
    (batch, header), *_ = kept(out)
    assert header["what"] in ("metric", "weights")
    assert header["place"] is None
    assert batch["valid"].any()
