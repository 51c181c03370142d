"""One measured window: a fresh process that prints its rate, and the end of all it has started."""

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36
_PASSED_ON = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "LD_LIBRARY_PATH")
"""Variables a window inherits; nothing else, so that all windows compute under the same ones."""
_SHARED = Path("/dev/shm")
_END_SECONDS = 5.0
_TOLD_CHARACTERS = 1500
_BUSY_SECONDS = 0.5


class WindowError(Exception):
    """A window without a rate; says why."""


def run_window(command: Sequence[str], env: Mapping[str, str], *, limit: float) -> dict[str, Any]:
    """Run a command until it prints a JSON object with `steps_s`; returns that object.

    It runs in a session and a temporary folder of its own. When it has spoken, has ended or is out
    of time, every process that descends from it is ended, whether it still has a parent or not.
    Raises WindowError where nothing was printed within `limit` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="srlb-", ignore_cleanup_errors=True) as folder:
        variables = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        variables |= {"TMPDIR": folder, **env}
        errors = Path(folder) / "stderr"
        with errors.open("wb") as stderr, _no_orphans() as reapers:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
            reapers[process.pid] = process.poll
            assert process.stdout is not None
            with process.stdout as printed:
                found, told = _listen(process, printed.fileno(), time.monotonic() + limit)
            code = process.poll()
        if found is not None and found["steps_s"] > 0:
            return found
        if found is not None:
            raise WindowError("no step was learned from in the window")
        told += errors.read_text(errors="replace")
        why = f"no rate within {limit:.0f} s" if code is None else f"ended with {code}"
        raise WindowError(f"{why}: {told.strip()[-_TOLD_CHARACTERS:] or 'nothing was printed'}")


def _listen(
    process: subprocess.Popen[bytes], descriptor: int, deadline: float
) -> tuple[dict[str, Any] | None, str]:
    """Read what a process prints until its result; also what else it said."""
    pending, told = b"", ""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if not selector.select(left):
                break
            chunk = os.read(descriptor, 65536)
            if not chunk:  # it ended, or closed its output: then it has nothing more to say
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_END_SECONDS)
                break
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                if (found := _result(line)) is not None:
                    return found, told
                told = f"{told}{line.decode(errors='replace')}\n"[-_TOLD_CHARACTERS:]
    return None, told


def _result(line: bytes) -> dict[str, Any] | None:
    if not line.startswith(b"{"):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found.get("steps_s"), int | float) else None


@contextlib.contextmanager
def _no_orphans() -> Iterator[dict[int, Callable[[], object]]]:
    """End, at the end of the block, every process that was started in it.

    Yields who takes the exit status of which of them; of the others it is taken here.

    While the block runs, a process below this one that loses its parent becomes this one's child,
    so that a daemon cannot get away by starting a session of its own.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    before = set(_descendants())
    reapers: dict[int, Callable[[], object]] = {}
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield reapers
    finally:
        left = set(_descendants()) - before
        for number in (signal.SIGTERM, signal.SIGKILL):
            if _end(before, number, reapers):
                break
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        for pid in left:  # torch's shared tensors, which a process that is ended leaves behind
            for path in _SHARED.glob(f"torch_{pid}_*"):
                path.unlink(missing_ok=True)


def _end(spared: set[int], number: int, reapers: Mapping[int, Callable[[], object]]) -> bool:
    """Signal all descendants but those to be spared; whether all were gone in time."""
    deadline = time.monotonic() + _END_SECONDS
    signalled = set[int]()
    while left := [pid for pid in _descendants() if pid not in spared]:
        for pid in left:
            if pid not in signalled:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
                signalled.add(pid)
        for pid in left:
            reapers.get(pid, partial(_reap, pid))()
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _reap(pid: int) -> None:
    """Take the exit status of a process that lost its parent."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _descendants() -> list[int]:
    """Every process below this one."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                facts = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(facts[1]), []).append(int(entry))
    found, queue = list[int](), list(children.get(os.getpid(), []))
    while queue:
        found.append(queue[-1])
        queue += children.get(queue.pop(), [])
    return found


def busy_cores() -> float:
    """How many cores are at work now, before a window is: 0 on a quiet machine."""
    busy, total = _cpu_times()
    time.sleep(_BUSY_SECONDS)
    busy_later, total_later = _cpu_times()
    share = (busy_later - busy) / max(total_later - total, 1)
    return round(share * (os.cpu_count() or 1), 2)


def _cpu_times() -> tuple[int, int]:
    times = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(times) - times[3] - times[4], sum(times)
