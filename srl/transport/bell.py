"""Wakes processes of one host that wait for something they see in shared memory."""

from typing import Any

import zmq


class Bell:
    """Rung by one process."""

    def __init__(self, context: "zmq.Context[Any]", address: str) -> None:
        self._socket = context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 2)
        self._socket.bind(address)

    def ring(self) -> None:
        """Wake all who listen; who does not is not waited for."""
        self._socket.send(b"")

    def close(self) -> None:
        """Be silent; may be called twice."""
        self._socket.close()


class Ear:
    """Hears a bell, in whichever of its lives it is; forgets all but the last ring."""

    def __init__(self, context: "zmq.Context[Any]", address: str) -> None:
        self.socket = context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.CONFLATE, 1)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 20)
        self.socket.setsockopt(zmq.SUBSCRIBE, b"")
        self.socket.connect(address)

    def clear(self) -> None:
        """Wait again from now on."""
        if int(self.socket.getsockopt(zmq.EVENTS)) & int(zmq.POLLIN):
            self.socket.recv(zmq.DONTWAIT)

    def close(self) -> None:
        """Hear no more; may be called twice."""
        self.socket.close()
