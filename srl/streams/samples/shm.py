"""Sample stream on one host: blocks stay where the actor wrote them, only notices travel.

Notices are ZeroMQ over `ipc`.
"""

from typing import Any

import zmq

from srl.streams.samples.ends import Consumer, Producer
from srl.transport.blocks import BlockArena
from srl.transport.sockets import Client, Server


class ShmProducer(Producer):
    """An actor's end, on the consumer's host."""

    def __init__(
        self,
        blocks: BlockArena,
        address: str,
        *,
        index: int,
        incarnation: int,
        context: "zmq.Context[Any]",
    ) -> None:
        """Send to the consumer at `address`."""
        client = Client(context, address)
        super().__init__(blocks, client, index=index, place=index, incarnation=incarnation)


class ShmConsumer(Consumer):
    """A trainer's end, for producers of its own host."""

    def __init__(
        self,
        blocks: BlockArena,
        address: str,
        *,
        consumer: int = 0,
        context: "zmq.Context[Any]",
    ) -> None:
        """Be found at `address`."""
        super().__init__(blocks, [Server(context, address)], consumer=consumer)
