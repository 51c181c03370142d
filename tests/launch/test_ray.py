"""The Ray launcher, on real Ray clusters whose nodes are all on this host."""

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import srl
from srl.core.errors import ConfigError
from srl.launch import ray as ray_launcher
from srl.launch.ray import RayCluster

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.xdist_group("ray"),
]


def nothing_is_set_aside(cluster: Any) -> bool:
    import ray

    ray.init(cluster.address, log_to_driver=False)
    try:
        deadline = time.monotonic() + 20
        while ray.available_resources().get("CPU") != ray.cluster_resources().get("CPU"):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True
    finally:
        ray.shutdown()


def test_run_learns_on_the_nodes_it_is_given(
    cluster: Any, auditing: str, tmp_path: Path, assert_ledger_adds_up: Any
) -> None:
    run = srl.train(
        auditing,
        launcher="ray",
        ray__address=cluster.address,
        ray__actors=("far",),
        actors__count=2,
        inference="shm",
        policies__count=2,
        seed=1,
        out=str(tmp_path / "run"),
    )
    assert run.summary["status"] == "completed"
    assert run.summary["eval_return"] >= 15
    assert run.summary["blocks_lost"] == 0
    assert_ledger_adds_up(run.summary)
    assert (run.folder / "logs" / "node-agent-1.log").exists()
    assert nothing_is_set_aside(cluster)


@pytest.mark.slow
def test_run_goes_on_when_a_node_dies(
    cluster: Any, auditing: str, tmp_path: Path, assert_ledger_adds_up: Any
) -> None:
    folder, runs = tmp_path / "run", []
    first = cluster.add_node(num_cpus=1, resources={"weak": 1})

    def train() -> None:
        options = {"ray__address": cluster.address, "ray__actors": ("weak",)}
        more = {"stop__env_steps": 200_000, "seed": 1, "out": str(folder)}
        runs.append(srl.train(auditing, launcher="ray", **options, **more))

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    path, deadline = folder / "metrics.jsonl", time.monotonic() + 60
    while time.monotonic() < deadline and not (path.exists() and path.stat().st_size):
        time.sleep(0.05)
    cluster.add_node(num_cpus=1, resources={"weak": 1})
    cluster.remove_node(first, allow_graceful=False)
    thread.join(100)
    assert runs, "the run did not end"
    summary = runs[0].summary
    assert summary["status"] == "completed", summary["reason"]
    assert summary["worker_restarts"] >= 1
    assert_ledger_adds_up(summary)
    assert nothing_is_set_aside(cluster)


def test_sigterm_is_answered_by_the_run_and_not_by_ray(cluster: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TERMINATED, cluster.address],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "heard\n"), done.stderr


TERMINATED = """
import os, signal, sys
from srl.launch.ray import RayCluster
signal.signal(signal.SIGTERM, lambda *_: print("heard"))
cluster = RayCluster({"address": sys.argv[1], "runtime_env": "{}"})
os.kill(os.getpid(), signal.SIGTERM)
cluster.close()
"""


def test_a_client_address_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="not as a client of it"):
        ray_launcher.check_ray("ray://127.0.0.1:10001")


def test_a_cluster_that_was_killed_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert not ray_launcher._is_there_one("auto")
    left = tmp_path / "ray" / "ray_current_cluster"
    left.parent.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as head:
        left.write_text(f"127.0.0.1:{head.getsockname()[1]}")
        assert ray_launcher._is_there_one("auto")
    assert not ray_launcher._is_there_one("auto")


def bare_cluster(head: str) -> Any:
    """What knows of a cluster, without one."""
    made = RayCluster.__new__(RayCluster)
    made.ray = type("Ray", (), {"shutdown": staticmethod(lambda: None)})
    made._head, made._look_at, made._heard_at = head, 0.0, time.monotonic()
    made._is_lost = made._is_told = False
    return made


