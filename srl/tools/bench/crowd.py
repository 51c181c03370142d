"""Many hosts in one process, for the scale bench: what the rest of the system sees of them is real.

    python -m srl.tools.bench.crowd SECONDS_A_BLOCK < ORDERS

Each order (as a link gets it) is a host. It has a line to the controller, a sink that brings each version into
shared memory of its own, and light clients in place of actors: each with its own connection to its trainer,
slots, account and credit, and a subscriber to its host's parameters. They replay rows instead of stepping envs,
and report to their host as actors do. Some also ask a policy worker before every block.
"""

import json
import os
import random
import signal
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zmq

from srl.core.block import Block
from srl.core.collective import Alone
from srl.core.streams import Grant, InferenceClient
from srl.core.version import VERSION
from srl.launch.graph.connect import ProcessConnector
from srl.launch.graph.hosts import parameters_end, receiver_of
from srl.launch.graph.plan import Plan
from srl.launch.host.gathering import Gathering
from srl.launch.host.limits import raise_descriptors
from srl.launch.link import Greeting, LinkOrder, python_version
from srl.streams.parameters.shm import ShmPublisher, ShmSubscriber, parameter_arena_bytes
from srl.streams.parameters.tcp import ParameterSink
from srl.streams.samples.tcp import TcpProducer
from srl.tools.bench.replay import STAMP
from srl.transport.arena import Arena
from srl.transport.blocks import BlockArena, block_arena_bytes
from srl.transport.control import (
    Accounts,
    Begin,
    Examine,
    Examined,
    Framing,
    Message,
    Network,
    Prepared,
    Ready,
    Report,
    StartNode,
    Stop,
    Stopped,
)
from srl.transport.line import Line
from srl.transport.slots import Ledger
from srl.transport.sockets import Client
from srl.transport.sockets import Message as StreamMessage
from srl.workers.run import die_with_parent

ASKS = 10
"""Every so many-th client asks a policy worker."""
_TURN_SECONDS = 0.02
_ROUND_TURNS = 50
"""Turns in which every client is stepped once, and every host five times even where nothing came."""
_JOIN_AT_ONCE = 50
"""Clients that may be on their way to register: thousands of handshakes in one moment are for more cores."""
_BEAT_SECONDS = 2.0
_DRAIN_SECONDS = 20.0


class _Producer(TcpProducer):
    """Knows how many of its blocks have arrived."""

    received = 0

    def _heed(self, message: StreamMessage) -> bool:
        if not super()._heed(message):
            return False
        account = np.frombuffer(b"".join(message.frames), np.int64)
        self.received = int(account[: self._blocks.table.num_slots].sum())
        return True


class LightClient:
    """An actor without an env."""

    def __init__(self, host: "LightHost", index: int) -> None:
        route, plan = host.route, host.plan
        layout = host.crowd.layout
        self.name = f"actor-{index}"
        self._host, self._index = host, index
        arena = Arena.heap(block_arena_bytes(layout, 1, route.slots))
        self.blocks = BlockArena(arena.buffer, layout, 1, route.slots)
        self.producer = _Producer(
            self.blocks,
            host.addresses[receiver_of(plan, route, index)],
            index=index,
            incarnation=1,
            keys=host.order.keys,
            context=host.crowd.context,
        )
        self.inference: InferenceClient | None = None
        if index % ASKS == 0 and plan.inference != "inline":
            self.inference = host.connector.client(route, index)
        self.parameters = ShmSubscriber(host.arena.buffer, host.crowd.weights)
        self.is_registered = False
        self.blocks_sent = 0
        self.answers = 0
        self._grant: Grant | None = None
        self._is_asking = False
        self._send_at = self._beat_at = 0.0

    def step(self, now: float) -> None:
        """Take in what came; send a block if it is time to, and allowed."""
        self.producer.poll()
        if self.inference is not None and self.inference.poll():
            self._is_asking = False
            self.answers += 1
            self._send()
        if self._grant is None and not self._host.is_stopping:
            self._grant = self.producer.acquire()
            if self._grant is not None and not self.is_registered:
                self._register(now)
        if self.is_registered and now >= self._beat_at:
            self._beat_at += _BEAT_SECONDS
            self._host.beat(self, self._report())
        if self._grant is None or self._is_asking or self._host.crowd.is_joining:
            return
        if not self._send_at:  # all begin together, each at a moment of its own
            self._send_at = now + random.random() * self._host.crowd.seconds_a_block
        if now < self._send_at:
            return
        version = self.parameters.latest()
        if self._host.is_stopping or version < self._grant.min_version:
            return
        self._send_at = max(self._send_at + self._host.crowd.seconds_a_block, now)
        block = self._grant.block
        np.copyto(block.buffer, self._host.crowd.rows)
        block["lane"].fill(self._index)
        block["version"].fill(version)
        if self.inference is None:
            self._send()
        else:
            self._is_asking = True
            self.inference.post(0, self._grant, 0)

    def _register(self, now: float) -> None:
        """It has leave to send: it is there."""
        self.is_registered = True
        self._host.crowd.registered += 1
        self._beat_at = now + random.random() * _BEAT_SECONDS
        self._host.say(Ready(self.name, os.getpid(), 0.0, 0.0, has_torch=False))

    def close(self) -> None:
        """Leave the streams."""
        self.producer.close()
        if self.inference is not None:
            self.inference.close()

    def _send(self) -> None:
        assert self._grant is not None
        self.producer.send(self._grant)
        self._grant = None
        self.blocks_sent += 1

    def _report(self) -> Report:
        rows = self.blocks_sent * (self._host.crowd.layout.rows - 1)
        return Report(
            self.name,
            counters={"env_steps": rows, "agent_steps": rows},
            seconds={"env": 0.0, "send": 0.0, "wait_for_credit": 0.0},
            waits_in="wait_for_credit" if self._grant is None else "",
        )


