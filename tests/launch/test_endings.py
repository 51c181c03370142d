"""How runs end: stop rules met at once, a final evaluation that goes wrong, a folder in use."""

import json
import os
import signal
import threading
from pathlib import Path

import pytest

import srl
from srl import cli
from srl.core.errors import ConfigError

FAULTY = f"{Path(__file__).parents[1] / 'bad_envs.py'}:experiment"


def summary_of(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def test_resume_of_a_finished_local_run_ends_at_once(start_run, assert_ledger_adds_up):
    run = start_run(FAULTY, "--stop.env-steps", "500", "--evaluation.episodes", "0")
    assert run.wait() == 0
    version = run.summary["version"]
    assert cli.main(["resume", str(run.folder), "--evaluation.episodes", "0"]) == 0
    again = summary_of(run.folder)
    assert again["version"] == version
    assert "nothing was left to do" in again["reason"]
    assert_ledger_adds_up(again)


def test_ctrl_c_while_workers_start_ends_soon_and_cleanly(start_run, wait_until):
    run = start_run(FAULTY, "--stop.env-steps", "100000000")
    wait_until((run.folder / "logs" / "trainer-0.log").exists, "the first worker")
    run.popen.send_signal(signal.SIGINT)
    assert run.wait() == 130
    assert run.summary["status"] == "interrupted"
    run.assert_nothing_left()


def faulty_later(tmp_path: Path, fault: str, *options: str) -> tuple[int, dict]:
    """A run whose env breaks in the final evaluation, which plays more steps than training."""
    out = tmp_path / "run"
    words = ["train", FAULTY, "--launcher", "inline", "--out", str(out), "--stop.env-steps", "200"]
    words += ["--env.options", json.dumps({"fault": fault, "after": 45}), *options]
    return cli.main(words), summary_of(out)


@pytest.mark.parametrize("fault", ["step", "exit", "nan"])
def test_env_that_fails_in_the_evaluation_plays_another_episode(tmp_path, fault):
    code, summary = faulty_later(tmp_path, fault)  # each of its 20 envs, in its fifth episode
    assert code == 0
    assert summary["status"] == "completed"
    assert summary["eval_return"] == 10
    notes = (tmp_path / "run" / "errors" / "notes.txt").read_text()
    assert notes.count("evaluator-0: env ") == 20


@pytest.mark.parametrize("fault", ["step", "exit", "nan"])
def test_env_that_keeps_failing_in_the_evaluation_fails_the_run(tmp_path, capfd, fault):
    code, summary = faulty_later(tmp_path, fault, "--env.max-failures", "0")
    assert code == 3
    assert summary["status"] == "failed"
    assert "Faulty" in summary["reason"]
    assert (tmp_path / "run" / "errors" / "evaluator-0.txt").exists()
    assert capfd.readouterr().err.count("evaluator-0 failed") == 1


@pytest.mark.parametrize("launcher", ["inline", "local"])
def test_env_that_fails_beside_the_training_is_rebuilt(start_run, launcher):
    words = ["--launcher", launcher, "--evaluation.count", "1", "--evaluation.episodes", "40"]
    run = start_run(FAULTY, *words, "--env.options", '{"fault": "evaluation"}')
    assert run.wait() == 0
    assert run.summary["status"] == "completed"
    notes = (run.folder / "errors" / "notes.txt").read_text()
    assert "evaluator-0: env" in notes
    assert "env 1000000 of the run" in notes
    run.assert_nothing_left()


def test_evaluation_that_is_not_complete_has_no_return(tmp_path):
    code, summary = faulty_later(tmp_path, "none", "--evaluation.seconds", "0")
    assert code == 0
    assert summary["status"] == "completed"
    assert summary["eval_return"] is None


def test_ctrl_c_in_the_evaluation_interrupts_the_run(tmp_path, monkeypatch):
    import srl.launch.controller as controller

    evaluate = controller.evaluate

    def interrupted(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGINT)
        return evaluate(*args, **kwargs)

    monkeypatch.setattr(controller, "evaluate", interrupted)
    code, summary = faulty_later(tmp_path, "none")
    assert code == 130
    assert (summary["status"], summary["eval_return"]) == ("interrupted", None)
    assert "during the final evaluation" in summary["reason"]


def test_folder_of_a_running_run_is_refused(tmp_path):
    out, refused = tmp_path / "run", []

    def try_to_resume():
        with pytest.raises(ConfigError, match=f"is being run by process {os.getpid()}"):
            srl.resume(out)
        refused.append(True)

    def view(_):
        from srl.telemetry.view import Silent

        class Meddling(Silent):
            def show(self, progress, seconds):
                if progress.version > 3 and not refused:
                    checkpoints = list((out / "checkpoints").glob("0*"))
                    if checkpoints:
                        thread = threading.Thread(target=try_to_resume)
                        thread.start()
                        thread.join()

        return Meddling()

    srl.train(
        FAULTY,
        launcher="inline",
        out=str(out),
        view=view,
        checkpoint__seconds=0.1,
        evaluation__episodes=0,
    )
    assert refused
    assert summary_of(out)["status"] == "completed"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_learning_that_diverges_fails_the_run(tmp_path):
    out = tmp_path / "run"
    words = ["train", FAULTY, "--launcher", "inline", "--out", str(out)]
    assert cli.main([*words, "--algorithm.learning-rate", "1e30"]) == 3
    assert "learning has diverged" in summary_of(out)["reason"]
    rows = (out / "metrics.jsonl").read_text()
    assert "NaN" not in rows


def test_output_that_nobody_reads_does_not_end_the_run(tmp_path):
    def view(_):
        from srl.telemetry.view import Silent

        class Gone(Silent):
            def show(self, progress, seconds):
                raise BrokenPipeError

            say = show

        return Gone()

    run = srl.train(FAULTY, launcher="inline", out=str(tmp_path / "run"), view=view)
    assert run.summary["status"] == "completed"