def test_a_head_that_is_gone_is_noticed_and_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_launcher, "_LOOK_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        cluster = bare_cluster(f"127.0.0.1:{server.getsockname()[1]}")
        assert cluster.look() is None
    assert cluster.look() is None, "it may come again"
    cluster._heard_at -= 60
    reason = cluster.look()
    assert reason is not None
    assert "has not answered for 20 s" in reason
    assert "srl resume" in reason
    assert cluster.look() is None


def test_a_head_that_is_gone_is_said_also_after_a_call_that_took_too_long() -> None:
    cluster, asked = bare_cluster("127.0.0.1:1"), threading.Event()
    assert cluster.within(0.05, asked.wait, 60) is None
    cluster._heard_at -= 60
    assert "has not answered" in str(cluster.look())
    asked.set()


def test_a_ray_that_does_not_answer_is_asked_once() -> None:
    cluster, asked = bare_cluster(""), threading.Event()
    cluster.within(0.05, asked.wait, 60)
    assert cluster._is_lost
    calls: list[int] = []
    cluster.within(0.05, calls.append, 1)
    asked.set()
    assert calls == []


@pytest.mark.slow
def test_node_that_joins_is_used(
    cluster: Any, auditing: str, tmp_path: Path, assert_ledger_adds_up: Any
) -> None:
    folder, runs = tmp_path / "run", []
    first = cluster.add_node(num_cpus=1, resources={"hall": 1})

    def train() -> None:
        options = {"ray__address": cluster.address, "ray__actors": ("hall",), "actors__max": 4}
        more = {"stop__env_steps": 400_000, "seed": 1, "out": str(folder)}
        runs.append(srl.train(auditing, launcher="ray", **options, **more))

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    path, deadline = folder / "metrics.jsonl", time.monotonic() + 60
    while time.monotonic() < deadline and not (path.exists() and path.stat().st_size):
        time.sleep(0.05)
    assert not (folder / "logs" / "actor-1.json").exists()
    second = cluster.add_node(num_cpus=2, resources={"hall": 1})
    thread.join(110)
    assert runs, "the run did not end"
    summary = runs[0].summary
    assert summary["status"] == "completed", summary["reason"]
    assert summary["worker_restarts"] == 0
    assert_ledger_adds_up(summary)
    assert (folder / "logs" / "actor-1.json").exists()
    assert (folder / "logs" / "actor-2.json").exists()
    assert not (folder / "logs" / "actor-3.json").exists()  # for which there was no room
    cluster.remove_node(first)
    cluster.remove_node(second)
    assert nothing_is_set_aside(cluster)


def test_too_few_nodes_is_an_error_and_leaves_nothing(
    cluster: Any, auditing: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="there was room for"):
        srl.train(
            auditing,
            launcher="ray",
            ray__address=cluster.address,
            ray__wait_seconds=0,
            actors__count=64,
            algorithm__batch_size=1 << 16,
            out=str(tmp_path / "run"),
        )
    assert nothing_is_set_aside(cluster)


def test_unreachable_cluster_is_an_error_at_once(auditing: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    start = time.monotonic()
    with pytest.raises(ConfigError, match=rf"no Ray cluster at --ray.address {address}"):
        srl.train(auditing, launcher="ray", ray__address=address, out=str(tmp_path / "run"))
    assert time.monotonic() - start < 60


def test_missing_ray_is_an_error(
    auditing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'srl\[ray\]'"):
        srl.train(auditing, launcher="ray", out=str(tmp_path / "run"))
    assert "RAY_ADDRESS" not in os.environ


def test_cluster_of_its_own_needs_no_preparation(auditing: str, tmp_path: Path) -> None:
    home, temporary = tmp_path / "home", Path(tempfile.mkdtemp(prefix="srlt-"))
    home.mkdir()
    words = [sys.executable, "-m", "srl.cli", "train", auditing, "--launcher", "ray"]
    words += ["--evaluation.episodes", "0", "--out", str(tmp_path / "run")]
    known = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        words,
        env={**known, "HOME": str(home), "TMPDIR": str(temporary), "RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    left = [path.name for path in temporary.glob("ray/session*")]
    shutil.rmtree(temporary, ignore_errors=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert left == []
    assert (home / ".ray" / "auth_token").exists()  # it was not open to everybody
