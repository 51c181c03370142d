"""Ties the node agent of a host to a controller on another.

    python -m srl.launch.link < ORDER

Who starts it writes the order, which holds the run's keys, to its input, and keeps that open: where it is
closed, or the line to the controller is lost, the agent is left alone, and ends as it does when its
controller dies.
"""

import os
import platform
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec
import zmq

from srl.core.errors import ConfigError
from srl.core.version import VERSION
from srl.launch.host.agent import AgentProcess
from srl.transport.keys import Keys
from srl.transport.line import CHUNK_BYTES, Line

_WAIT_MILLISECONDS = 200
_ALONE_SECONDS = 120.0
"""For the agent to write a last checkpoint and end its workers."""


class LinkOrder(msgspec.Struct):
    """Whom to tie to whom."""

    controller: str
    """Where it is found."""
    keys: Keys
    host: int
    log: str
    """File for what the agent writes."""
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
    """Whether the run folder is here."""

    def check(self, host: int, address: str, folder: str) -> None:
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
        if not self.sees_folder:
            raise ConfigError(
                f"host {host} ({address}) does not see the run folder {folder}: choose one that all "
                "hosts share (--out)"
            )


def python_version() -> str:
    """Major and minor: what must be the same on all hosts."""
    return ".".join(platform.python_version_tuple()[:2])


def main() -> int:
    """Entry point; the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=LinkOrder)
    context: zmq.Context[Any] = zmq.Context()
    line = Line(context, order.controller, order.keys, host=order.host, life=order.life)
    sees_folder = Path(order.log).parent.is_dir()
    greeting = Greeting("", python_version(), VERSION, sees_folder)
    if not sees_folder:
        line.send(msgspec.json.encode(greeting) + b"\n")
        line.close()
        context.term()
        return 1
    agent = AgentProcess(Path(order.log))
    greeting.sockets = str(agent.folder)
    line.send(msgspec.json.encode(greeting) + b"\n")
    try:
        reason = _pass_on(line, agent.socket)
    finally:
        agent.socket.close()
        agent.end(_ALONE_SECONDS)
        line.close()
    sys.stderr.write(f"the link of host {order.host} ends: {reason}\n")
    return 0


def _pass_on(line: Line, agent: socket.socket) -> str:
    """Carry bytes both ways until one side is gone; which."""
    starter = sys.stdin.fileno()
    agent.setblocking(False)
    poller = zmq.Poller()
    for pollable in (line.socket, line.monitor, agent.fileno(), starter):
        poller.register(pollable, zmq.POLLIN)
    unsent = bytearray()
    while True:
        poller.poll(10 if unsent else _WAIT_MILLISECONDS)
        unsent += line.recv()
        if line.lost is not None:
            return f"its controller is gone, {line.lost}"
        if unsent:
            try:
                del unsent[: agent.send(unsent)]
            except BlockingIOError:
                pass
            except OSError:
                return "its node agent is gone"
        try:
            while data := agent.recv(CHUNK_BYTES):
                line.send(data)
            return "its node agent has ended"
        except BlockingIOError:
            pass
        except OSError:
            return "its node agent is gone"
        if dict(poller.poll(0)).get(starter) and not os.read(starter, 4096):
            return "who started it is gone"


if __name__ == "__main__":
    sys.exit(main())
