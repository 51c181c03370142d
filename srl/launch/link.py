"""Ties the node agent of a host to a controller on another.

    python -m srl.launch.link < ORDER

Who starts it writes the order, which holds the run's keys, to its input, and keeps that open: where it is
closed, or the line to the controller is lost, the agent is left alone, and ends as it does when its
controller dies.
"""

import contextlib
import os
import platform
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import zmq

from srl.core.errors import ConfigError
from srl.core.version import VERSION
from srl.launch.far_folder import FarFolder
from srl.launch.host.agent import AgentProcess
from srl.transport.keys import Keys
from srl.transport.line import CHUNK_BYTES, Line

_WAIT_MILLISECONDS = 200
_ALONE_SECONDS = 120.0
"""For the agent to write a last checkpoint and end its workers."""
_REST_SECONDS = 5.0
"""For the controller to take more of what was written last."""


class LinkOrder(msgspec.Struct):
    """Whom to tie to whom."""

    controller: str
    """Where it is found."""
    keys: Keys
    host: int
    folder: str
    """Of the run."""
    mark: str
    """A file of it: who finds that sees the folder, and not another of its name."""
    life: int = 1
    """How often this host was started."""


class Greeting(msgspec.Struct):
    """What a link says first: what it is, and what it sees."""

    sockets: str
    """The agent's folder of sockets."""
    python: str
    srl: str
    """Versions."""
    sees_folder: bool = True
    """Whether the run folder is here; else what is written here is sent."""

    def check(self, host: int, address: str) -> None:
        """Raise ConfigError where this host cannot take part."""
        mine = Greeting("", python_version(), VERSION)
        for name, here, there in (
            ("Python", mine.python, self.python),
            ("SRL", mine.srl, self.srl),
        ):
            if here != there:
                raise ConfigError(
                    f"host {host} ({address}) has {name} {there}, and this one {here}: install the "
                    "same on both"
                )


def python_version() -> str:
    """Major and minor: what must be the same on all hosts."""
    return ".".join(platform.python_version_tuple()[:2])


def main() -> int:
    """Entry point; the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # Ray blocks some of what the agent answers
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=LinkOrder)
    context: zmq.Context[Any] = zmq.Context()
    line = Line(context, order.controller, order.keys, host=order.host, life=order.life)
    far = None if sees(order) else FarFolder(order.folder, order.host)
    try:
        logs = (Path(order.folder) if far is None else far.path) / "logs"
        agent = AgentProcess(logs / f"node-agent-{order.host}.log")
        greeting = Greeting(str(agent.folder), python_version(), VERSION, far is None)
        line.send(msgspec.json.encode(greeting) + b"\n")
        told = os.dup(2)  # whoever started this process hears its end, too
        _write_to(logs / f"link-{order.host}.log")
        try:
            reason = _Link(line, agent.socket, far).run()
        finally:
            agent.socket.close()
            agent.end(_ALONE_SECONDS)
        words = f"the link of host {order.host} to {order.controller} ends: {reason}\n"
        sys.stderr.write(words)
        with contextlib.suppress(OSError):
            os.write(told, words.encode())
        if far is not None:
            _send_rest(line, far)
    finally:
        line.close()
        if far is not None:
            far.close()
    return 0


def sees(order: LinkOrder) -> bool:
    """Whether the run folder is here."""
    return (Path(order.folder) / order.mark).is_file()


def _write_to(log: Path) -> None:
    """Have what this process says from now on in a log of the run."""
    with log.open("ab") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)


class _Link:
    """Carries bytes both ways; of a host that does not see the run folder, files, too."""

    def __init__(self, line: Line, agent: socket.socket, far: FarFolder | None) -> None:
        self._line = line
        self._agent = agent
        self._far = far
        self._unsent = bytearray()

    def run(self) -> str:
        """Go on until one side is gone; which."""
        line, agent, starter = self._line, self._agent, sys.stdin.fileno()
        agent.setblocking(False)
        poller = zmq.Poller()
        for pollable in (line.socket, line.monitor, agent.fileno(), starter):
            poller.register(pollable, zmq.POLLIN)
        while True:
            poller.poll(10 if self._unsent else _WAIT_MILLISECONDS)
            self._unsent += self._inward(line.recv())
            if line.lost is not None:
                return f"its controller is gone, {line.lost}"
            self._give_orders()
            self._outward(b"")
            try:
                while data := agent.recv(CHUNK_BYTES):
                    self._outward(data)
                return "its node agent has ended"
            except BlockingIOError:
                pass
            except OSError:
                return "its node agent is gone"
            if dict(poller.poll(0)).get(starter) and not os.read(starter, 4096):
                return "who started it is gone"

    def _give_orders(self) -> None:
        """Pass on to the agent what it takes now."""
        try:
            if self._unsent:
                del self._unsent[: self._agent.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:  # it is gone; its last words may still be here
            self._unsent.clear()

    def _inward(self, data: bytes) -> bytes:
        """What the agent is to see of what the controller has sent."""
        if self._far is None:
            return data
        orders, answer = self._far.inward(data)
        if answer:
            self._line.send(answer)
        return orders

    def _outward(self, data: bytes) -> None:
        """Send on what the agent has sent, and files that wait."""
        if self._far is not None:
            data = self._far.outward(data)
        if data:
            self._line.send(data)


def _send_rest(line: Line, far: FarFolder) -> None:
    """Send what was written last, while the controller takes it."""
    far.finish()
    gone_at = time.monotonic() + _REST_SECONDS
    while line.lost is None and time.monotonic() < gone_at:
        if data := far.outward(b""):
            line.send(data)
        if far.is_empty:
            return
        line.socket.poll(_WAIT_MILLISECONDS)
        if taken := line.recv():
            gone_at = time.monotonic() + _REST_SECONDS
            far.inward(taken)


if __name__ == "__main__":
    sys.exit(main())
