"""Two trainers that learn one policy together: real processes, real kills and signals."""

import os
import random
import signal
import time
from typing import Any

import pytest

RANKS = ("--launcher", "local", "--actors.count", "2", "--trainers.count", "2")
LONG = (*RANKS, "--stop.env-steps", "100000000")
KILL_SECONDS = 10.0


def _assert_together(run: Any) -> None:
    """Every rank had the same weights after every batch, and learned from rows as recorded."""
    rows = run.rows()
    assert [row["version"] for row in rows] == list(range(1, len(rows) + 1))
    assert {row["blocks"] for row in rows} == {2}
    assert max(row["ranks_apart"] for row in rows) == 0
    assert max(row["audit_max_difference"] for row in rows) < 1e-4
    assert max(row["staleness_max"] for row in rows) <= 1


def test_two_trainers_run_to_the_end(
    auditing: str, start_run: Any, assert_ledger_adds_up: Any
) -> None:
    run = start_run(auditing, *RANKS, "--inference", "shm", "--stop.env-steps", "4000")
    assert run.wait() == 0, run.output
    summary = run.summary
    assert summary["status"] == "completed"
    assert summary["env_steps"] >= 4000
    assert run.pid_of("trainer-0") != run.pid_of("trainer-1")
    assert_ledger_adds_up(summary)
    assert summary["blocks_consumed"] == 2 * summary["version"]
    assert summary["train_samples"] == sum(row["train_samples"] for row in run.rows())
    _assert_together(run)
    assert not list((run.folder / "errors").iterdir())
    run.assert_nothing_left()


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 0, marks=pytest.mark.slow)],
)
def test_run_that_was_stopped_goes_on(
    number: signal.Signals, code: int, auditing: str, start_run: Any, assert_ledger_adds_up: Any
) -> None:
    run = start_run(auditing, *LONG)
    run.wait_for_rows(3)
    run.popen.send_signal(number)
    assert run.wait() == code
    first = run.summary
    assert first["status"] == "interrupted"
    assert not list((run.folder / "errors").iterdir())
    for rank in range(2):  # none of them waited for the other until it was killed
        log = (run.folder / "logs" / "node-agent.log").read_text()
        assert f"trainer-{rank} did not stop" not in log
    assert_ledger_adds_up(first)
    assert len(list((run.folder / "checkpoints").iterdir())) == 1
    run.assert_nothing_left()

    steps = first["env_steps"] + 1000
    again = start_run("", "--stop.env-steps", str(steps), command="resume")

    assert again.wait() == 0, again.output
    last = again.summary
    assert last["version"] > first["version"]
    assert_ledger_adds_up(last)
    _assert_together(again)
    again.assert_nothing_left()


@pytest.mark.parametrize("victim", ["trainer-0", pytest.param("trainer-1", marks=pytest.mark.slow)])
def test_ranks_go_on_together_when_one_is_killed(
    victim: str, auditing: str, start_run: Any, assert_ledger_adds_up: Any
) -> None:
    options = ("--checkpoint.seconds", "0.5", "--algorithm.audits", "False")
    run = start_run(auditing, *LONG, *options)
    run.wait_for_rows(3)
    killed = run.pid_of(victim)

    os.kill(killed, signal.SIGKILL)

    run.wait_for_new_life(victim, killed)
    run.wait_for_rows(len(run.rows()) + 3)
    run.popen.send_signal(signal.SIGTERM)
    assert run.wait() == 0
    summary = run.summary
    assert summary["worker_restarts"] == 2  # both of them
    versions = [row["version"] for row in run.rows()]
    assert versions == sorted(set(versions))
    assert all(row["ranks_apart"] == 0 for row in run.rows())
    assert_ledger_adds_up(summary)
    run.assert_nothing_left()


@pytest.mark.parametrize("victim", ["trainer-0", pytest.param("trainer-1", marks=pytest.mark.slow)])
def test_run_fails_when_one_rank_is_killed(
    victim: str, auditing: str, start_run: Any, assert_ledger_adds_up: Any
) -> None:
    run = start_run(auditing, *LONG, "--restarts.trainers", "0")
    run.wait_for_rows(3)
    time.sleep(random.Random(victim).uniform(0, 0.5))

    os.kill(run.pid_of(victim), signal.SIGKILL)

    assert run.wait(KILL_SECONDS) == 3
    summary = run.summary
    assert summary["status"] == "failed"
    assert summary["reason"] == f"{victim}: {victim} was killed by SIGKILL"
    assert (run.folder / "errors" / f"{victim}.txt").exists()
    assert_ledger_adds_up(summary)
    assert summary["blocks_consumed"] >= 2 * 3
    run.assert_nothing_left()
