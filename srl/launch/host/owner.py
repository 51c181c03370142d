"""Who owns a folder of sockets: a process, written down so that another can tell if it still lives.

A pid alone is not enough, because pids are used again: the start time tells two processes apart.
"""

import json
import os
import socket
from dataclasses import asdict, dataclass, fields
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Owner:
    """A process and where it runs."""

    pid: int
    started: int
    """Clock ticks between the host's boot and the start of the process."""
    host: str
    boot: str
    """Id of the host's boot: after a reboot every owner is dead."""
    namespace: str
    """Where the pid is valid: two containers of one host may use the same."""

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"


def this_process() -> Owner:
    """The process that asks."""
    return Owner(
        pid=os.getpid(),
        started=_start_of(os.getpid()) or 0,
        host=socket.gethostname(),
        boot=_text("/proc/sys/kernel/random/boot_id"),
        namespace=_namespace(),
    )


def write_owner(path: Path) -> None:
    """Write down that this process owns what `path` lies in, whole or not at all."""
    aside = path.with_name(f".{path.name}.writing")
    aside.write_text(json.dumps(asdict(this_process())) + "\n")
    aside.replace(path)


def read_owner(path: Path) -> Owner | None:
    """The owner that was written down; None where none was."""
    try:
        data = json.loads(path.read_text())
        return Owner(**{f.name: f.type(data[f.name]) for f in fields(Owner)})  # pyright: ignore[reportCallIssue] - int and str
    except (OSError, ValueError, TypeError, KeyError):
        return None


def is_alive(path: Path) -> bool:
    """Whether the owner written down at `path` still lives; False where there is none.

    An owner that cannot be seen from here, in another container, counts as alive.
    """
    owner = read_owner(path)
    if owner is None:
        return False
    here = this_process()
    if owner.host == here.host and owner.boot != here.boot:
        return False
    if (owner.host, owner.namespace) == (here.host, here.namespace):
        return _start_of(owner.pid) == owner.started
    return True


def _start_of(pid: int) -> int | None:
    """Start time of a live process; None where there is none, or only its remains."""
    if not Path("/proc/self/stat").exists():  # macOS: only whether there is such a process
        return 0 if _exists(pid) else None
    fields_of = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(fields_of) < 20 or fields_of[0] in ("Z", "X"):
        return None
    return int(fields_of[19])


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
