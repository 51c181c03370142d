"""Runs on a Ray cluster of three hosts, which are network namespaces: `make test-cluster`, as root."""

import contextlib
import importlib.util
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from srl.learning.checkpoint import latest_checkpoint, read_checkpoint
from srl.learning.versions import VersionStore, read_weights
from srl.testing.hosts import Hosts, address, can_have_hosts
from srl.testing.ray_hosts import RayHosts
from srl.testing.shares import learn_together

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not can_have_hosts(), reason="needs root and iproute2"),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray"),
    pytest.mark.timeout(600),
]
LEDGER = ("consumed", "dropped", "lost", "in_flight")
WHERE = {
    "apart": (
        {"trainers": [1], "policies": [2], "actors": [3]},
        ("--inference", "shm", "--actors.count", "2"),
    ),
    "inline inference": (
        {"trainers": [1], "actors": [2, 3]},
        ("--inference", "inline", "--actors.count", "2"),
    ),
    "mixed": (
        {"trainers": [1], "policies": [1, 2], "actors": [1, 2, 3]},
        ("--inference", "shm", "--policies.count", "2", "--actors.count", "6"),
    ),
    "trainers on two hosts": (
        {"trainers": [1, 2], "actors": [2, 3]},
        ("--trainers.count", "2", "--trainers.threads", "4", "--actors.count", "2"),
    ),
}
CARTPOLE = ("--actors.envs", "8", "--evaluation.episodes", "20")


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the first host does not share with the others."""
    return tmp_path_factory.mktemp("private")


@pytest.fixture(scope="module")
def ray_hosts(private: Path) -> Iterator[RayHosts]:
    """Three hosts with six cores each (which they have not, but nobody counts)."""
    made = RayHosts([6, 6, 6], private=private)
    yield made
    made.close()


def summary_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def rows_of(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def wait_for_rows(folder: Path, count: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 120
    while rows_of(folder) < count:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, f"{rows_of(folder)} rows:\n{log.read_text()}"
        time.sleep(0.1)


def assert_completed(folder: Path, process: "subprocess.Popen[bytes]", log: Path) -> dict[str, Any]:
    code = process.wait(400)
    assert code == 0, log.read_text()
    summary = summary_of(folder)
    assert summary["status"] == "completed", summary["reason"]
    assert summary["blocks_sent"] == sum(summary[f"blocks_{name}"] for name in LEDGER), summary
    assert summary["blocks_duplicated"] == 0
    return summary


@pytest.mark.parametrize("where", WHERE)
def test_cartpole_learns_wherever_its_workers_are(
    ray_hosts: RayHosts, where: str, tmp_path: Path
) -> None:
    places, options = WHERE[where]
    log, folder = tmp_path / "log", tmp_path / "run"
    words = ["train", "cartpole", *ray_hosts.options(places), *options, *CARTPOLE]
    process = ray_hosts.start([*words, "--out", str(folder)], log)
    summary = assert_completed(folder, process, log)
    assert summary["eval_return"] >= 475, summary["eval_return"]
    assert summary["blocks_lost"] == 0


def test_link_that_is_cut_for_ten_seconds_costs_nothing(
    ray_hosts: RayHosts, tmp_path: Path
) -> None:
    places, options = WHERE["apart"]
    log, folder = tmp_path / "log", tmp_path / "run"
    words = ["train", "cartpole", *ray_hosts.options(places), *options, *CARTPOLE]
    words += ["--stop.return", "None", "--stop.env-steps", "400000"]
    process = ray_hosts.start([*words, "--out", str(folder)], log)
    wait_for_rows(folder, 5, process, log)
    ray_hosts.hosts.cut(3)
    time.sleep(10)
    ray_hosts.hosts.heal(3)
    summary = assert_completed(folder, process, log)
    assert summary["blocks_lost"] == 0, log.read_text()
    ray_hosts.wait_for_nodes(3)


@pytest.mark.skipif(shutil.which("nft") is None, reason="needs nftables")
def test_packets_that_are_lost_cost_time_and_no_block(ray_hosts: RayHosts, tmp_path: Path) -> None:
    places, options = WHERE["apart"]
    log, folder = tmp_path / "log", tmp_path / "run"
    words = ["train", "cartpole", *ray_hosts.options(places), *options, *CARTPOLE]
    words += ["--stop.return", "None", "--stop.env-steps", "100000"]
    try:
        for number in (2, 3):
            ray_hosts.hosts.lose(number, 1)
        process = ray_hosts.start([*words, "--out", str(folder)], log)
        summary = assert_completed(folder, process, log)
        dropped = [counted(ray_hosts.hosts, number) for number in (2, 3)]
    finally:
        for number in (2, 3):
            ray_hosts.hosts.lose(number, 0)
    assert summary["blocks_lost"] == 0, log.read_text()
    assert min(dropped) > 100, "hardly anything was lost on the way"


def counted(hosts: Hosts, number: int) -> int:
    """Packets that a host has lost."""
    words = hosts.command(number, ["nft", "list", "table", "inet", "loss"])
    shown = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return int(shown.split("packets ")[1].split()[0])


def test_run_behind_a_narrow_link_goes_on(ray_hosts: RayHosts, tmp_path: Path) -> None:
    places, options = WHERE["apart"]
    log, folder = tmp_path / "log", tmp_path / "run"
    words = ["train", "cartpole", *ray_hosts.options(places), *options, *CARTPOLE]
    words += ["--stop.return", "None", "--stop.env-steps", "60000"]
    ray_hosts.hosts.limit(3, 4.0)
    try:
        process = ray_hosts.start([*words, "--out", str(folder)], log)
        summary = assert_completed(folder, process, log)
    finally:
        ray_hosts.hosts.limit(3, 10_000.0)
    # an env step is 53 bytes of a block, and 16 of a request: 4 Mbit/s are 7,200 of them, less what frames it
    assert summary["env_steps_per_second"] < 7_500
    assert summary["blocks_lost"] == 0


@pytest.mark.parametrize("victim", [3, 2])
def test_host_that_is_killed_comes_again(ray_hosts: RayHosts, victim: int, tmp_path: Path) -> None:
    places, options = WHERE["apart"]
    log, folder = tmp_path / "log", tmp_path / "run"
    words = ["train", "cartpole", *ray_hosts.options(places), *options, *CARTPOLE]
    words += ["--stop.return", "None", "--stop.env-steps", "400000"]
    process = ray_hosts.start([*words, "--out", str(folder)], log)
    wait_for_rows(folder, 5, process, log)
    ray_hosts.hosts.kill(victim)
    time.sleep(2)
    ray_hosts.start_node(victim)
    summary = assert_completed(folder, process, log)
    assert summary["worker_restarts"] >= 1
    ray_hosts.wait_for_nodes(3)


SILENT = {
    "actors": (3, {"trainers": [1], "policies": [2], "actors": [3, 2]}, ("--inference", "shm")),
    "policies": (2, {"trainers": [1], "policies": [2, 3], "actors": [3]}, ("--inference", "shm")),
}
SILENCE_SECONDS = 60.0
"""30 until a host counts as lost; the rest is for two knocks in vain and for processes that start."""


@contextlib.contextmanager
def silent(ray_hosts: RayHosts, victim: int) -> Iterator[None]:
    """A host of which nothing is heard any more, not even that its connections end."""
    ray_hosts.hosts.cut(victim)
    try:
        yield
        assert_nothing_left(ray_hosts, {1, 2, 3} - {victim})
    finally:
        ray_hosts.hosts.kill(victim)
        ray_hosts.hosts.heal(victim)
        ray_hosts.start_node(victim)
        ray_hosts.wait_for_nodes(3)


def assert_nothing_left(ray_hosts: RayHosts, numbers: set[int]) -> None:
    """No process of a run."""
    left = []
    for pid in (pid for number in numbers for pid in ray_hosts.hosts.pids(number)):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_text()
            left += [words] if "srl.launch" in words or "srl.workers" in words else []
    assert left == []


@pytest.mark.parametrize("kind", SILENT)
def test_host_that_is_silent_for_ever_is_replaced_by_another(
    ray_hosts: RayHosts, kind: str, tmp_path: Path
) -> None:
    victim, places, options = SILENT[kind]
    log, folder = tmp_path / "log", tmp_path / "run"
    words = ["train", "cartpole", *ray_hosts.options(places), *options, *CARTPOLE]
    words += ["--actors.count", "1", "--stop.return", "None", "--stop.env-steps", "200000"]
    process = ray_hosts.start([*words, "--out", str(folder)], log)
    wait_for_rows(folder, 5, process, log)
    with silent(ray_hosts, victim):
        time.sleep(5)
        rows, deadline = rows_of(folder), time.monotonic() + SILENCE_SECONDS - 5
        while rows_of(folder) == rows:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        summary = assert_completed(folder, process, log)
    assert "nothing was heard of it for 30 s" in log.read_text()
    assert summary["worker_restarts"] >= 1
    assert summary["blocks_in_flight"] == 0


def test_run_goes_on_without_a_host_that_is_silent_for_ever(
    ray_hosts: RayHosts, tmp_path: Path
) -> None:
    log, folder = tmp_path / "log", tmp_path / "run"
    where = ray_hosts.options({"trainers": [1], "actors": [2, 3]})
    words = ["train", "cartpole", *where, *CARTPOLE, "--inference", "inline"]
    words += ["--actors.count", "4", "--actors.threads", "3", "--actors.min", "2"]
    # a batch has blocks of all actors: nothing is learned while those of the lost ones are waited for
    words += ["--max-staleness", "0", "--stop.return", "None", "--stop.env-steps", "100000"]
    process = ray_hosts.start([*words, "--out", str(folder)], log)
    wait_for_rows(folder, 3, process, log)
    with silent(ray_hosts, 3):  # there is no room for its two actors
        summary = assert_completed(folder, process, log)
    assert "did not come again within 60 s); the run goes on with 2" in log.read_text()
    assert summary["worker_restarts"] == 2
    assert summary["blocks_in_flight"] == 0


def test_trainer_on_a_host_that_is_silent_for_ever_ends_the_run(
    ray_hosts: RayHosts, tmp_path: Path
) -> None:
    log, folder = tmp_path / "log", tmp_path / "run"
    where = ray_hosts.options({"trainers": [3], "actors": [2]})
    words = ["train", "cartpole", *where, *CARTPOLE, "--inference", "inline"]
    words += ["--stop.return", "None", "--checkpoint.seconds", "1"]
    process = ray_hosts.start([*words, "--out", str(folder)], log)
    wait_for_rows(folder, 10, process, log)
    with silent(ray_hosts, 3):
        assert process.wait(SILENCE_SECONDS) == 3, log.read_text()
    reason = summary_of(folder)["reason"]
    lost = f"node-agent: host 0 ({address(3)}) is lost: nothing was heard of it for 30 s"
    assert reason.startswith(f"{lost}; the run does not go on")
    first = read_checkpoint(latest_checkpoint(folder / "checkpoints"))
    version = first.manifest["versions"]["main"]
    more = ["--stop.env-steps", "100000"]
    process = ray_hosts.start(["resume", str(folder), *more], log)
    assert assert_completed(folder, process, log)["version"] > version


def test_hosts_need_not_see_the_run_folder(
    ray_hosts: RayHosts, private: Path, tmp_path: Path
) -> None:
    log, folder = tmp_path / "log", private / "run"
    before = set(ray_hosts.place.glob("srl-*"))  # of hosts that tests before this one have killed
    where = ray_hosts.options({"trainers": [2], "actors": [3]})
    words = [
        "train",
        "cartpole",
        *where,
        *CARTPOLE,
        "--actors.count",
        "2",
        "--evaluation.count",
        "1",
    ]
    words += ["--stop.return", "None", "--stop.env-steps", "40000", "--checkpoint.seconds", "1"]
    process = ray_hosts.start([*words, "--out", str(folder)], log)
    first = assert_completed(folder, process, log)
    assert first["checkpoints"]["failed"] == 0
    assert read_checkpoint(latest_checkpoint(folder / "checkpoints")).sections
    names = {path.name for path in folder.glob("logs/*.log")}
    workers = {"trainer-0", "actor-0", "actor-1", "evaluator-0"}
    assert {f"{name}.log" for name in workers} <= names
    for version in VersionStore(folder / "versions").newest("main", 100):
        read_weights(folder / "versions" / version.file)
    process = ray_hosts.start(["resume", str(folder), "--stop.env-steps", "80000"], log)
    second = assert_completed(folder, process, log)
    assert second["version"] > first["version"]
    assert rows_of(folder) == second["version"]
    assert not list(folder.rglob(".*"))
    for number in (2, 3):
        assert not ray_hosts.seen(number, private)
    assert set(ray_hosts.place.glob("srl-*")) <= before


def test_trainers_on_two_hosts_equal_one_on_the_same_blocks() -> None:
    hosts = Hosts(2)
    try:
        where = [(address(number), hosts.prefix(number)) for number in (1, 2)]
        assert max(learn_together(where)) < 1e-5
    finally:
        hosts.close()


def test_delay_of_links_is_what_was_asked_for() -> None:
    hosts = Hosts(2, delay_seconds=0.02)
    try:
        words = ["python3", "-c", ECHO.format(address=address(1))]
        server = subprocess.Popen(hosts.command(1, [*words, "serve"]))
        time.sleep(1)
        done = subprocess.run(
            hosts.command(2, [*words, "ask"]),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        server.kill()
        server.wait(5)
        assert 0.038 < float(done.stdout) < 0.08
    finally:
        hosts.close()


ECHO = """
import socket, sys, time
if sys.argv[1] == "serve":
    with socket.create_server(("{address}", 5555)) as server:
        peer, _ = server.accept()
        while data := peer.recv(1): peer.send(data)
else:
    with socket.create_connection(("{address}", 5555), timeout=20) as line:
        took = []
        for _ in range(20):
            start = time.monotonic(); line.send(b"x"); line.recv(1); took.append(time.monotonic() - start)
        print(sorted(took)[10])
"""
