"""What the control group of this process allows it: the limits of a container or a batch job.

Both versions of cgroups; a limit of any group above counts, so the least one is returned.
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
    limits = []
    for group in _groups(root, "memory", membership):
        limit = _read(group / "memory.max") or _read(group / "memory.limit_in_bytes")
        if limit.isdigit() and int(limit) < _UNLIMITED:
            limits.append(int(limit))
    return min(limits, default=None)


def _groups(root: Path, controller: str, membership: str | None) -> Iterator[Path]:
    """The folders of this process' group and of all above it.

    Args:
        root: where cgroups are mounted.
        controller: `cpu` or `memory`.
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


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
