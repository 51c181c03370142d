import json
import socket
import sys
import types
import urllib.error
import urllib.request

import pytest

from srl.core.errors import ConfigError
from srl.core.experiment import MetricsConfig
from srl.telemetry.files import Writes
from srl.telemetry.sinks import (
    JsonLines,
    Prometheus,
    TensorBoard,
    WandB,
    check_metrics,
    exposition,
)

WRITES = Writes(pytest.fail)
STATE = {
    "status": "running",
    "env_steps": 1200,
    "version": 7,
    "mean_return": None,
    "staleness_mean": 0.5,
    "blocks_sent": 12,
    "blocks_lost": 1,
    "time_split": {"actor": {"env_step": 1.5, "wait_for_action": 0.25}},
}
EVALUATION = {
    "policy": "main",
    "version": 5,
    "env_steps": 50,
    "eval_return": 9.5,
    "eval_std": 0.5,
    "eval_episodes": 20,
}


def row(version, policy="main"):
    return {
        "policy": policy,
        "version": version,
        "env_steps": version * 10,
        "mean_return": None,
    }


def test_json_lines_keep_the_clock_apart(tmp_path):
    sink = JsonLines(tmp_path / "m.jsonl", WRITES, versions=None)
    sink.write(row(1), {"seconds": 1.5})
    sink.write_evaluation(EVALUATION)  # has a file of its own
    sink.show(STATE)
    sink.close()
    assert json.loads((tmp_path / "m.jsonl").read_text()) == {**row(1), "time": {"seconds": 1.5}}


def test_json_lines_of_a_resumed_run_forget_what_will_be_learned_again(tmp_path):
    path = tmp_path / "m.jsonl"
    sink = JsonLines(path, WRITES, versions=None)
    for version in (1, 2, 3):
        sink.write(row(version, "a"), {})
        sink.write(row(version, "b"), {})
    sink.close()
    with path.open("a") as file:
        file.write('{"version": 4, "env_st')  # killed while writing
    resumed = JsonLines(path, WRITES, versions={"a": 2, "b": 1})
    resumed.write(row(3, "a"), {})
    resumed.close()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [(row["policy"], row["version"]) for row in rows]
    assert kept == [("a", 1), ("b", 1), ("a", 2), ("a", 3)]


def test_tensorboard_files_hold_the_scalars(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = TensorBoard(tmp_path, WRITES)
    sink.write({**row(2), "mean_return": 7.5}, {"seconds": 3.0})
    sink.write_evaluation(EVALUATION)
    sink.show(STATE)
    sink.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    (scalar,) = events.Scalars("train/mean_return")
    assert (scalar.step, scalar.value) == (20, 7.5)
    (scalar,) = events.Scalars("eval/return")
    assert (scalar.step, scalar.value) == (50, 9.5)


def test_exposition_has_a_line_for_every_number():
    lines = exposition(STATE, "cartpole", {"main": EVALUATION}).splitlines()
    for line in (
        "# TYPE srl_env_steps_total counter",
        'srl_env_steps_total{experiment="cartpole"} 1200.0',
        'srl_version{experiment="cartpole"} 7.0',
        'srl_staleness_mean{experiment="cartpole"} 0.5',
        'srl_blocks{experiment="cartpole",state="sent"} 12.0',
        'srl_blocks{experiment="cartpole",state="lost"} 1.0',
        'srl_eval_return{experiment="cartpole",policy="main"} 9.5',
        'srl_eval_version{experiment="cartpole",policy="main"} 5.0',
        'srl_worker_seconds_total{experiment="cartpole",worker="actor",part="env_step"} 1.5',
    ):
        assert line in lines
    assert not any("mean_return" in line for line in lines), "not known yet"


def test_exposition_escapes_labels():
    text = exposition({"version": 1}, 'a"b\\c\nd', {})
    assert 'srl_version{experiment="a\\"b\\\\c\\nd"} 1.0' in text


def test_prometheus_endpoint_shows_the_last_state():
    sink = Prometheus(MetricsConfig(prometheus_port=0), "cartpole")
    try:
        assert sink.address.startswith("http://127.0.0.1:")
        sink.write(row(1), {})
        sink.show(STATE)
        sink.write_evaluation({**EVALUATION, "policy": "red"})
        sink.show({**STATE, "version": 8})
        with urllib.request.urlopen(sink.address, timeout=5) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            page = answer.read().decode()
        assert 'srl_version{experiment="cartpole"} 8.0' in page
        assert 'srl_eval_return{experiment="cartpole",policy="red"} 9.5' in page
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(sink.address.replace("/metrics", "/"), timeout=5)
        assert refused.value.code == 404
        refused.value.close()
    finally:
        sink.close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(sink.address, timeout=5)


def test_prometheus_port_in_use_is_refused():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"prometheus-port {port} of 127.0.0.1 cannot be"):
            check_metrics(MetricsConfig(prometheus_port=port))
        with pytest.raises(ConfigError, match="choose another"):
            Prometheus(MetricsConfig(prometheus_port=port), "cartpole")


