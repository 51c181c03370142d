"""Starts the node agent of a host."""

import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from srl.launch.host.process import thread_environment
from srl.launch.host.socket_folder import make_socket_folder


class AgentProcess:
    """A node agent that was started here, and its folder of sockets."""

    def __init__(self, log: Path, held: Sequence[int] = ()) -> None:
        """Start it; what it writes goes to `log`, and descriptors that are `held` stay open with it."""
        self.socket, theirs = socket.socketpair()
        """Carries the controller's messages."""
        with log.open("ab") as file:
            self.folder = make_socket_folder()
            program = [sys.executable, "-P", "-m", "srl.launch.node_agent"]
            try:
                self._process = subprocess.Popen(
                    [*program, str(theirs.fileno()), str(self.folder)],
                    pass_fds=[theirs.fileno(), *held],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    env=thread_environment(1) | {"PYTHONUNBUFFERED": "1"},
                    start_new_session=True,  # Ctrl-C in the terminal reaches the controller alone
                )
            except OSError:
                shutil.rmtree(self.folder, ignore_errors=True)
                raise
        theirs.close()

    def wait(self, seconds: float) -> int | None:
        """Its exit code; None where it has not ended by then."""
        try:
            return self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None

    def end(self, grace_seconds: float) -> None:
        """Wait for its end, then bring it about; remove its sockets."""
        try:
            self._process.wait(timeout=grace_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=5)
        shutil.rmtree(self.folder, ignore_errors=True)
