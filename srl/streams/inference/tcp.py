"""Inference between hosts: a request brings its row along, and an answer its outputs.

Each is one message, laid out by a Spec that both sides know. What is shown of a stack is sent as it is
shown, so a policy worker needs to remember nothing of an actor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zmq

from srl.core.arrays import write_arrays
from srl.core.block import Block, Layout, Stack
from srl.core.spec import Field, Spec
from srl.core.streams import Request
from srl.streams.inference.ends import Pending, RequestClient, RequestServer
from srl.transport.keys import Keys
from srl.transport.sockets import Client, Message, Server, join, join_into, part_sizes


@dataclass(frozen=True)
class FrameLayouts:
    """What the frames of requests and answers hold."""

    request: Layout
    answer: Layout
    outputs: Spec
    """What a policy answers, states included."""
    num_clients: int
    num_groups: int

    @classmethod
    def make(
        cls,
        block: Layout,
        inputs: Sequence[str],
        outputs: Spec,
        *,
        num_clients: int,
        num_groups: int,
    ) -> "FrameLayouts":
        """Those of a route whose blocks are laid out by `block`."""
        shown = [field for field in block.spec if field.name in inputs]
        fields = [
            Field(f.name, ((f.stack, *f.shape) if f.stack > 1 else f.shape), f.dtype) for f in shown
        ]
        answers = [Field(f.name, f.shape, f.dtype) for f in outputs]
        return cls(
            request=Layout(Spec(tuple(fields)), rows=1, lanes=block.lanes, envs=1),
            answer=Layout(Spec(tuple(answers)), rows=1, lanes=block.lanes, envs=1),
            outputs=outputs,
            num_clients=num_clients,
            num_groups=num_groups,
        )

    def holds(self, client: int, group: int) -> bool:
        """Whether there is such a group."""
        return 0 <= client < self.num_clients and 0 <= group < self.num_groups


class TcpInferenceClient(RequestClient):
    """An actor's end, for policy workers of any host.

    reads: its own rows
    writes: outputs and version into them
    waits for: any policy worker
    unblocked by: REPLY messages; a request unanswered for `resend_seconds` goes to another worker
    """

    def __init__(
        self,
        layouts: FrameLayouts,
        addresses: Sequence[str],
        *,
        keys: Keys,
        context: "zmq.Context[Any]",
        **options: Any,
    ) -> None:
        """Ask the policy workers at `addresses`; `options` are those of every client."""
        self._layouts = layouts
        self._requests = [Block.allocate(layouts.request) for _ in range(layouts.num_groups)]
        self._answer_sizes = part_sizes(layouts.answer.nbytes)
        clients = [Client(context, address, keys=keys) for address in addresses]
        super().__init__(layouts.outputs, clients, **options)

    def _prepare(self, group: int) -> None:
        """Copy the row: what is on its way to a worker that was asked before may be overwritten.

        Such a request is answered by nobody, or too late.
        """
        pending, names = self._pending[group], self._layouts.request.spec.names
        target = self._requests[group].row(names, 0)
        for name, array in pending.grant.block.shown(names, pending.row).items():
            if isinstance(array, Stack):
                array.write(target[name])
            else:
                np.copyto(target[name], array)

    def _frames(self, group: int) -> Sequence[Any]:
        return (self._requests[group].buffer.data,)

    def _read(self, worker: int, message: Message, pending: Pending) -> Mapping[str, Any] | None:
        answer = self._layouts.answer
        if [len(frame) for frame in message.frames] != self._answer_sizes:
            self._clients[worker].rejected += 1
            return None
        frame = np.frombuffer(join(message.frames), np.uint8)
        return Block(answer, frame).row(self._outputs.names, 0)


class TcpInferenceServer(RequestServer):
    """A policy worker's end, for actors of other hosts.

    waits for: requests
    unblocked by: actors that wrote an observation
    """

    def __init__(
        self,
        layouts: FrameLayouts,
        server: Server,
        *,
        digest: bytes,
        incarnation: int,
    ) -> None:
        """Answer what comes to `server`."""
        self._layouts = layouts
        self._request_sizes = part_sizes(layouts.request.nbytes)
        self._rows: dict[tuple[int, int], Block] = {}
        self._peers: dict[int, tuple[int, bytes]] = {}
        """Client to its life, and the connection that its last hello came by."""
        super().__init__(layouts.outputs, server, digest=digest, incarnation=incarnation)

    def _is_sound(self, message: Message) -> bool:
        sizes = [len(frame) for frame in message.frames]
        sender, group = message.header.sender, message.header.c
        is_known = self._layouts.holds(sender, group) and sender in self._peers
        return is_known and self._peers[sender][1] == message.peer and sizes == self._request_sizes

    def _on_hello(self, message: Message) -> None:
        header = message.header
        life, _ = self._peers.get(header.sender, (0, b""))
        if not self._layouts.holds(header.sender, 0) or header.incarnation < life:
            self._server.rejected += 1
            return
        if header.digest == self._digest:
            self._peers[header.sender] = header.incarnation, message.peer
        super()._on_hello(message)

    def _inputs(self, message: Message) -> "Mapping[str, np.ndarray | Stack]":
        key = message.header.sender, message.header.c
        block = self._rows.get(key)
        if block is None:
            block = self._rows[key] = Block.allocate(self._layouts.request)
        join_into(block.buffer.data, message.frames)
        return block.row(self._layouts.request.spec.names, 0)

    def _write(
        self, request: Request, incarnation: int, outputs: Mapping[str, np.ndarray]
    ) -> Sequence[Any]:
        answer = Block.allocate(self._layouts.answer)
        write_arrays(answer.row(tuple(outputs), 0), outputs)
        return (answer.buffer.tobytes(),)
