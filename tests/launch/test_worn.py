"""Envs that hang, crash every 1,000 steps, leak 10 MB a second: runs complete, and name each."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

WORN = f"{Path(__file__).parent / 'worn.py'}:Worn"
CRASH = {"crash_every": 1000}
HANG = {"hang_every": 150}
LEAK = {"megabytes_per_second": 10.0}
RUN_SECONDS = 300


def complete(start_run: Any, options: dict[str, Any], *words: str) -> Any:
    """A run with two actors over worn envs, which has completed."""
    run = start_run(
        WORN,
        *("--env.options", json.dumps(options), "--launcher", "local", "--actors.count", "2"),
        *("--env.timeout-seconds", "2", "--restarts.wait-seconds", "0.1"),
        *("--evaluation.episodes", "0", *words),
    )
    assert run.wait(RUN_SECONDS) == 0
    assert run.summary["status"] == "completed"
    run.assert_nothing_left()
    return run


def notes_of(run: Any) -> str:
    return (run.folder / "errors" / "notes.txt").read_text()


def repros_of(run: Any, kind: str) -> list[Path]:
    found = sorted((run.folder / "errors").glob("repro-env-*.json"))
    return [path for path in found if json.loads(path.read_text())["kind"] == kind]


def assert_reproduced(files: list[Path], kind: str) -> None:
    for file in files:
        words = [sys.executable, "-m", "srl.cli", "repro", str(file), "--timeout-seconds", "1"]
        again = subprocess.run(words, capture_output=True, text=True, timeout=90, check=False)
        assert again.returncode == 0, again
        assert f"reproduced: {kind}" in again.stdout


def assert_crashes_are_named(run: Any) -> None:
    failures = run.summary["env_failures"]
    assert failures == run.summary["env_rebuilds"] + run.summary["envs_parked"]
    # one in a thousand steps, and what a worker that ended had not reported
    assert 0.4 < failures / (run.summary["env_steps"] / 1000) < 1.6
    named = re.findall(r"failed in step: RuntimeError\('a gear broke'\).*lane \d+", notes_of(run))
    assert len(named) >= min(failures, 20)
    assert_reproduced(repros_of(run, "RuntimeError")[:2], "RuntimeError")


def assert_hangs_are_named(run: Any) -> None:
    assert run.summary["worker_restarts"] >= 1
    assert "did not come back for 2 s (--env.timeout-seconds)" in notes_of(run)
    assert "time.sleep" in "".join(p.read_text() for p in run.folder.glob("errors/actor-*.txt"))
    assert_reproduced(repros_of(run, "hang")[:1], "hang")


def assert_leak_is_named(run: Any, limit: int) -> None:
    words = f"MB, more than actors.memory-limit-mb {limit}, and was ended: does its env {WORN} keep"
    assert words in run.output
    assert run.summary["worker_restarts"] >= 1
    assert run.summary["memory"]["growing"].keys() <= {"actor-0", "actor-1"}


@pytest.mark.slow
def test_crashes_every_thousand_steps(start_run: Any, assert_ledger_adds_up: Any) -> None:
    run = complete(start_run, CRASH, "--stop.env-steps", "60000")
    assert_crashes_are_named(run)
    assert run.summary["worker_restarts"] == 0
    assert_ledger_adds_up(run.summary)


@pytest.mark.slow
def test_hangs(start_run: Any, assert_ledger_adds_up: Any) -> None:
    run = complete(start_run, HANG, "--stop.env-steps", "40000")
    assert_hangs_are_named(run)
    assert_ledger_adds_up(run.summary)


@pytest.mark.slow
def test_leaks(start_run: Any, assert_ledger_adds_up: Any) -> None:
    run = complete(start_run, LEAK, "--actors.memory-limit-mb", "200", "--stop.seconds", "45")
    assert_leak_is_named(run, 200)
    assert run.summary["memory"]["growing"]
    assert_ledger_adds_up(run.summary)


@pytest.mark.slow
def test_all_at_once(start_run: Any, assert_ledger_adds_up: Any) -> None:
    worn = {**CRASH, "hang_every": 1500, **LEAK}
    run = complete(start_run, worn, "--actors.memory-limit-mb", "120", "--stop.seconds", "60")
    assert_crashes_are_named(run)
    assert_hangs_are_named(run)
    assert_leak_is_named(run, 120)
    assert_ledger_adds_up(run.summary)
