"""Worker processes, as children of the node agent: started anew, or forked from it.

A fork has what the agent imported, and so is ready in a tenth of the time; 16 actors on 2 cores are
then no longer what a start waits for. Only actors are forked: what others import (torch) must not be
in the agent. Each is a process group of its own, with which ends what it had started. It is safe because the agent has one thread, no sockets of ZeroMQ and no env.
"""

import gc
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import numpy as np

from srl.launch.host.process import thread_environment


class Child(Protocol):
    """A child process, as `subprocess.Popen` is one."""

    pid: int

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, when it has ended; raises TimeoutExpired."""
        ...


class Fork:
    """A child that was forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def kill(self) -> None:
        """End it at once."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, when it has ended; raises TimeoutExpired."""
        if self.poll() is None:
            ended = os.pidfd_open(self.pid)
            try:
                poller = select.poll()  # select() knows no descriptors above 1023
                poller.register(ended, select.POLLIN)
                poller.poll(None if timeout is None else timeout * 1000)
            finally:
                os.close(ended)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code


def can_fork() -> bool:
    """Whether a fork of this process is a sound one: a lock of another thread would stay locked."""
    tasks = Path("/proc/self/task")
    return hasattr(os, "pidfd_open") and tasks.is_dir() and len(list(tasks.iterdir())) == 1


def fork(log: Path, work: Callable[[], int]) -> Fork:
    """A child that does `work` and ends with what it returns; it writes to `log`."""
    gc.freeze()  # else the child's collector writes to, and so copies, all that is shared
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        gc.unfreeze()
        return Fork(pid)
    code = 1
    try:
        os.setpgid(0, 0)
        _redirect(log)
        np.random.seed()  # noqa: NPY002 - an env may draw from what would be the same in all forks
        code = work()
    except SystemExit as error:
        sys.stderr.write(f"{error}\n")
    except BaseException:  # noqa: BLE001 - nothing of the parent's may run in here
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def start_anew(arguments: list[str], log: Path, fds: list[int], threads: int) -> Child:
    """A child that is a new interpreter; it inherits `fds` and writes to `log`."""
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-P", *arguments],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=thread_environment(threads) | {"PYTHONUNBUFFERED": "1"},
            process_group=0,
        )


def end_group(pid: int) -> None:
    """End what a child that has ended left: the processes that its envs had started."""
    with suppress(OSError):  # mostly, there is none
        os.killpg(pid, signal.SIGKILL)


def _redirect(log: Path) -> None:
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (file, 1), (file, 2)):
        os.dup2(source, target)
    os.close(file)
    os.close(nothing)
