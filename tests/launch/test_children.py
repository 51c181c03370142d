"""Children that are forked behave as those of `subprocess` do; real ones, of a process of its own."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are used on Linux")

PROGRAM = """
import os, signal, subprocess, sys, threading, time
from pathlib import Path
import numpy as np
from srl.launch.host.children import can_fork, fork

folder = Path(sys.argv[1])
assert can_fork()

def speak():
    print("said")
    sys.stderr.write(f"drawn {np.random.randint(1 << 40)}\\n")
    return 7

def fail():
    raise RuntimeError("on fire")

def leave():
    sys.exit("no configuration")

children = [fork(folder / f"{i}.log", speak) for i in range(2)]
assert [child.wait(timeout=60) for child in children] == [7, 7]
assert [child.poll() for child in children] == [7, 7]
for child, work in (("fail", fail), ("leave", leave)):
    assert fork(folder / f"{child}.log", work).wait(timeout=60) == 1

sleeper = fork(folder / "sleeper.log", lambda: time.sleep(600) or 0)
assert sleeper.poll() is None
try:
    sleeper.wait(timeout=0.01)
except subprocess.TimeoutExpired:
    sleeper.kill()
assert sleeper.wait(timeout=60) == -signal.SIGKILL
sleeper.kill()

thread = threading.Thread(target=time.sleep, args=(600,), daemon=True)
thread.start()
assert not can_fork()
print("parent")
"""


def test_forked_children_end_as_processes_do(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert result.stderr == ""
    assert (result.returncode, result.stdout) == (0, "parent\n")
    logs = [(tmp_path / f"{i}.log").read_text() for i in range(2)]
    assert all("said" in log and "drawn" in log for log in logs)
    assert logs[0] != logs[1]  # each draws its own numbers
    assert "on fire" in (tmp_path / "fail.log").read_text()
    assert "no configuration" in (tmp_path / "leave.log").read_text()


def test_actors_are_forked_and_named(start_run: Any) -> None:
    run = start_run("cartpole", "--launcher", "local", "--inference", "shm")
    run.wait_for_rows(1)
    agent = run.pid_of("node-agent")
    for worker, has_command in (("actor-0", "node_agent"), ("trainer-0", "workers.run")):
        process = Path("/proc") / str(run.pid_of(worker))
        assert (process / "comm").read_text() == f"{worker}\n"
        assert has_command in (process / "cmdline").read_text()
        sockets = {p.readlink() for p in (process / "fd").iterdir() if p.readlink().name}
        shared = {s for s in sockets if str(s).startswith("socket:")}
        theirs = {p.readlink() for p in (Path("/proc") / str(agent) / "fd").iterdir()}
        assert not shared & theirs  # of another channel, it would keep the end open
    run.popen.send_signal(signal.SIGTERM)
    assert run.wait() == 0
    run.assert_nothing_left()
