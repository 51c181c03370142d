"""Runs on a Ray cluster that grows: `make test-cluster`, as root."""

import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from srl.testing.autoscaling import AutoscalingHost
from srl.testing.hosts import can_have_hosts

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not can_have_hosts(), reason="needs root and iproute2"),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray"),
    pytest.mark.timeout(600),
]


@pytest.fixture
def growing() -> Iterator[AutoscalingHost]:
    """A head with two cores, and one node more with four, called `simulators`, when it is wanted."""
    made = AutoscalingHost(2, {"CPU": 4.0, "simulators": 1.0}, most_nodes=1)
    yield made
    made.close()


def train(growing: AutoscalingHost, folder: Path, log: Path, *options: str) -> None:
    words = [sys.executable, "-m", "srl.cli", "train", "cartpole", "--launcher", "ray"]
    words += ["--ray.address", growing.address, "--inference", "inline", "--actors.envs", "8"]
    words += ["--stop.return", "None", "--evaluation.episodes", "0", "--out", str(folder)]
    assert growing.start([*words, *options], log).wait(300) == 0, log.read_text()
    assert json.loads((folder / "summary.json").read_text())["status"] == "completed"


def wait_until_small(growing: AutoscalingHost) -> None:
    """Nothing is wanted any more: the autoscaler takes its node back."""
    deadline = time.monotonic() + 90
    while growing.cores() != [2.0]:
        assert time.monotonic() < deadline, growing.cores()
        time.sleep(1)


@pytest.mark.parametrize("where", [(), ("--ray.actors", "simulators")])
def test_run_that_needs_more_than_there_is_begins_on_nodes_that_are_added(
    growing: AutoscalingHost, where: tuple[str, ...], tmp_path: Path
) -> None:
    folder, log = tmp_path / "run", tmp_path / "log"
    assert growing.cores() == [2.0]
    options = ("--actors.count", "4", "--stop.env-steps", "20000", "--ray.wait-seconds", "120")
    train(growing, folder, log, *options, *where)
    assert "waiting for nodes, 120 s at most: " in log.read_text()
    wait_until_small(growing)


def test_actors_beyond_those_a_run_needs_are_nodes_that_are_wanted(
    growing: AutoscalingHost, tmp_path: Path
) -> None:
    folder, log = tmp_path / "run", tmp_path / "log"
    train(growing, folder, log, "--actors.count", "1", "--actors.max", "3", "--stop.seconds", "45")
    assert "waiting for nodes" not in log.read_text()
    started = {path.stem for path in folder.glob("logs/actor-*.json")}
    assert started == {"actor-0", "actor-1", "actor-2"}
    wait_until_small(growing)
