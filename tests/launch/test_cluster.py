"""A run on several hosts, which here are links of their own on loopback."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import srl
from srl.core.errors import ConfigError
from srl.launch import controller
from srl.launch.cluster import ClusterLauncher, SubprocessStarter
from srl.launch.graph.plan import Plan
from srl.launch.link import Greeting, python_version

PLACEMENTS = {
    "actors, inference and training apart": (
        {"inference": "shm", "policies__count": 2, "actors__count": 2},
        {"actor-0": 1, "actor-1": 1, "policy-0": 2, "policy-1": 2},
    ),
    "inline inference on another host": ({"inference": "inline"}, {"actor-0": 1}),
    "mixed": (
        {"inference": "shm", "policies__count": 2, "actors__count": 4},
        {"actor-1": 1, "actor-2": 1, "actor-3": 2, "policy-1": 2},
    ),
    "trainers on two hosts": (
        {"trainers__count": 2, "actors__count": 2},
        {"trainer-1": 1, "actor-0": 1},  # each sends to the other host
    ),
}


def place(monkeypatch: pytest.MonkeyPatch, hosts: dict[str, int]) -> list[ClusterLauncher]:
    """Have runs of the local launcher be on several hosts."""
    made: list[ClusterLauncher] = []

    def launch(plan: Plan, folder: Path) -> ClusterLauncher:
        placed = msgspec.structs.replace(plan, hosts=hosts)
        starters = {
            host: SubprocessStarter("127.0.0.1", str(folder / "logs" / f"link-{host}.log"))
            for host in range(max(hosts.values()) + 1)
        }
        made.append(ClusterLauncher(placed, folder, starters))
        return made[-1]

    monkeypatch.setattr(controller, "LocalLauncher", launch)
    return made


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_run_learns_wherever_its_workers_are(
    placement: str,
    auditing: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    assert_ledger_adds_up: Any,
) -> None:
    options, hosts = PLACEMENTS[placement]
    place(monkeypatch, hosts)
    run = srl.train(auditing, launcher="local", seed=1, out=str(tmp_path / "run"), **options)
    assert run.summary["status"] == "completed"
    assert run.summary["eval_return"] >= 15  # of 16; guessing gives 4
    assert_ledger_adds_up(run.summary)
    assert run.summary["blocks_lost"] == 0
    assert not any(run.folder.glob("errors/*"))


def test_no_key_is_in_the_run_folder(
    auditing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = place(monkeypatch, {"actor-0": 1})
    run = srl.train(auditing, launcher="local", seed=1, out=str(tmp_path / "run"))
    keys = made[0]._keys
    for path in run.folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert keys.secret.encode() not in data, path
            assert keys.public.encode() not in data, path
    json.loads((run.folder / "summary.json").read_text())


def children_of(pid: int) -> list[int]:
    """Processes that a process has started, and those that they have."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            found += [child, *children_of(child)]
    return found


def kill_host(launcher: ClusterLauncher, host: int) -> None:
    """What a host loses with its power: all of its processes, at once."""
    process = launcher._starters[host]._process  # type: ignore[attr-defined]
    for pid in (process.pid, *children_of(process.pid)):
        os.kill(pid, signal.SIGKILL)


def end_link(launcher: ClusterLauncher, host: int) -> None:
    os.kill(launcher._starters[host]._process.pid, signal.SIGKILL)  # type: ignore[attr-defined]


def disturb(
    made: list[ClusterLauncher],
    folder: Path,
    harm: Callable[[ClusterLauncher, int], None],
    host: int,
    times: int,
) -> threading.Thread:
    """Harm a host of a run, each time after it has learned a little with it."""

    def rows() -> int:
        path = folder / "metrics.jsonl"
        return path.read_text().count("\n") if path.exists() else 0

    def work() -> None:
        harmed = set[int]()
        for _ in range(times):
            deadline, seen = time.monotonic() + 60, rows()
            while time.monotonic() < deadline:
                time.sleep(0.02)
                if not made or made[0]._agents is None or host in made[0]._agents._absent:
                    seen = rows()
                    continue
                pid = made[0]._starters[host]._process.pid  # type: ignore[attr-defined]
                seen = rows() if pid in harmed else seen
                if rows() >= seen + 5:
                    harmed.add(pid)
                    break
            harm(made[0], host)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("harm", [kill_host, pytest.param(end_link, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "placement", ["inline inference on another host", "actors, inference and training apart"]
)
def test_run_goes_on_when_a_host_is_lost(
    placement: str,
    harm: Callable[[ClusterLauncher, int], None],
    auditing: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    assert_ledger_adds_up: Any,
) -> None:
    options, hosts = PLACEMENTS[placement]
    made = place(monkeypatch, hosts)
    folder, lost = tmp_path / "run", max(hosts.values())
    thread = disturb(made, folder, harm, lost, times=2)
    more = {"stop__env_steps": 60_000, "restarts__wait_seconds": 0.1}
    run = srl.train(auditing, launcher="local", seed=1, out=str(folder), **options, **more)
    thread.join(10)
    assert run.summary["status"] == "completed", run.summary["reason"]
    assert run.summary["eval_return"] >= 15
    assert run.summary["worker_restarts"] >= 2 * sum(host == lost for host in hosts.values())
    assert_ledger_adds_up(run.summary)


def test_run_without_its_trainers_ends_and_says_so(
    auditing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assert_ledger_adds_up: Any
) -> None:
    made = place(monkeypatch, {"actor-0": 1})
    folder = tmp_path / "run"
    disturb(made, folder, kill_host, 0, times=1)
    more = {"stop__env_steps": 10_000_000}
    run = srl.train(auditing, launcher="local", seed=1, out=str(folder), **more)
    assert run.summary["status"] == "failed"
    assert "host 0 is lost" in run.summary["reason"]
    assert_ledger_adds_up(run.summary)


def test_hosts_that_cannot_take_part_are_named() -> None:
    fine = Greeting("/tmp/x", python_version(), srl.__version__)
    fine.check(1, "10.0.0.2", "/runs/1")
    for greeting, words in (
        (Greeting("", "3.9", srl.__version__), r"host 1 \(10.0.0.2\) has Python 3.9, and this one"),
        (Greeting("", python_version(), "0.0.1"), r"has SRL 0.0.1, and this one"),
        (
            Greeting("", python_version(), srl.__version__, sees_folder=False),
            r"does not see the run folder /runs/1",
        ),
    ):
        with pytest.raises(ConfigError, match=words):
            greeting.check(1, "10.0.0.2", "/runs/1")
