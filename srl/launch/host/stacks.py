"""What a worker's process is doing, seen from outside: also of one that does not come back.

A worker gives its stacks out by a signal, whose handler is not Python's: a call that never lets
Python run cannot hold it up.
"""

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from srl.transport.control import Examination

_SIGNAL = signal.SIGUSR1
_SECONDS = 1.0
"""Between the signal and the look at what came of it; the time over which CPU use is seen."""
_LONGEST = 32_000
"""Characters of the stacks of one process."""


def offer_stacks(folder: Path, worker: str) -> None:
    """Have this process write its stacks to a file of `folder` whenever it gets the signal."""
    path = _path(folder, worker)
    aside = path.with_name(f"{path.name}.new")
    file = aside.open("wb")  # open for good: the handler writes to it
    faulthandler.register(_SIGNAL, file=file, all_threads=True, chain=False)
    aside.rename(path)  # whoever sees it may send the signal, which would end the process before


def innermost(stack: str) -> str:
    """Where the main thread is, in words; empty where that is not known."""
    main = stack.rpartition("hread 0x")[2]  # it is the oldest, and told last
    for line in main.splitlines():
        place = line.strip()
        if place.startswith("File "):
            file, _, rest = place.removeprefix("File ").partition(", line ")
            number, _, function = rest.partition(" in ")
            return f"{function} ({file.strip(chr(34))}:{number})"
    return ""


class Examiner:
    """A node agent's way to look at its workers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._begun: dict[str, tuple[int, float]] = {}
        """Worker to its pid, and its CPU seconds at the signal."""
        self._at: float | None = None

    def forget(self, worker: str) -> None:
        """A next life begins, which does not listen yet."""
        _path(self._folder, worker).unlink(missing_ok=True)
        self._begun.pop(worker, None)

    def begin(self, pids: Mapping[str, int]) -> None:
        """Ask these workers for their stacks; `finish` has them a little later."""
        if self._at is not None:
            return
        self._at = time.monotonic()
        for worker, pid in pids.items():
            self._begun[worker] = pid, _look(pid)[1]
            path = _path(self._folder, worker)
            if path.exists():
                with suppress(OSError):
                    os.truncate(path, 0)
                    os.kill(pid, _SIGNAL)

    def finish(self) -> dict[str, Examination] | None:
        """What was seen of every worker; None where nobody asked, or it is too early."""
        if self._at is None or (passed := time.monotonic() - self._at) < _SECONDS:
            return None
        found = {}
        for worker, (pid, before) in self._begun.items():
            state, seconds = _look(pid)
            try:
                stack = _path(self._folder, worker).read_bytes().strip(b"\0")
            except OSError:
                stack = b""
            found[worker] = Examination(
                pid=pid,
                state=state,
                busy=max(0.0, seconds - before) / passed,
                stack=stack.decode(errors="replace")[-_LONGEST:],
            )
        self._begun, self._at = {}, None
        return found


def _path(folder: Path, worker: str) -> Path:
    return folder / f"stacks-{worker}"


def _look(pid: int) -> tuple[str, float]:
    """State and CPU seconds of a process; '?' where the kernel does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "?", 0.0
    ticks = int(fields[11]) + int(fields[12])
    return fields[0], ticks / (os.sysconf("SC_CLK_TCK") if sys.platform == "linux" else 100)