@pytest.mark.parametrize("port", [-1, 65536])
def test_prometheus_port_that_is_none_is_refused(port):
    with pytest.raises(ConfigError, match="must be 0 to 65535"):
        MetricsConfig(prometheus_port=port)


def test_wandb_that_is_not_installed_is_refused(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install wandb"):
        check_metrics(MetricsConfig(wandb="project"))
    with pytest.raises(ConfigError, match="empty"):
        MetricsConfig(wandb=" ")


class FakeRun:
    """What SRL uses of `wandb.Run`."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.id = arguments["id"] or "fresh"
        self.summary = {}
        self.logged = []
        self.axes = {}
        self.finished = False

    def define_metric(self, name, step_metric):
        self.axes[name] = step_metric

    def log(self, numbers):
        self.logged.append(numbers)

    def finish(self):
        self.finished = True


@pytest.fixture
def wandb(monkeypatch):
    """A fake `wandb` module; `runs` are those that were opened."""
    module = types.ModuleType("wandb")
    module.runs = []
    module.init = lambda **arguments: module.runs.append(FakeRun(arguments)) or module.runs[-1]
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_wandb_gets_rows_and_state(wandb, tmp_path):
    sink = WandB("project", tmp_path, {"name": "cartpole", "seed": 3})
    sink.write({**row(2), "mean_return": 7.5}, {"seconds": 3.0})
    sink.write_evaluation(EVALUATION)
    sink.show(STATE)
    sink.close()
    (run,) = wandb.runs
    assert run.arguments["project"] == "project"
    assert run.arguments["dir"] == str(tmp_path)
    assert run.arguments["config"] == {"name": "cartpole", "seed": 3}
    assert run.axes == {"*": "train/env_steps"}
    assert run.logged == [
        {"train/version": 2, "train/env_steps": 20, "train/mean_return": 7.5, "time/seconds": 3.0},
        {
            "eval/version": 5,
            "eval/return": 9.5,
            "eval/std": 0.5,
            "eval/episodes": 20,
            "train/env_steps": 50,
        },
    ]
    assert run.summary["blocks_sent"] == 12
    assert "time_split" not in run.summary
    assert run.finished


def test_wandb_of_a_resumed_run_goes_on_in_the_same_one(wandb, tmp_path):
    WandB("project", tmp_path, {}).close()
    WandB("project", tmp_path, {}).close()
    first, second = wandb.runs
    assert (first.arguments["id"], second.arguments["id"]) == (None, "fresh")
    assert second.arguments["resume"] == "allow"


def test_wandb_that_cannot_be_opened_is_an_error_in_words(wandb, tmp_path):
    def init(**_):
        raise RuntimeError("not logged in")

    wandb.init = init
    with pytest.raises(ConfigError, match=r"W&B cannot open the project 'project': not logged in"):
        WandB("project", tmp_path, {})


def test_prometheus_endpoint_for_others_wants_its_token(tmp_path):
    path = tmp_path / "token"
    path.write_text("a-token-that-is-long-enough\n")
    config = MetricsConfig(
        prometheus_port=0, prometheus_address="0.0.0.0", prometheus_token_file=str(path)
    )
    sink = Prometheus(config, "cartpole")
    try:
        sink.show(STATE)
        address = sink.address.replace("0.0.0.0", "127.0.0.1")
        for shown in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "a-token"}):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(urllib.request.Request(address, headers=shown), timeout=5)
            assert refused.value.code == 401
            refused.value.close()
        right = {"Authorization": "Bearer a-token-that-is-long-enough"}
        with urllib.request.urlopen(
            urllib.request.Request(address, headers=right), timeout=5
        ) as answer:
            assert b"srl_version" in answer.read()
    finally:
        sink.close()


def test_prometheus_endpoint_is_not_opened_to_others_without_a_token(tmp_path):
    with pytest.raises(ConfigError, match="say by which token"):
        MetricsConfig(prometheus_port=0, prometheus_address="0.0.0.0")
    path = tmp_path / "token"
    given = {"prometheus_address": "0.0.0.0", "prometheus_token_file": str(path)}
    with pytest.raises(ConfigError, match="cannot be read"):
        check_metrics(MetricsConfig(prometheus_port=0, **given))
    path.write_text("short")
    with pytest.raises(ConfigError, match="has a token of 5 characters"):
        check_metrics(MetricsConfig(prometheus_port=0, **given))
