"""The local launcher: one node agent on this host, every worker in a process of its own."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import zmq

from srl.launch.graph.plan import Plan
from srl.launch.host.process import thread_environment
from srl.launch.host.socket_folder import make_socket_folder
from srl.learning.checkpoint import Checkpoint
from srl.transport.control import (
    Backup,
    Examine,
    Failure,
    Message,
    Restart,
    Retire,
    Save,
    StartNode,
    Stop,
    Stopped,
    channel_pair,
)


class LocalLauncher:
    """Talks to the node agent; the workers are the agent's."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.writers = frozenset(plan.writers())
        self._plan = plan
        self._folder = folder
        self._channel, theirs = channel_pair()
        with (folder / "logs" / "node-agent.log").open("ab") as file:
            self._sockets = make_socket_folder()
            program = [sys.executable, "-P", "-m", "srl.launch.node_agent"]
            try:
                self._agent = subprocess.Popen(
                    [*program, str(theirs.fileno()), str(self._sockets)],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    env=thread_environment(1) | {"PYTHONUNBUFFERED": "1"},
                    start_new_session=True,  # Ctrl-C in the terminal reaches the controller alone
                )
            except OSError:
                shutil.rmtree(self._sockets, ignore_errors=True)
                raise
        theirs.close()
        self._ended = False

    def start(self, checkpoint: Checkpoint | None) -> None:
        """Have the agent start every worker."""
        self._channel.send(
            StartNode(
                plan=msgspec.json.encode(self._plan),
                arenas=self._plan.arenas(),
                workers=[worker.name for worker in self._plan.workers],
                log_folder=str(self._folder / "logs"),
                socket_folder=str(self._sockets),
                python_path=[path or os.getcwd() for path in sys.path],
                state=None if checkpoint is None else str(checkpoint.path),
            )
        )

    def poll(self, timeout_seconds: float) -> Sequence[Message]:
        """What workers and agent have said; waits for it at most this long."""
        poller = zmq.Poller()
        if not self._channel.closed:
            poller.register(self._channel.fileno(), zmq.POLLIN)
            poller.poll(int(timeout_seconds * 1000))
        messages = self._channel.recv_all()
        self._ended |= any(isinstance(message, Stopped) for message in messages)
        if self._channel.closed and not self._ended:
            self._ended = True
            log = (self._folder / "logs" / "node-agent.log").read_text(errors="replace")[-4000:]
            code = self._agent.wait(timeout=10)
            end = (
                f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
            )
            messages += [Failure("node-agent", f"the node agent {end}", log), Stopped({})]
        return messages

    def save(self, order: Save) -> None:
        """Have every trainer write its part between two batches."""
        self._channel.send(order)

    def tell(self, order: Restart | Retire | Backup | Examine) -> None:
        """Pass an order on to the agent."""
        self._channel.send(order)

    def stop(self, order: Save | None) -> None:
        """Stop in order, with a last checkpoint; `Stopped` follows by `poll`."""
        self._channel.send(Stop(order))

    def close(self) -> None:
        """End the agent (and so the workers) if it still runs; remove its sockets."""
        self._channel.send(Stop())  # it is not lost, and wants no checkpoint
        self._channel.close()
        try:
            self._agent.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._agent.kill()
            self._agent.wait(timeout=5)
        shutil.rmtree(self._sockets, ignore_errors=True)

    def contract(self) -> tuple[list[str], list[str]]:
        """What a checkpoint of this launcher brings back, and what it does not."""
        parallel = self._plan.num_ranks > 1
        whose = "the first trainer of every policy" if parallel else "every trainer"
        anew = "actors, policies and other trainers" if parallel else "actors and policies"
        return [f"weights, optimiser, schedules, counters and random state of {whose}"], [
            "envs: episodes under way are not restored; actors begin new ones",
            f"blocks in flight, and the random state of {anew}",
            *self._plan.unfinished_evaluation(),
        ]
