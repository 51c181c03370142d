"""Keys of a run: who does not have them can neither read nor send what goes over a network.

A run has one CURVE key pair. Servers prove to be of the run by it, and so do clients: a doorkeeper in
every process that serves lets nobody else in, and counts who was refused. Keys travel from process to
process over channels that only these can read, and are in no command line, environment, log or file
that others may read.
"""

import queue
import threading
from typing import Any

import msgspec
import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

_DOOR = "inproc://zeromq.zap.01"
"""Where ZeroMQ asks, by RFC 27."""
_VERSION = b"1.0"
_CAME, _LET_IN = int(zmq.EVENT_ACCEPTED), int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_ENDED, _UNWATCHED = int(zmq.EVENT_DISCONNECTED), int(zmq.EVENT_MONITOR_STOPPED)


class Keys(msgspec.Struct, frozen=True):
    """A key pair, as text."""

    public: str
    secret: str

    def __repr__(self) -> str:
        return "Keys(...)"  # errors and logs show it


def make_keys() -> Keys:
    """The keys of a new run."""
    public, secret = zmq.curve_keypair()
    return Keys(public.decode(), secret.decode())


def use_keys(socket: "zmq.Socket[Any]", keys: Keys, *, serves: bool) -> None:
    """Let a socket, before it is bound or connected, talk to those who have the keys and nobody else.

    Who has them is for a `Doorkeeper` to say: without one, a server lets nobody in.
    """
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode())
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
    if serves:
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.ZAP_DOMAIN, b"srl")
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # nobody comes in where nobody keeps the door
    else:
        socket.setsockopt(zmq.CURVE_SERVERKEY, keys.public.encode())


class Doorkeeper:
    """Answers ZeroMQ, for all servers of a context, who may come in: those with the run's keys.

    waits for: handshakes
    unblocked by: peers that connect; the end of the context
    """

    def __init__(self, context: "zmq.Context[Any]", keys: Keys) -> None:
        """Begin; there can be one in a context."""
        self._keys = keys
        self._seen = {_CAME: 0, _LET_IN: 0, _ENDED: 0, _UNWATCHED: 0}
        self._key = z85.decode(keys.public.encode())
        self._door = context.socket(zmq.REP)
        self._door.setsockopt(zmq.LINGER, 0)
        self._door.bind(_DOOR)
        self._ask, self._told = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        for end in (self._ask, self._told):
            end.setsockopt(zmq.LINGER, 0)
        address = f"inproc://srl-doorkeeper-{id(self)}"
        self._told.bind(address)
        self._ask.connect(address)
        self._servers: list[zmq.Socket[Any]] = []
        self._monitors: queue.SimpleQueue[zmq.Socket[Any]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="doorkeeper", daemon=True)
        self._thread.start()

    @property
    def refused(self) -> int:
        """Connections to guarded servers that did not prove to be of this run, or have not yet.

        ZeroMQ asks only about those that know the run's public key, so the others are counted by what is
        missing.
        """
        return self._seen[_CAME] - self._seen[_LET_IN]

    @property
    def ended(self) -> int:
        """Connections that were let in and have ended: by their peer, a cut, or a frame too large."""
        return self._seen[_ENDED] - self.refused

    def counters(self) -> dict[str, int]:
        """Who was not let in, and who has left, by their names in reports."""
        return {"connections_refused": self.refused, "connections_ended": self.ended}

    def guard(self, server: "zmq.Socket[Any]") -> None:
        """Have a server, before it is bound, talk to those who have the keys, and count who comes to it."""
        use_keys(server, self._keys, serves=True)
        self._servers.append(server)
        # under a name of its own: pyzmq's is made of the socket's descriptor, which an earlier one may have had
        name = f"inproc://srl-monitor-{id(self)}-{len(self._servers)}"
        self._monitors.put(server.get_monitor_socket(sum(self._seen), name))
        self._ask.send(b"watch")

    def close(self) -> None:
        """Nobody new comes in any more; may be called twice."""
        if self._ask.closed:
            return
        for server in self._servers:
            if not server.closed:  # an event that nobody takes would block its thread
                server.disable_monitor()
        self._ask.send(b"")
        self._thread.join(timeout=5)
        self._ask.close()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._door, zmq.POLLIN)
        poller.register(self._told, zmq.POLLIN)
        watched: set[zmq.Socket[Any]] = set()
        try:
            while True:
                for end, _ in poller.poll():
                    if end is self._door:
                        self._answer(self._door.recv_multipart())
                    elif end is not self._told:
                        self._note(end, watched, poller)
                    elif self._told.recv():
                        watched.add(monitor := self._monitors.get())
                        poller.register(monitor, zmq.POLLIN)
                    else:
                        return
        except zmq.ContextTerminated:
            pass
        finally:
            for end in (self._door, self._told, *watched):
                end.close(linger=0)

    def _note(
        self, monitor: "zmq.Socket[Any]", watched: "set[zmq.Socket[Any]]", poller: zmq.Poller
    ) -> None:
        event = int(recv_monitor_message(monitor)["event"])
        self._seen[event] += 1
        if event == _UNWATCHED:
            poller.unregister(monitor)
            watched.remove(monitor)
            monitor.close()

    def _answer(self, question: list[bytes]) -> None:
        request, mechanism, credentials = question[1], question[5], question[6:]
        knows = mechanism == b"CURVE" and credentials == [self._key]
        verdict = (b"200", b"OK") if knows else (b"400", b"not of this run")
        self._door.send_multipart([_VERSION, request, *verdict, b"", b""])
