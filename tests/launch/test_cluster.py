"""A run on several hosts, which here are links of their own on loopback."""

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import msgspec
import pytest

import srl
from srl import api
from srl.core.errors import ConfigError, WorkerError
from srl.launch import cluster, controller
from srl.launch.cluster import ClusterLauncher, SubprocessStarter
from srl.launch.graph.plan import LATE, Plan
from srl.launch.link import Greeting, python_version
from srl.learning.checkpoint import latest_checkpoint, read_checkpoint
from srl.learning.guard import read_batch
from srl.learning.versions import VersionStore, read_weights
from srl.transport.control import Message, Report
from srl.transport.listener import address_of

PLACEMENTS = {
    "actors, inference and training apart": (
        {"inference": "shm", "policies__count": 2, "actors__count": 2},
        {"actor-0": 1, "actor-1": 1, "policy-0": 2, "policy-1": 2},
    ),
    "inline inference on another host": ({"inference": "inline"}, {"actor-0": 1}),
    "mixed": (
        {"inference": "shm", "policies__count": 2, "actors__count": 4, "actors__inline": 2},
        {"actor-1": 1, "actor-2": 1, "actor-3": 2, "policy-1": 2},
    ),
    "trainers on two hosts": (
        {"trainers__count": 2, "actors__count": 2},
        {"trainer-1": 1, "actor-0": 1},  # each sends to the other host
    ),
}

FAR = (
    sys.executable,
    "-c",
    "import sys, srl.launch.link as link; link.sees = lambda _: False; sys.exit(link.main())",
)
"""Starts a link that does not see the run folder."""


def place(
    monkeypatch: pytest.MonkeyPatch,
    hosts: dict[str, int],
    prefixes: Mapping[int, Sequence[str]] = MappingProxyType({}),
) -> list[ClusterLauncher]:
    """Have runs of the local launcher be on several hosts, some of them started in other ways."""
    made: list[ClusterLauncher] = []

    def launch(plan: Plan, folder: Path, held: Sequence[int] = ()) -> ClusterLauncher:
        placed = msgspec.structs.replace(plan, hosts=hosts)
        starters = {
            host: SubprocessStarter("127.0.0.1", prefixes.get(host, ()))
            for host in range(max(hosts.values()) + 1)
        }
        made.append(ClusterLauncher(placed, folder, starters))
        return made[-1]

    monkeypatch.setattr(controller, "LocalLauncher", launch)
    return made


