"""A real run as it is seen from outside: its folder, its exit code, and what /proc says of it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

_END_SECONDS = 90.0
_GONE_SECONDS = 10.0
_POLL_SECONDS = 0.1
_SHARED = Path("/dev/shm")
_MEGABYTE = 1e6


class Size(NamedTuple):
    """What a process holds."""

    descriptors: int
    megabytes: float
    """Resident, shared memory included."""


class Run:
    """`srl` as a process, in a place of its own; its processes are known by their TMPDIR."""

    def __init__(self, place: Path, arguments: list[str]) -> None:
        """Start `srl ARGUMENTS --out PLACE/run`; `place` is a folder, whose path is a short one."""
        self.folder = place / "run"
        self.temporary = place / "tmp"
        self.temporary.mkdir()
        self._log = place / "log"
        self._mark = f"TMPDIR={self.temporary}".encode()
        self._rows: list[dict[str, Any]] = []
        self._read = 0
        """Bytes of the metrics that are rows already."""
        self._pids = set[int]()
        """Of processes that it ever had, as far as they were seen."""
        self._shared = set[str]()
        with self._log.open("wb") as log:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "srl.cli", *arguments, "--out", str(self.folder)],
                env={**os.environ, "TMPDIR": str(self.temporary)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def is_alive(self) -> bool:
        """Whether its first process has not ended."""
        return self.popen.poll() is None

    @property
    def output(self) -> str:
        """What it printed."""
        return self._log.read_text(errors="replace")

    @property
    def summary(self) -> dict[str, Any]:
        """Its summary, as it is now."""
        return json.loads((self.folder / "summary.json").read_text())

    def rows(self) -> list[dict[str, Any]]:
        """Whole lines of its metrics so far."""
        path = self.folder / "metrics.jsonl"
        if path.exists():
            with path.open("rb") as file:
                file.seek(self._read)
                lines = file.read().splitlines(keepends=True)
            for line in lines:
                if line.endswith(b"\n"):
                    self._rows.append(json.loads(line))
                    self._read += len(line)
        return self._rows

    def workers(self) -> dict[str, int]:
        """Worker to pid, of those that were ready and live."""
        found, living = {}, set(self.pids())
        for path in sorted(self.folder.glob("logs/*.json")):
            try:
                pid = int(json.loads(path.read_text())["pid"])
            except (OSError, ValueError, KeyError):
                continue
            if pid in living:
                found[path.stem] = pid
        return found

    def pids(self) -> list[int]:
        """Every live process of it."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    marks = (entry / "environ").read_bytes().split(b"\0")
                    is_dead = (entry / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
                except OSError:
                    continue
                if self._mark in marks and not is_dead:
                    found.append(int(entry.name))
        self._pids.update(found)
        return found

    def overseers(self) -> Iterator[tuple[str, int]]:
        """The controller and the node agent, which live as long as the run."""
        yield "controller", self.popen.pid
        for pid in self.pids():
            if _parent_of(pid) == self.popen.pid:
                yield "node-agent", pid

    def processes(self) -> dict[str, int]:
        """Name to pid of all that live: controller, node agent and the workers that were ready."""
        return {**dict(self.overseers()), **self.workers()}

    def wait_until(self, is_done: Callable[[], bool], seconds: float) -> bool:
        """Wait while it lives; whether it was done in time."""
        deadline = time.monotonic() + seconds
        while not is_done():
            if time.monotonic() > deadline or not self.is_alive:
                return is_done()
            time.sleep(_POLL_SECONDS)
        return True

    def end(self) -> int | None:
        """Stop it as a pre-emption would; its exit code, None where it does not end."""
        for pid in self.workers().values():
            send_signal(pid, signal.SIGCONT)
        self.popen.send_signal(signal.SIGTERM)
        try:
            return self.popen.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return None

    def wait_gone(self) -> list[int]:
        """Processes that are left ten seconds after the end."""
        deadline = time.monotonic() + _GONE_SECONDS
        while (left := self.pids()) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return left

    def look_at_shared(self) -> None:
        """Note which files of shared memory its processes have: other runs may have some, too."""
        for pid in self.pids():
            try:
                maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
            except OSError:
                continue
            self._shared.update(re.findall(rf"{_SHARED}/(\S+)", maps))

    def shared_left(self) -> set[str]:
        """Files of shared memory that it had, or that bear the number of a process of it."""
        numbers = {str(pid) for pid in self._pids}
        return {
            name
            for name in os.listdir(_SHARED)
            if name in self._shared or numbers.intersection(re.findall(r"\d+", name))
        }

    def kill_all(self) -> None:
        """End what is left, by pid."""
        for pid in self.pids():
            send_signal(pid, signal.SIGKILL)
        self.popen.wait(10)


def size_of(pid: int) -> Size:
    """What a process holds; nothing, where it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        megabytes = pages * os.sysconf("SC_PAGE_SIZE") / _MEGABYTE
        return Size(len(os.listdir(f"/proc/{pid}/fd")), megabytes)
    except OSError:
        return Size(0, 0.0)


def send_signal(pid: int, number: int) -> bool:
    """Send a signal to a process; False where it is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
