"""Inference on one host: the policy worker reads the actor's row in place.

A request is a 64-byte notice that names a row of the sample arena. The answer is written into a
slab that only the policy worker writes, stamped with (request, incarnation); the actor copies it
into its row if the stamp is the one it waits for, and drops it otherwise. So a policy worker that
was stopped and wakes late can corrupt nothing.
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
from srl.transport.blocks import BlockArena
from srl.transport.sockets import Client, Message, Server

_STAMP = Spec((Field("stamp", (2,), "int64", "env"),))


@dataclass(frozen=True)
class ReplyLayout:
    """Where the answers of one policy worker lie: one area for each (client, group)."""

    outputs: Spec
    """What a policy answers, states included."""
    num_clients: int
    num_groups: int
    num_lanes: int

    @property
    def area(self) -> Layout:
        """Layout of one area: the outputs of one row, the next states, and the stamp."""
        answers = Spec(tuple(Field(f.name, f.shape, f.dtype) for f in self.outputs))
        return Layout(_STAMP + answers, rows=1, lanes=self.num_lanes, envs=1)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole slab."""
        return self.num_clients * self.num_groups * self.area.nbytes

    def block(self, slab: np.ndarray, client: int, group: int) -> Block:
        """One area of a slab."""
        area = self.area
        start = (client * self.num_groups + group) * area.nbytes
        return Block(area, slab[start : start + area.nbytes])

    def holds(self, client: int, group: int) -> bool:
        """Whether there is such an area."""
        return 0 <= client < self.num_clients and 0 <= group < self.num_groups


class ShmInferenceClient(RequestClient):
    """An actor's end.

    reads: the answer slabs of the policy workers
    writes: outputs and version into its own rows
    waits for: any policy worker
    unblocked by: REPLY messages; a request unanswered for `resend_seconds` goes to another worker
    """

    def __init__(
        self,
        replies: ReplyLayout,
        slabs: Sequence[np.ndarray],
        addresses: Sequence[str],
        *,
        index: int,
        context: "zmq.Context[Any]",
        **options: Any,
    ) -> None:
        """Ask the policy workers at `addresses`; `options` are those of every client."""
        groups = range(replies.num_groups)
        self._areas = [[replies.block(slab, index, g) for g in groups] for slab in slabs]
        self._answer = Block.allocate(replies.area).row(replies.outputs.names, 0)
        clients = [Client(context, address) for address in addresses]
        super().__init__(replies.outputs, clients, index=index, **options)

    def _read(self, worker: int, message: Message, pending: Pending) -> Mapping[str, Any] | None:
        area = self._areas[worker][message.header.c]
        stamp = area["stamp"][0, 0]
        expected = (pending.sequence, self._incarnation)
        if tuple(stamp) != expected:
            return None
        write_arrays(self._answer, area.row(self._outputs.names, 0))
        if tuple(stamp) != expected:  # a late writer came in between: the state is not touched
            return None
        return self._answer


class ShmInferenceServer(RequestServer):
    """A policy worker's end: reads rows in place, writes only its own slab.

    reads: rows of the sample arena
    writes: its answer slab
    waits for: requests
    unblocked by: actors that wrote an observation
    """

    def __init__(
        self,
        rows: Mapping[int, tuple[BlockArena, int]],
        replies: ReplyLayout,
        slab: np.ndarray,
        address: str,
        *,
        inputs: tuple[str, ...],
        digest: bytes,
        incarnation: int,
        context: "zmq.Context[Any]",
    ) -> None:
        """Be found at `address` by the actors of `rows`: each has an arena, and a place in it."""
        self._rows = rows
        self._num_slots = next(iter(rows.values()))[0].table.num_slots
        self._replies = replies
        self._slab = slab
        self._shown = inputs
        self._areas: dict[tuple[int, int], Block] = {}
        server = Server(context, address)
        super().__init__(replies.outputs, server, digest=digest, incarnation=incarnation)

    def _write(
        self, request: Request, incarnation: int, outputs: Mapping[str, np.ndarray]
    ) -> Sequence[Any]:
        key = request.client, request.group
        area = self._areas.get(key)
        if area is None:
            area = self._areas[key] = self._replies.block(self._slab, *key)
        stamp = area["stamp"][0, 0]
        stamp[0] = 0  # an answer that is being written has no stamp
        write_arrays(area.row(tuple(outputs), 0), outputs)
        stamp[1] = incarnation
        stamp[0] = request.sequence
        return ()

    def _is_sound(self, message: Message) -> bool:
        header = message.header
        client, slot = divmod(header.a, self._num_slots)
        if client != header.sender or client not in self._rows:
            return False
        blocks, place = self._rows[client]
        return (
            blocks.holds(place, slot)
            and self._replies.holds(header.sender, header.c)
            and 0 <= header.b < blocks.layout.rows
        )

    def _inputs(self, message: Message) -> "Mapping[str, np.ndarray | Stack]":
        client, slot = divmod(message.header.a, self._num_slots)
        blocks, place = self._rows[client]
        return blocks.block(place, slot).shown(self._shown, message.header.b)
