import json

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


def test_run_that_died_is_settled_by_the_last_row_of_its_metrics(folder):
    row = {"version": 4, "env_steps": 40, "time": {"seconds": 2.5}}
    folder.metrics.write_text(json.dumps(row) + '\n{"version": 5, "env')
    reason = folder.settle()
    assert reason == "its controller (process 7) died without a word"
    assert folder.read("summary.json") == {
        "status": "failed",
        "reason": reason,
        "pid": 7,
        "env_steps": 40,
        "seed": 3,
        "version": 4,
        "seconds": 2.5,
    }
    assert folder.settle() is None


def test_run_that_ended_stays_as_it_is(folder):
    folder.write("summary.json", {"status": "completed"})
    assert folder.settle() is None
    assert folder.read("summary.json") == {"status": "completed"}
