"""A link between two ends on this host that passes so many bytes a second each way, and can be cut."""

import contextlib
import socket
import time
from threading import Thread

_PIECE = 16 << 10


class SlowLink:
    """Passes on what comes to its `address` to another one, over TCP."""

    def __init__(self, address, *, bytes_per_second):
        self._port = int(address.rpartition(":")[2])
        self._rate = bytes_per_second
        self._listener = _socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self._sockets = []
        self._is_closed = False
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self.back = 0
        """Bytes that went from the server to the client."""
        Thread(target=self._accept, daemon=True).start()

    def cut(self):
        """End every connection; there may be new ones."""
        for end in self._sockets:
            _hang_up(end)

    def close(self):
        self._is_closed = True
        _hang_up(self._listener)
        self._listener.close()
        self.cut()

    def _accept(self):
        with contextlib.suppress(OSError):
            while not self._is_closed:
                client, _ = self._listener.accept()
                server = _socket()
                server.connect(("127.0.0.1", self._port))
                self._sockets += client, server
                self.connections += 1
                Thread(target=self._pass, args=(client, server), daemon=True).start()
                Thread(target=self._pass, args=(server, client, True), daemon=True).start()

    def _pass(self, source, target, is_back=False):
        with contextlib.suppress(OSError), source:
            while data := source.recv(_PIECE):
                time.sleep(len(data) / self._rate)
                target.sendall(data)
                self.back += len(data) if is_back else 0
        _hang_up(target)


def _socket():
    """One that takes no more than it passes on, so that the sender has the rest."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
    return found


def _hang_up(end):
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