@pytest.fixture
def of_links(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files of all processes that are started here, and what they are known by."""
    folder = tempfile.mkdtemp(prefix="srlt-")
    monkeypatch.setenv("TMPDIR", folder)
    yield Path(folder)
    shutil.rmtree(folder)


def assert_nothing_left(of_links: Path) -> None:
    """No process and no file of theirs."""
    mark, living = f"TMPDIR={of_links}\0".encode(), []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in environment.read_bytes():
                living.append((environment.parent / "cmdline").read_text())
    assert not living
    assert not list(of_links.iterdir())


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
        with contextlib.suppress(ProcessLookupError):  # one may have ended by itself just now
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
@pytest.mark.parametrize("link", [(), pytest.param(FAR, marks=pytest.mark.slow, id="far")])
@pytest.mark.parametrize(
    "placement",
    [
        pytest.param("inline inference on another host", marks=pytest.mark.slow),
        "actors, inference and training apart",
    ],
)
def test_run_goes_on_when_a_host_is_lost(
    placement: str,
    harm: Callable[[ClusterLauncher, int], None],
    link: Sequence[str],
    auditing: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    assert_ledger_adds_up: Any,
) -> None:
    options, hosts = PLACEMENTS[placement]
    folder, lost = tmp_path / "run", max(hosts.values())
    made = place(monkeypatch, hosts, {lost: link})
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
    assert "is lost" in run.summary["reason"]
    assert "`srl resume` does from its last checkpoint" in run.summary["reason"]
    assert_ledger_adds_up(run.summary)


class FakeRecruiter:
    """A host that joins when the run has learned a little, with room for one; then another."""

    def __init__(self, folder: Path) -> None:
        self._rows = folder / "metrics.jsonl"
        self.asked: list[list[str]] = []

    def recruit(self, workers: Sequence[str]) -> list[tuple[SubprocessStarter, Sequence[str]]]:
        if not self._rows.exists() or self._rows.read_text().count("\n") < 3:
            return []
        self.asked.append([*workers])
        return [(SubprocessStarter("127.0.0.1"), workers[:1])]

    def withdraw(self) -> None:
        """It has wished for nothing."""


def test_wishes_are_withdrawn_before_what_a_lost_host_had_is_free() -> None:
    done: list[str] = []
    launcher = ClusterLauncher.__new__(ClusterLauncher)
    agents = {"may_lose": lambda _: True, "lose": lambda *_, **__: [], "is_stopping": False}
    launcher._agents = SimpleNamespace(**agents)  # type: ignore[assignment]
    launcher._board = SimpleNamespace(replace=lambda _: 2)  # type: ignore[assignment]
    withdraw = lambda: done.append("withdraw")  # noqa: E731
    launcher._recruiter = SimpleNamespace(withdraw=withdraw)  # type: ignore[assignment]
    launcher._start_link = lambda host, life: done.append(f"start {host}")  # type: ignore[assignment]
    launcher._awaited = {}
    assert launcher._lose(1, "host 1 is lost") == []
    assert done == ["withdraw", "start 1"]
    assert list(launcher._awaited) == [1]


def test_hosts_that_join_are_used(
    auditing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assert_ledger_adds_up: Any
) -> None:
    made: list[ClusterLauncher] = []
    recruiter = FakeRecruiter(tmp_path / "run")

    def launch(plan: Plan, folder: Path, *_: Any) -> ClusterLauncher:
        assert [worker.name for worker in plan.of_kind("actor")] == [
            "actor-0",
            "actor-1",
            "actor-2",
        ]
        placed = msgspec.structs.replace(plan, hosts={"actor-1": LATE, "actor-2": LATE})
        starters = {0: SubprocessStarter("127.0.0.1")}
        made.append(ClusterLauncher(placed, folder, starters, recruiter=recruiter))
        return made[-1]

    def is_enough(messages: Sequence[Message]) -> str | None:
        """Both have come, and learned from."""
        accounts = {} if made[0]._agents is None else made[0]._agents._accounts
        sent = [accounts[host].ledgers["main"]["sent"] for host in (1, 2) if host in accounts]
        return "they send" if len(sent) == 2 and min(sent) > 10 else None

    monkeypatch.setattr(controller, "RayLauncher", launch)
    monkeypatch.setattr(api, "check_ray", lambda _: None)
    monkeypatch.setattr(cluster, "_RECRUIT_SECONDS", 0.1)
    experiment = api.find_experiment(
        auditing,
        api._to_arguments(
            {
                "launcher": "ray",
                "actors__max": 3,
                "stop__env_steps": 100_000_000,
                "evaluation__episodes": 0,
                "out": str(tmp_path / "run"),
            }
        ),
    )
    watcher = type("Watcher", (), {"hear": staticmethod(is_enough)})()
    run = api.train_experiment(experiment, api._silent, watcher)
    assert run.summary["reason"] == "they send"
    assert recruiter.asked == [["actor-1", "actor-2"], ["actor-2"]]
    assert_ledger_adds_up(run.summary)
    assert run.summary["blocks_lost"] == 0
    assert not any(run.folder.glob("errors/*"))
    rows = [json.loads(row) for row in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert max(row["audit_max_difference"] for row in rows) < 1e-4
    assert max(row["staleness_max"] for row in rows) <= 1


def test_hosts_that_cannot_take_part_are_named() -> None:
    fine = Greeting("/tmp/x", python_version(), srl.__version__)
    fine.check(1, "10.0.0.2")
    for greeting, words in (
        (Greeting("", "3.9", srl.__version__), r"host 1 \(10.0.0.2\) has Python 3.9, and this one"),
        (Greeting("", python_version(), "0.0.1"), r"has SRL 0.0.1, and this one"),
    ):
        with pytest.raises(ConfigError, match=words):
            greeting.check(1, "10.0.0.2")


ASTRAY = (
    "import srl.transport.line as l; init = l.Line.__init__; l.Line.__init__ = "
    "lambda line, context, _, *rest, **more: init(line, context, 'tcp://127.0.0.1:1', *rest, **more)"
)
"""Of a host that cannot reach the controller."""
LINK = "import runpy; runpy.run_module('srl.launch.link', run_name='__main__')"


@pytest.mark.parametrize(
    ("before", "error", "words"),
    [
        (
            f"import srl.core.version as v; v.VERSION = '0.0.1'; {LINK}",
            ConfigError,
            r"host 1 \(127.0.0.1\) has SRL 0.0.1, and this one",
        ),
        (
            f"import platform; platform.python_version_tuple = lambda: ('3', '9', '1'); {LINK}",
            ConfigError,
            r"host 1 \(127.0.0.1\) has Python 3.9, and this one",
        ),
        ("import nothing_of_this_name", WorkerError, "host 1 could not be started: ModuleNotFound"),
        (
            f"{ASTRAY}; {LINK}",
            WorkerError,
            "host 1 could not be started: the link of host 1 to tcp://127.0.0.1:.* ends: its controller is gone, the connection",
        ),
        ("import sys; sys.stdin.read()", WorkerError, r"hosts \[.*1\] did not connect within 0 s"),
    ],
)
def test_host_that_cannot_take_part_is_an_error_and_nothing_is_left(
    before: str,
    error: type[Exception],
    words: str,
    auditing: str,
    tmp_path: Path,
    of_links: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "_CONNECT_SECONDS", 0.0 if "stdin" in before else 60.0)
    place(monkeypatch, {"actor-0": 1}, {1: (sys.executable, "-c", before)})
    with pytest.raises(error, match=words):
        srl.train(auditing, launcher="local", seed=1, out=str(tmp_path / "run"))
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"
    assert_nothing_left(of_links)


def test_link_that_ends_before_it_was_told_anything_says_why() -> None:
    starter = SubprocessStarter("127.0.0.1", ("sh", "-c", "echo no memory; exit 3", "sh"))
    starter.start(
        bytes(1_000_000)
    )  # more than a pipe holds: it has ended before all of it is written
    deadline = time.monotonic() + 30
    while not starter.is_gone():
        assert time.monotonic() < deadline
    assert starter.failure() == "no memory"
    starter.close(1.0)


UNFINITE = f"{Path(__file__).parent / 'unfinite.py'}:experiment"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of what is not finite
def test_hosts_need_not_see_the_run_folder(
    tmp_path: Path, of_links: Path, monkeypatch: pytest.MonkeyPatch, assert_ledger_adds_up: Any
) -> None:
    place(monkeypatch, {"actor-0": 1, "actor-1": 1}, {0: FAR, 1: FAR})
    folder = tmp_path / "run"
    more = {"on_nan": "skip", "evaluation__count": 1, "checkpoint__seconds": 0.2}
    more["stop__env_steps"] = 8000  # the actor with the env that breaks may be late to begin
    run = srl.train(UNFINITE, launcher="local", seed=1, out=str(folder), **more)
    assert run.summary["status"] == "completed", run.summary["reason"]
    assert_ledger_adds_up(run.summary)
    assert_nothing_left(of_links)
    logs = {path.name: path.read_text() for path in folder.glob("logs/*.log")}
    workers = {"trainer-0", "evaluator-0", "actor-0", "actor-1", "relay-0", "relay-1"}
    assert {f"{name}.log" for name in workers} <= logs.keys()
    assert {"node-agent-0.log", "node-agent-1.log"} <= logs.keys()
    assert all("ends: its node agent" in logs[f"link-{host}.log"] for host in (0, 1))
    (nan,) = folder.glob("errors/nan-trainer-0-*.safetensors")
    assert read_batch(nan)[1]["place"]["env"] == 5
    assert f"The batch is kept in {nan}" in logs["trainer-0.log"]
    versions = VersionStore(folder / "versions").newest("main", 100)
    assert versions
    for version in versions:
        read_weights(folder / "versions" / version.file)
    first = read_checkpoint(latest_checkpoint(folder / "checkpoints"))
    assert first.manifest["version"] == run.summary["version"]
    assert run.summary["checkpoints"]["written"] >= 2
    assert run.summary["checkpoints"]["failed"] == 0
    # beyond what was under way when it stopped
    again = srl.resume(folder, stop__env_steps=run.summary["env_steps"] + 2000)
    assert again.summary["status"] == "completed", again.summary["reason"]
    assert again.summary["version"] > run.summary["version"]
    rows = [json.loads(row) for row in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["version"] for row in rows] == [*range(1, again.summary["version"] + 1)]
    assert not list(folder.rglob(".*"))
    assert_nothing_left(of_links)


def test_a_run_whose_hosts_do_not_connect_can_be_stopped(
    auditing: str, tmp_path: Path, of_links: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminate = "import os, signal, sys; os.kill(os.getppid(), signal.SIGTERM); sys.stdin.read()"

    def launch(plan: Plan, folder: Path, is_stopped: Callable[[], bool], _: Any) -> ClusterLauncher:
        silent = SubprocessStarter("127.0.0.1", (sys.executable, "-c", terminate))
        return ClusterLauncher(plan, folder, {0: silent}, is_stopped=is_stopped)

    monkeypatch.setattr(controller, "RayLauncher", launch)
    monkeypatch.setattr(api, "check_ray", lambda _: None)
    run = srl.train(auditing, launcher="ray", out=str(tmp_path / "run"))
    assert run.summary["status"] == "interrupted"
    assert run.summary["reason"] == "stopped by SIGTERM"
    assert_nothing_left(of_links)


def test_a_host_that_cannot_prepare_is_named_and_nobody_starts(
    auditing: str, tmp_path: Path, of_links: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000)); os.execvp(sys.argv[1], sys.argv[1:])"
    place(monkeypatch, {"actor-0": 1}, {1: (sys.executable, "-c", small)})
    run = srl.train(auditing, launcher="local", out=str(tmp_path / "run"))
    assert run.summary["status"] == "failed"
    assert run.summary["reason"].startswith("node-agent: host 1 (127.0.0.1): ")
    assert "cannot hold" in run.summary["reason"]
    assert not list(run.folder.glob("logs/actor*")), "it was started"
    assert not list(run.folder.glob("logs/trainer*")), "it was started"
    assert_nothing_left(of_links)


def test_strangers_at_the_doors_of_the_controller_and_a_relay_are_counted(
    auditing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = place(monkeypatch, {"actor-0": 1})
    strangers: list[socket.socket] = []
    refused = {"controller": 0, "relay-0": 0}

    def hear(messages: Sequence[Message]) -> str | None:
        agents = made[0]._agents
        if not strangers and agents is not None and len(agents._addresses) == 2:
            for at in (address_of(made[0]._listener), agents._addresses[0]["parameters/main"]):
                host, _, port = at.removeprefix("tcp://").rpartition(":")
                strangers.append(socket.create_connection((host, int(port))))
                strangers[-1].sendall(b"GET / HTTP/1.0\r\n\r\n")
        for message in messages:
            if isinstance(message, Report) and message.worker in refused:
                refused[message.worker] = message.counters["connections_refused"]
        return "both are counted" if strangers and all(refused.values()) else None

    experiment = api.find_experiment(
        auditing,
        api._to_arguments(
            {
                "launcher": "local",
                "inference": "inline",
                "stop__env_steps": 100_000_000,
                "stop__seconds": 60.0,
                "evaluation__episodes": 0,
                "out": str(tmp_path / "run"),
            }
        ),
    )
    watcher = type("Watcher", (), {"hear": staticmethod(hear)})()
    run = api.train_experiment(experiment, api._silent, watcher)
    for stranger in strangers:
        stranger.close()
    assert run.summary["reason"] == "both are counted"
    assert run.summary["connections_refused"] >= 2  # and who is about to prove itself
    assert set(run.summary["time_split"]) == {"actor", "trainer"}, "they report no times"
