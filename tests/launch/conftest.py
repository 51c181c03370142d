"""Real runs: `srl` in a process of its own, everything that belongs to it, and its end."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from srl.launch.folder import RunFolder

AUDITING = f"{Path(__file__).parent / 'auditing.py'}:experiment"
DEADLINE_SECONDS = 90.0
LEDGER = ("sent", "consumed", "dropped", "lost", "in_flight", "duplicated")


class RunProcess:
    """One `srl` command. Its TMPDIR is its own: all of its processes inherit it and are known
    by it, and the folder of its sockets lies there."""

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        self.folder = folder
        self.temporary = Path(tempfile.mkdtemp(prefix="srlt-"))
        self.shared_before = set(os.listdir("/dev/shm"))
        self._log = folder.with_name(f"{folder.name}.log")
        with self._log.open("ab") as log:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "srl.cli", *arguments],
                env={**os.environ, "TMPDIR": str(self.temporary)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def output(self) -> str:
        return self._log.read_text()

    def rows(self) -> list[dict[str, Any]]:
        """Whole lines of metrics.jsonl so far."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_for_rows(self, number: int) -> None:
        def enough() -> bool:
            assert self.popen.poll() is None, f"ended early:\n{self.output}"
            return len(self.rows()) >= number

        wait_until(enough, f"{number} rows of metrics")

    def wait(self, seconds: float = DEADLINE_SECONDS) -> int:
        """The exit code."""
        try:
            return self.popen.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still runs after {seconds} s:\n{self.output}")

    def pids(self) -> dict[int, str]:
        """Live processes of this run, the controller included: pid to command line."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if f"TMPDIR={self.temporary}".encode() in environment and command:
                found[int(entry.name)] = command
        return found

    def pid_of(self, name: str) -> int:
        """The pid of a worker, of `node-agent` or of `controller`."""
        if name == "controller":
            return self.popen.pid
        if name == "node-agent":
            # forked actors have its command line, but not its parent
            return next(p for p in self.pids() if _parent_of(p) == self.popen.pid)
        ready = self.folder / f"logs/{name}.json"  # later than the first rows, where it has torch
        wait_until(ready.exists, f"{name} to be ready")
        return int(self.read(f"logs/{name}.json")["pid"])

    def wait_for_new_life(self, name: str, pid: int) -> None:
        """Until a worker is ready again in another process."""
        wait_until(lambda: self.pid_of(name) != pid, f"another life of {name}")

    def read(self, name: str) -> dict[str, Any]:
        return json.loads((self.folder / name).read_text())

    @property
    def summary(self) -> dict[str, Any]:
        return self.read("summary.json")

    def assert_nothing_left(self) -> None:
        """No process, no claim to the folder, no socket folder, nothing in /dev/shm, within ten seconds."""
        wait_until(lambda: not self.pids(), f"the end of {self.pids()}", seconds=10)
        # a process that ends has no command line any more before its descriptors are closed
        free = lambda: not self.folder.exists() or not RunFolder(self.folder).is_running  # noqa: E731
        wait_until(free, "the run folder to be free", seconds=10)
        left = lambda: list(self.temporary.glob("srl-*"))  # noqa: E731
        wait_until(lambda: not left(), f"{left()} to be removed", seconds=10)
        new = lambda: set(os.listdir("/dev/shm")) - self.shared_before  # noqa: E731
        wait_until(lambda: not new(), f"{new()} to leave /dev/shm", seconds=10)

    def close(self) -> None:
        """End whatever is left of it, by pid."""
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.popen.wait(timeout=10)
        shutil.rmtree(self.temporary, ignore_errors=True)


def _parent_of(pid: int) -> int:
    return int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])


def wait_until(
    is_done: Callable[[], bool], what: str, *, seconds: float = DEADLINE_SECONDS
) -> None:
    deadline = time.monotonic() + seconds
    while not is_done():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.01)


def assert_ledger_adds_up(summary: dict[str, Any]) -> None:
    ledger = {name: summary[f"blocks_{name}"] for name in LEDGER}
    accounted = sum(ledger[name] for name in ("consumed", "dropped", "lost", "in_flight"))
    assert ledger["sent"] == accounted, ledger
    assert ledger["duplicated"] == 0, ledger


@pytest.fixture
def start_run(tmp_path: Path) -> Iterator[Callable[..., RunProcess]]:
    """Starts `srl train EXPERIMENT --out FOLDER ...`; ends it with the test."""
    started: list[RunProcess] = []

    def start(experiment: str, *options: str, command: str = "train") -> RunProcess:
        folder = tmp_path / "run"
        name = [experiment, "--out", str(folder)] if command == "train" else [str(folder)]
        started.append(RunProcess(folder, [command, *name, *options]))
        return started[-1]

    yield start
    for run in started:
        run.close()


@pytest.fixture(name="wait_until")
def _wait_until() -> Callable[..., None]:
    return wait_until


@pytest.fixture(name="assert_ledger_adds_up")
def _assert_ledger_adds_up() -> Callable[[dict[str, Any]], None]:
    return assert_ledger_adds_up


@pytest.fixture(scope="session")
def auditing() -> str:
    """The name of the auditing experiment."""
    return AUDITING


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Makes a disk in memory with the options of tmpfs (`size=1m`); only root may mount one."""
    path = tmp_path / "disk"
    mounted = False

    def make(options: str) -> Path:
        nonlocal mounted
        path.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
        if sys.platform != "linux" or os.geteuid() != 0 or subprocess.call(words):
            pytest.skip("no small disk can be mounted here")
        mounted = True
        return path

    yield make
    if mounted:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Ray cluster on this host: a head with two cores, and a node with four that is called `far`."""
    token = tmp_path_factory.mktemp("ray") / "token"
    token.write_text("a-token-of-this-test-alone-0123456789abcdef")
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_AUTH_MODE", "token")
    patch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    made.add_node(num_cpus=4, resources={"far": 1})
    yield made
    made.shutdown()
    patch.undo()
