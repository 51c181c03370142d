"""A node agent's watch over the memory of its workers: who takes too much, whom the kernel killed."""

import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from srl.launch.host import cgroup
from srl.launch.host.limits import MB
from srl.telemetry.memory import own_megabytes

_LOOK_SECONDS = 2.0


def oom_kills() -> int:
    """Processes that the kernel killed for lack of memory, in this control group or on this host."""
    kills = cgroup.oom_kills()
    if kills is not None:
        return kills
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return int(dict(line.split() for line in lines).get("oom_kill", 0))


class MemoryWatch:
    """Samples workers now and then, and explains deaths that memory has caused."""

    def __init__(
        self,
        actor_limit: float | None,
        env: str,
        *,
        measure: Callable[[int], float | None] = own_megabytes,
        count_kills: Callable[[], int] = oom_kills,
    ) -> None:
        """With the megabytes that an actor of `env` may take, if there is such a limit."""
        self._actor_limit = actor_limit
        self._env = env
        self._measure = measure
        self._count_kills = count_kills
        self._kills = count_kills()
        self._look_at = 0.0
        self._ended: dict[int, str] = {}
        """Pid to why it was ended."""
        self._last: dict[int, float] = {}
        """Pid to its megabytes when it was last seen."""

    def look(self, pids: Mapping[str, int]) -> dict[str, float]:
        """Megabytes of every worker that lives; empty where it is not yet time to look again."""
        if time.monotonic() < self._look_at:
            return {}
        self._look_at = time.monotonic() + _LOOK_SECONDS
        seen = {worker: self._measure(pid) for worker, pid in pids.items()}
        found = {worker: size for worker, size in seen.items() if size is not None}
        self._last = {pids[worker]: size for worker, size in found.items()}
        return found

    def is_too_large(self, worker: str, kind: str, pid: int) -> bool:
        """Whether a worker must be ended; its end is then explained by that."""
        size = self._last.get(pid, 0.0)
        plays = kind in ("actor", "evaluator")
        if not plays or self._actor_limit is None or size <= self._actor_limit:
            return False
        self._ended[pid] = (
            f"{worker} took {size:.0f} MB, more than actors.memory-limit-mb {self._actor_limit:g}, "
            f"and was ended: does its env {self._env} keep what it should free?"
        )
        return True

    def explain(self, worker: str, pid: int, code: int) -> str | None:
        """Why a worker has ended, where it was for its memory."""
        if pid in self._ended:
            return self._ended.pop(pid)
        if code != -signal.SIGKILL or self._count_kills() <= self._kills:
            return None
        self._kills += 1
        limit, size = cgroup.memory_limit(), self._last.get(pid)
        facts = [] if size is None else [f"it had {size:.0f} MB when last seen"]
        facts += [] if limit is None else [f"the control group may have {limit / MB:.0f} MB"]
        return (
            f"{worker} was killed by the kernel for lack of memory ({'; '.join(facts) or 'SIGKILL'}): "
            "use fewer --actors.count or --actors.envs; --actors.memory-limit-mb ends actors whose "
            "env leaks before that"
        )
