"""The kernel's own killer, for real: a control group that is too small for a run whose env leaks."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
LEAKY = f"{Path(__file__).parent / 'leaky.py'}:Leaky"
BYTES = 900 << 20
PLACES = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max"),
)


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group with little memory; only root may make one."""
    for root, limit in PLACES:
        group = root / f"srl-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / limit).exists():
            (group / limit).write_text(str(BYTES))
            yield group
            group.rmdir()
            return
        group.rmdir()
    pytest.skip("no control group can be made here")


@pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")
def test_actor_that_the_kernel_kills_for_its_memory_is_named_and_starts_again(
    small_group: Path, start_run: Any, wait_until: Any, assert_ledger_adds_up: Any
) -> None:
    sizes = ("--actors.count", "2", "--actors.envs", "8", "--algorithm.hidden", "16")
    run = start_run(LEAKY, *sizes, "--evaluation.episodes", "0", "--stop.env-steps", "1000000000")
    (small_group / "cgroup.procs").write_text(str(run.popen.pid))
    wait_until(lambda: "killed by the kernel for lack of memory" in run.output, "a kill")
    run.wait_for_rows(len(run.rows()) + 3)
    run.popen.send_signal(signal.SIGTERM)
    assert run.wait() == 0
    assert "the control group may have 944 MB" in run.output
    assert "actor-0 has grown by" in run.output or "actor-1 has grown by" in run.output
    assert run.summary["worker_restarts"] >= 1
    assert_ledger_adds_up(run.summary)
    run.assert_nothing_left()
    run.close()
