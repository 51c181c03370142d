"""TCP sockets that listen, made before who answers on them lives and kept when it dies.

So a worker has the same address in all its lives, and who connects between two of them waits.
"""

import errno
import socket

from srl.core.errors import ConfigError

_BACKLOG = 4096


def listen(host: str, port: int = 0) -> socket.socket:
    """A socket that listens at an address of this host; raises ConfigError where it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | getattr(socket, "SOCK_CLOEXEC", 0))
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        where = f"{host}:{port}" if port else host
        hints = {
            errno.EADDRINUSE: "another process listens there: choose another port",
            errno.EADDRNOTAVAIL: "this host has no such address",
        }
        hint = hints.get(error.errno or 0, error.strerror)
        raise ConfigError(f"cannot listen at {where}: {hint}") from error
    listener.setblocking(False)
    return listener


def address_of(listener: socket.socket) -> str:
    """Where it is found, as ZeroMQ writes it."""
    host, port, *_ = listener.getsockname()
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
