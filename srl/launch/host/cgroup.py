"""What the control group of this process allows it: the limits of a container or a batch job.

Both versions of cgroups. A limit of any group above counts too, so the least one is returned.
"""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60
"""Version 1 writes a number near 2**63 where it means none."""


def cpu_quota(root: Path = ROOT, membership: str | None = None) -> float | None:
    """Cores' worth of time that may be used; None where it is not limited."""
    quotas = []
    for group in _groups(root, "cpu", membership):
        words = _read(group / "cpu.max").split()  # version 2: "QUOTA PERIOD" or "max PERIOD"
        if not words:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            words = [_read(group / name) for name in names]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit():
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def memory_limit(root: Path = ROOT, membership: str | None = None) -> int | None:
    """Bytes of memory that may be used; None where it is not limited."""
    limits = [limit for _, limit in _memory_groups(root, membership)]
    return min(limits, default=None)


def memory_left(root: Path = ROOT, membership: str | None = None) -> int | None:
    """Bytes of memory that may still be taken; None where they are not limited.

    Files that were read and not lately used again count as free: the kernel drops them first.
    """
    left = []
    for group, limit in _memory_groups(root, membership):
        used = _number(group / "memory.current") or _number(group / "memory.usage_in_bytes") or 0
        stat = dict(line.split(None, 1) for line in _read(group / "memory.stat").splitlines())
        dropped = int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))
        left.append(max(0, limit - max(0, used - dropped)))
    return min(left, default=None)


def processes_left(root: Path = ROOT, membership: str | None = None) -> int | None:
    """Processes and threads that may still be started; None where they are not limited."""
    left = []
    for group in _groups(root, "pids", membership):
        limit = _number(group / "pids.max")
        if limit is not None:
            left.append(max(0, limit - (_number(group / "pids.current") or 0)))
    return min(left, default=None)


def oom_kills(root: Path = ROOT, membership: str | None = None) -> int | None:
    """Processes that the kernel killed because a limit of memory was reached; None: unknown."""
    for group in _groups(root, "memory", membership):  # its own first, which counts exactly these
        events = _read(group / "memory.events") or _read(group / "memory.oom_control")
        for line in events.splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.isdigit():
                return int(count)
    return None


def _memory_groups(root: Path, membership: str | None) -> Iterator[tuple[Path, int]]:
    """Groups that limit memory, and their limits in bytes."""
    for group in _groups(root, "memory", membership):
        limit = _number(group / "memory.max") or _number(group / "memory.limit_in_bytes")
        if limit is not None and limit < _UNLIMITED:
            yield group, limit


def _groups(root: Path, controller: str, membership: str | None) -> Iterator[Path]:
    """The folders of this process' group and of all above it.

    Args:
        root: where cgroups are mounted.
        controller: `cpu`, `memory` or `pids`.
        membership: the text of /proc/self/cgroup, which is read where it is not given.
    """
    text = _read(Path("/proc/self/cgroup")) if membership is None else membership
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / controller if controllers else root
        group = mount / path.lstrip("/")
        while True:  # a container sees its group as the root, whatever the path says
            yield group
            if group in (mount, group.parent):
                break
            group = group.parent


def _number(path: Path) -> int | None:
    text = _read(path)
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
