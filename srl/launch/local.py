"""The local launcher: one node agent on this host, every worker in a process of its own."""

import signal
from collections.abc import Sequence
from pathlib import Path

import zmq

from srl.launch.agents import Agents, contract
from srl.launch.graph.hosts import listeners
from srl.launch.graph.plan import Plan
from srl.launch.host.agent import AgentProcess
from srl.learning.checkpoint import Checkpoint
from srl.transport.control import (
    Backup,
    Channel,
    Enlist,
    Examine,
    Failure,
    Message,
    Restart,
    Retire,
    Save,
    Stop,
)
from srl.transport.keys import make_keys

_LOOPBACK = "127.0.0.1"


class LocalLauncher:
    """Talks to the node agent; the workers are the agent's."""

    def __init__(self, plan: Plan, folder: Path, held: Sequence[int] = ()) -> None:
        """With descriptors that the agent is to hold, too: as long as it lives, the folder is taken."""
        self.writers = frozenset(plan.writers())
        self._plan = plan
        self._folder = folder
        self._log = folder / "logs" / "node-agent.log"
        self._agent = AgentProcess(self._log, held)
        self._channel = Channel(self._agent.socket)
        self._agents = Agents(plan, {0: self._channel})

    def start(self, checkpoint: Checkpoint | None) -> None:
        """Have the agent start every worker."""
        keys = make_keys() if listeners(self._plan) else None
        places = {0: (str(self._agent.folder), _LOOPBACK)}
        self._agents.start(checkpoint, folder=self._folder, keys=keys, places=places)

    def poll(self, timeout_seconds: float) -> Sequence[Message]:
        """What workers and agent have said; waits for it at most this long."""
        poller = zmq.Poller()
        if not self._channel.closed:
            poller.register(self._channel.fileno(), zmq.POLLIN)
            poller.poll(int(timeout_seconds * 1000))
        messages = self._agents.hear()
        if self._agents.lost():
            log = self._log.read_text(errors="replace")[-4000:]
            words = f"the node agent {_end_in_words(self._agent.wait(10))}"
            messages += [Failure("node-agent", words, log)]
            messages += self._agents.give_up(0)
        return messages

    def save(self, order: Save) -> None:
        """Have every trainer write its part between two batches."""
        self._agents.tell(order)

    def tell(self, order: Restart | Retire | Enlist | Backup | Examine) -> None:
        """Pass an order on to the agent."""
        self._agents.tell(order)

    def stop(self, order: Save | None) -> None:
        """Stop in order, with a last checkpoint; `Stopped` follows by `poll`."""
        self._agents.stop(order)

    def close(self) -> None:
        """End the agent (and so the workers) if it still runs; remove its sockets."""
        self._channel.send(Stop())  # it is not lost, and wants no checkpoint
        self._channel.close()
        self._agent.end(5)

    def contract(self) -> tuple[list[str], list[str]]:
        """What a checkpoint of this launcher brings back, and what it does not."""
        return contract(self._plan)


def _end_in_words(code: int | None) -> str:
    """What became of an agent whose channel is closed."""
    if code is None:  # it did not read what it was sent
        return "has not answered any more: it hangs, or its host does"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
