"""One policy worker for actors of its own host and of others, over two substrates at once."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from srl.core.streams import InferenceServer, Request


class JoinedServer:
    """A policy worker's end of both.

    waits for: requests
    unblocked by: actors that wrote an observation
    """

    def __init__(self, near: InferenceServer, far: InferenceServer, actors: frozenset[int]) -> None:
        """Answer `actors` by `near`, and all others by `far`."""
        self._near = near
        self._far = far
        self._actors = actors

    def recv(self) -> list[Request]:
        """Requests that have arrived."""
        return [*self._near.recv(), *self._far.recv()]

    def reply(self, request: Request, outputs: Mapping[str, np.ndarray], version: int) -> None:
        """Answer one request, the way it came."""
        server = self._near if request.client in self._actors else self._far
        server.reply(request, outputs, version)

    def pollables(self) -> Sequence[Any]:
        """The sockets of both."""
        return (*self._near.pollables(), *self._far.pollables())

    def close(self) -> None:
        """Close both."""
        self._near.close()
        self._far.close()
