"""Envs that hang or crash in real runs: the run ends with a reason, or goes on; and says which env."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from srl import cli

HERE = Path(__file__).parents[1]
FAULTY = f"{HERE / 'bad_envs.py'}:experiment"
FAILING = f"{HERE / 'bad_envs.py'}:Failing"
DEADLINE_SECONDS = 90
SEED = "4"  # with which the first episodes, that are probed, are whole


def failing(**options: Any) -> list[str]:
    given = json.dumps({"every": 5, "counts": False, **options})
    return ["--env.name", FAILING, "--env.options", given, "--seed", SEED]


def assert_hangs_again(repro: Path) -> None:
    again = subprocess.run(
        [sys.executable, "-m", "srl.cli", "repro", str(repro), "--timeout-seconds", "1"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert again.returncode == 0, again
    assert "reproduced: hang" in again.stdout


def test_hang_inline_ends_the_run_with_its_reason(start_run: Any) -> None:
    words = ["--launcher", "inline", "--env.timeout-seconds", "2"]
    run = start_run(FAULTY, *words, *failing(how="hang"))
    assert run.wait() == 3
    assert run.summary["status"] == "failed"
    reason = run.summary["reason"]
    assert reason.startswith(f"actor-0: env '{FAILING}' did not come back for 2 s")
    for word in ("lane", "seed", "step 2", "last action", "row"):
        assert word in reason
    assert "time.sleep" in (run.folder / "errors" / "actor-0.txt").read_text()
    (repro,) = (run.folder / "errors").glob("repro-*.json")
    assert repro.name in run.output
    run.assert_nothing_left()


def test_hang_of_an_actor_ends_its_process_with_a_last_word(start_run: Any) -> None:
    words = ["--launcher", "local", "--env.timeout-seconds", "2", "--restarts.actors", "0"]
    run = start_run(FAULTY, *words, *failing(how="hang"))
    assert run.wait() == 3
    assert run.summary["status"] == "failed"
    assert run.summary["reason"].startswith(f"actor-0: env '{FAILING}' did not come back for 2 s")
    assert "time.sleep" in (run.folder / "errors" / "actor-0.txt").read_text()
    assert "time.sleep" in (run.folder / "logs" / "actor-0.log").read_text()
    run.assert_nothing_left()
    (repro,) = (run.folder / "errors").glob("repro-*.json")
    assert_hangs_again(repro)


def test_run_goes_on_where_an_env_hangs(start_run: Any, assert_ledger_adds_up: Any) -> None:
    words = ["--launcher", "local", "--env.timeout-seconds", "1", "--evaluation.episodes", "0"]
    words += ["--stop.env-steps", "2000", "--restarts.wait-seconds", "0"]
    run = start_run(FAULTY, *words, *failing(how="hang", length=9, every=60))
    assert run.wait() == 0
    assert run.summary["status"] == "completed"
    assert run.summary["hangs"] >= run.summary["worker_restarts"] >= 1
    assert "did not come back for 1 s" in (run.folder / "errors" / "notes.txt").read_text()
    assert_ledger_adds_up(run.summary)
    run.assert_nothing_left()


def test_hang_in_the_final_evaluation_ends_the_run(start_run: Any) -> None:
    # of the 20 envs of the evaluation some hang, of the two that train none
    words = ["--actors.envs", "2", "--algorithm.batch-size", "16", "--stop.env-steps", "16"]
    words += ["--launcher", "inline", "--env.timeout-seconds", "2"]
    run = start_run(FAULTY, *words, *failing(how="hang"))
    assert run.wait() == 3
    assert run.summary["reason"].startswith("evaluator-0: env ")
    assert "of the run (lane" in run.summary["reason"]
    assert run.summary["hangs"] == 1
    (repro,) = (run.folder / "errors").glob("repro-*.json")
    assert repro.name in run.output
    run.assert_nothing_left()
    assert_hangs_again(repro)


@pytest.mark.parametrize("inference", ["inline", pytest.param("shm", marks=pytest.mark.slow)])
def test_run_goes_on_where_envs_crash(
    start_run: Any, assert_ledger_adds_up: Any, inference: str
) -> None:
    words = ["--launcher", "local", "--inference", inference, "--actors.count", "2"]
    run = start_run(FAULTY, *words, *failing(length=9), "--env.max-failures", "10")
    assert run.wait() == 0
    assert run.summary["status"] == "completed"
    assert run.summary["env_failures"] == run.summary["env_rebuilds"] > 10
    assert run.summary["envs_parked"] == 0
    assert_ledger_adds_up(run.summary)
    notes = (run.folder / "errors" / "notes.txt").read_text()
    assert "actor-0: env" in notes
    assert "actor-1: env" in notes
    assert run.output.count("it is rebuilt") == notes.count("it is rebuilt")
    run.assert_nothing_left()
    repro = sorted((run.folder / "errors").glob("repro-env-*.json"))[0]
    assert cli.main(["repro", str(repro)]) == 0


def test_hang_that_lets_no_other_code_run_is_told_as_one(start_run: Any) -> None:
    words = ["--launcher", "local", "--env.timeout-seconds", "1", "--restarts.actors", "0"]
    run = start_run(FAULTY, *words, *failing(how="hold"))
    assert run.wait() == 3
    assert "actor-0 hung in a call that lets no Python code run" in run.summary["reason"]
    assert "bad_envs.py" in (run.folder / "errors" / "actor-0.txt").read_text()
    assert run.summary["hangs"] == 1
    run.assert_nothing_left()


@pytest.mark.parametrize("how", ["hang", "hold"])
def test_hang_before_the_start_ends_the_command(how: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "srl.cli", "train", FAULTY, "--out", str(tmp_path / "run")]
    words = [*failing(how=how, at=0, every=1), "--env.timeout-seconds", "1"]
    done = subprocess.run(
        [*command, *words], capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )
    assert done.returncode == (2 if how == "hang" else 1), done
    assert ("nothing was started" if how == "hang" else "Timeout (") in done.stderr
    assert "bad_envs.py" in done.stderr
    assert not (tmp_path / "run").exists()


def test_processes_of_an_env_end_with_its_actor(
    start_run: Any, tmp_path: Path, wait_until: Any
) -> None:
    folder = tmp_path / "children"
    folder.mkdir()
    name, options = f"{HERE / 'bad_envs.py'}:Parent", json.dumps({"folder": str(folder)})
    words = ["--launcher", "local", "--stop.env-steps", "100000000", "--env.name", name]
    run = start_run(FAULTY, *words, "--env.options", options)
    run.wait_for_rows(3)
    os.kill(run.pid_of("actor-0"), signal.SIGKILL)
    run.wait_for_rows(len(run.rows()) + 3)
    run.popen.send_signal(signal.SIGTERM)
    assert run.wait() == 0
    pids = [int(path.name) for path in folder.iterdir()]
    assert len(pids) > 4  # of the probe, and of two lives of the actor
    wait_until(lambda: not any(map(is_alive, pids)), "processes of envs to end")
    run.assert_nothing_left()


def is_alive(pid: int) -> bool:
    try:
        return "sleep" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


def test_hang_inline_that_lets_no_other_code_run_ends_the_process(start_run: Any) -> None:
    words = ["--launcher", "inline", "--env.timeout-seconds", "1"]
    run = start_run(FAULTY, *words, *failing(how="hold"))
    assert run.wait() == 1
    assert "Timeout (" in run.output
    assert "bad_envs.py" in run.output