class LightHost:
    """A link and a node agent of light clients."""

    def __init__(self, crowd: "Crowd", order: LinkOrder) -> None:
        self.crowd, self.order = crowd, order
        self.line = Line(
            crowd.context, order.controller, order.keys, host=order.host, life=order.life
        )
        self.line.send(
            msgspec.json.encode(Greeting("", python_version(), VERSION, sees_folder=True)) + b"\n"
        )
        self.clients: list[LightClient] = []
        self.is_stopping = False
        self.is_over = False
        self.sink: ParameterSink | None = None
        self.beats = 0
        self._framing = Framing()
        self._names: list[str] = []
        self._stop_by = 0.0
        self._accounts_at = 0.0
        self._seen: dict[int, tuple[int, float, float]] = {}
        """Version to how many clients have it, how long that took, and when it was."""

    def say(self, *messages: Message) -> None:
        """To the controller."""
        for message in messages:
            self.line.send(self._framing.bytes_of(message))

    def beat(self, client: LightClient, report: Report) -> None:
        """A client reports."""
        self.beats += 1
        self.say(*self.gathering.take(client.name, "actor", report))

    def step(self, now: float) -> None:
        """Hear the controller and the source, tell both what is new."""
        if data := self.line.recv():
            self._framing.feed(data)
            for message in self._framing.parse():
                self._on_message(message)
        self.is_over |= self.line.lost is not None
        if self.sink is None:
            return
        if self.sink.step():
            self._look()
        if now >= self._accounts_at and self.clients:
            self._accounts_at = now + 1.0
            self.say(Accounts(self._ledgers(), dict.fromkeys(self._names, 30.0)))
        self.say(*self.gathering.due())
        if self.is_stopping and not self.is_over:
            is_drained = all(c.producer.received == c.blocks_sent for c in self.clients)
            if is_drained or now >= self._stop_by:
                self._finish()

    def close(self) -> None:
        """End the line and everybody's streams."""
        for client in self.clients:
            client.close()
        if self.sink is not None:
            self.sink.close()
        self.line.close()

    def _on_message(self, message: Message) -> None:
        if isinstance(message, StartNode):
            self.plan = self.crowd.plan_of(message)
            self.route = self.plan.learning[0]
            self._names = list(message.workers)
            self.gathering = Gathering(self.plan.experiment["actors"]["count"])
            self.say(Prepared({}))
        elif isinstance(message, Begin) and self.sink is None:
            self._begin(message.addresses)
        elif isinstance(message, Examine):
            self.say(Examined({}, {}, []))
        elif isinstance(message, Stop) and not self.is_stopping:
            self.is_stopping = True
            self._stop_by = time.monotonic() + _DRAIN_SECONDS

    def _begin(self, addresses: dict[str, str]) -> None:
        self.addresses, spec = addresses, self.crowd.weights
        network = Network(self.order.keys, addresses)
        self.connector = ProcessConnector(
            self.plan,
            {},
            "",
            1,
            Alone(),
            host=self.order.host,
            network=network,
            context=self.crowd.context,
        )
        self.arena = Arena.create("parameters", parameter_arena_bytes(spec))
        source = addresses[parameters_end(self.route)]
        client = Client(self.crowd.context, source, keys=self.order.keys)
        self.sink = ParameterSink(ShmPublisher(self.arena.buffer, spec), spec, client)
        self.crowd.watch(self, *self.sink.pollables())
        self._parameters = ShmSubscriber(self.arena.buffer, spec)
        self.crowd.joining.extend((self, int(name.rpartition("-")[2])) for name in self._names)

    def _look(self) -> None:
        """Have every client see the version that is here, and one of them copy it."""
        assert self.sink is not None
        version = self.sink.version
        if version < 0 or version in self._seen:
            return
        _, weights = self._parameters.fetch()
        count = sum(client.parameters.latest() == version for client in self.clients)
        now = time.monotonic()
        self._seen[version] = count, now - float(weights[STAMP][0]), now

    def _ledgers(self) -> dict[str, dict[str, int]]:
        sent = sum(client.blocks_sent for client in self.clients)
        return {self.route.policy: msgspec.to_builtins(Ledger().with_sent(sent))}

    def _finish(self) -> None:
        """Leave what was seen in the run folder, and tell the controller."""
        sent = sum(client.blocks_sent for client in self.clients)
        found = {
            "clients": len(self.clients),
            "beats": self.beats,
            "sent": sent,
            "received": sum(client.producer.received for client in self.clients),
            "resent": sum(client.producer.resent for client in self.clients),
            "answers": sum(client.answers for client in self.clients),
            "seen": self._seen,
        }
        path = Path(self.order.folder) / "logs" / f"scale-{self.order.host}.json"
        path.write_text(json.dumps(found))
        self.say(*self.gathering.rest(), Stopped(self._ledgers()))
        self.is_over = True


