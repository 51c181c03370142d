"""Looking at a process from outside: also at one that does not come back, or is stopped."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from srl.launch.host.stacks import Examiner, innermost
from srl.transport.control import Examination

SECONDS = 60.0
PROGRAM = """
import re, sys, threading, time
from pathlib import Path
from srl.launch.host.stacks import offer_stacks

def rest():
    time.sleep(1000)

def hold():  # no other Python runs meanwhile
    re.match("(a+)+b", "a" * 60)

threading.Thread(target=rest, daemon=True).start()
offer_stacks(Path(sys.argv[1]), "actor-0")
{"rest": rest, "hold": hold}[sys.argv[2]]()
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[object]:
    started: list[subprocess.Popen[bytes]] = []

    def start(what: str) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path), what]))
        deadline = time.monotonic() + SECONDS
        while not (tmp_path / "stacks-actor-0").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait(SECONDS)


def examine(folder: Path, pid: int) -> Examination:
    examiner = Examiner(folder)
    examiner.begin({"actor-0": pid})
    deadline = time.monotonic() + SECONDS
    while (found := examiner.finish()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert examiner.finish() is None, "once"
    return found["actor-0"]


def test_stacks_of_all_threads_come_from_a_process_that_waits(start, tmp_path):
    process = start("rest")
    for _ in range(2):  # what was seen before is not told again
        seen = examine(tmp_path, process.pid)
        assert seen.pid == process.pid
        assert seen.stack.count("hread 0x") == 2
        assert innermost(seen.stack).startswith("rest (<string>:")


def test_process_that_lets_no_python_run_gives_its_stack_too(start, tmp_path):
    process = start("hold")
    seen = examine(tmp_path, process.pid)
    assert "in hold" in seen.stack
    assert seen.state == "R"
    assert seen.busy > 0


def test_stopped_process_gives_no_stack_but_its_state(start, tmp_path):
    process = start("rest")
    os.kill(process.pid, signal.SIGSTOP)
    deadline = time.monotonic() + SECONDS
    while "T" not in Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2][:3]:
        assert time.monotonic() < deadline
    seen = examine(tmp_path, process.pid)
    assert (seen.state, seen.stack, innermost(seen.stack)) == ("T", "", "")


def test_process_that_does_not_listen_yet_is_not_sent_the_signal_that_would_end_it(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    try:
        examiner = Examiner(tmp_path)
        (tmp_path / "stacks-actor-0").touch()  # an earlier life's
        examiner.forget("actor-0")
        assert examine(tmp_path, process.pid).stack == ""
        assert process.poll() is None
    finally:
        process.kill()
        process.wait(SECONDS)


def test_main_thread_is_the_one_told_last():
    stack = (
        'Thread 0x1 (most recent call first):\n  File "a.py", line 1 in other\n\n'
        'Current thread 0x2 (most recent call first):\n  File "b.py", line 2 in deep\n'
        '  File "c.py", line 3 in main\n'
    )
    assert innermost(stack) == "deep (b.py:2)"
    assert innermost("") == ""
