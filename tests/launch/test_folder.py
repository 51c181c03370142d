import json
import subprocess

import pytest

from srl.core.errors import ConfigError
from srl.launch.folder import RunFolder


@pytest.fixture
def folder(tmp_path):
    """A run folder that says it is running."""
    folder = RunFolder.create(tmp_path / "run")
    folder.write("config.json", {})
    summary = {"status": "running", "reason": "", "pid": 7, "env_steps": 0, "seed": 3}
    folder.write("summary.json", summary)
    return folder


def test_run_that_is_running_is_left_alone(folder):
    folder.lock()
    other = RunFolder.open(folder.path)
    assert other.is_running
    with pytest.raises(ConfigError, match="is being run by process 7"):
        other.lock()
    assert other.settle() is None
    assert other.read("summary.json")["status"] == "running"
    folder.unlock()
    assert not other.is_running


def test_run_that_has_just_begun_is_left_alone(folder):
    (folder.path / "summary.json").unlink()
    folder.lock()
    with pytest.raises(ConfigError, match="is being run by process unknown; where that is gone"):
        RunFolder.open(folder.path).lock()


def test_run_that_died_is_settled_by_the_last_row_of_each_policy(folder):
    rows = [
        {"policy": "a", "version": 3, "updates": 5, "episodes": 1, "mean_return": 9.0},
        {"policy": "b", "version": 2, "updates": 8, "episodes": 6, "mean_return": 3.0},
        {"policy": "a", "version": 4, "updates": 7, "episodes": 2, "mean_return": 5.0},
    ]
    text = "".join(
        json.dumps({**row, "env_steps": 40, "time": {"seconds": 2.5}}) + "\n" for row in rows
    )
    folder.metrics.write_text(text + '{"version": 5, "env')
    reason = folder.settle()
    assert reason == "its controller (process 7) died without a word"
    assert folder.read("summary.json") == {
        "status": "failed",
        "reason": reason,
        "pid": 7,
        "env_steps": 40,
        "seed": 3,
        "version": 4,
        "updates": 15,
        "episodes": 8,
        "mean_return": 4.0,
        "seconds": 2.5,
    }
    assert folder.settle() is None


def test_run_that_ended_stays_as_it_is(folder):
    folder.write("summary.json", {"status": "completed"})
    assert folder.settle() is None
    assert folder.read("summary.json") == {"status": "completed"}


def test_folder_is_taken_as_long_as_somebody_holds_its_descriptor(tmp_path):
    folder = RunFolder.create(tmp_path / "run")
    folder.write("summary.json", {"pid": 1})
    folder.lock()
    child = subprocess.Popen(["sleep", "60"], pass_fds=folder.held)
    folder.unlock()  # as the kernel does where the controller is killed
    with pytest.raises(ConfigError, match="still writing a last checkpoint"):
        RunFolder(folder.path).lock()
    child.kill()
    child.wait(10)
    RunFolder(folder.path).lock()