class Crowd:
    """All hosts of this process, stepped in turn."""

    def __init__(self, seconds_a_block: float) -> None:
        self.seconds_a_block = seconds_a_block
        self.context: zmq.Context[Any] = zmq.Context()
        most = int(self.context.get(zmq.SOCKET_LIMIT))
        self.context.set(zmq.MAX_SOCKETS, min(most, 60_000))
        self.hosts: list[LightHost] = []
        self.clients: list[LightClient] = []
        self.registered = 0
        self.joining: deque[tuple[LightHost, int]] = deque()
        self._poller = zmq.Poller()
        self._woken: dict[Any, LightHost] = {}
        """Socket to the host that is stepped when something comes to it."""
        self._plan: tuple[bytes, Plan] | None = None
        self._place = self._host_place = 0

    @property
    def is_joining(self) -> bool:
        """Whether clients are still to come: versions before that would be of a part of them."""
        return bool(self.joining) or self.registered < len(self.clients)

    def plan_of(self, start: StartNode) -> Plan:
        """The plan, decoded once; what all clients share is made of it."""
        if self._plan is None or self._plan[0] != start.plan:
            plan = msgspec.json.decode(start.plan, type=Plan)
            self._plan = start.plan, plan
            route = plan.learning[0]
            self.layout, self.weights = route.layout(), route.weights_spec()
            block = Block.allocate(self.layout)
            block["valid"].fill(True)
            block["acting"].fill(True)
            self.rows = block.buffer
        return self._plan[1]

    def watch(self, host: LightHost, *sockets: Any) -> None:
        """Wake a host up for what comes to its sockets."""
        for socket in sockets:
            self._poller.register(socket, zmq.POLLIN)
            self._woken[socket] = host

    def run(self) -> None:
        """Until the input is closed, or all hosts are over."""
        orders, unread = sys.stdin.fileno(), b""
        os.set_blocking(orders, False)
        self._poller.register(orders, zmq.POLLIN)
        turn_at = 0.0
        while not self.hosts or not all(host.is_over for host in self.hosts):
            ready = dict(self._poller.poll(int(max(0.0, turn_at - time.monotonic()) * 1000)))
            if orders in ready:
                data = os.read(orders, 1 << 20)
                if not data:
                    break
                *lines, unread = (unread + data).split(b"\n")
                for line in lines:
                    self._add(msgspec.json.decode(line, type=LinkOrder))
            now = time.monotonic()
            for socket in ready:
                if (host := self._woken.get(socket)) is not None and not host.is_over:
                    host.step(now)
            if now >= turn_at:
                turn_at = now + _TURN_SECONDS
                self._turn(now)
        for host in self.hosts:
            host.close()
        self.context.destroy(linger=2000)

    def _add(self, order: LinkOrder) -> None:
        host = LightHost(self, order)
        self.hosts.append(host)
        self.watch(host, host.line.socket)

    def _turn(self, now: float) -> None:
        while self.joining and len(self.clients) - self.registered < _JOIN_AT_ONCE:
            host, index = self.joining.popleft()
            client = LightClient(host, index)
            host.clients.append(client)
            self.clients.append(client)
        for _ in range(-(-len(self.hosts) // (_ROUND_TURNS // 5))):
            self._host_place = (self._host_place + 1) % len(self.hosts)
            host = self.hosts[self._host_place]
            if not host.is_over:
                host.step(now)
        for _ in range(-(-len(self.clients) // _ROUND_TURNS)):
            self._place = (self._place + 1) % len(self.clients)
            self.clients[self._place].step(now)
        if self.is_joining:
            for client in self.clients[-2 * _JOIN_AT_ONCE :]:
                if not client.is_registered:
                    client.step(now)


def main() -> int:
    """Entry point of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    raise_descriptors()
    Crowd(float(sys.argv[1])).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
