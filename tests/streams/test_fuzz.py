"""Random and mutated messages, by peers that have the run's keys, change nothing for the others.

They are sent to every end that receives over a network while an honest peer works: what is no message of
that stream is refused and counted, no error comes out, the honest peer's data arrive unharmed, and memory does
not grow. What is not sent: a whole message that only says what its sender may say (a hello in the name of
another, a REFUSED of a server), for who has the keys is believed.
"""

import os
import random
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq

from srl.streams.inference.tcp import TcpInferenceClient
from srl.testing.stream_contract import eventually
from srl.transport.codec import FORMAT, HEADER, Header, Kind, pack, unpack
from srl.transport.control import Framing, Ready, Report, Retire, StartNode
from srl.transport.keys import Doorkeeper, make_keys, use_keys
from srl.transport.line import HostChannel, Line, Switchboard
from srl.transport.listener import address_of, listen
from tests.streams.test_contract import (
    LAYOUT,
    TcpInferenceHarness,
    TcpParameterHarness,
    TcpSampleHarness,
)

DIGEST = LAYOUT.spec.digest()
NUMBERS = (0, 1, 2, 7, -1, -2, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, -(2**63))
BURST = 100
MOST_GROWTH = 8 << 20
COUNTS = [
    pytest.param(600, id="600"),
    pytest.param(20_000, id="20000", marks=pytest.mark.slow),
]
"""Messages to each of the ends; five of them make 100,000."""


class Mutator:
    """Makes messages out of sound ones, by a seed."""

    def __init__(self, seed, sound):
        self._rng = random.Random(seed)
        joined = [[b"".join(parts)] for parts in sound if len(parts) == 2]
        self._sound = [*sound, *joined]  # as small frames are sent, and as they may be

    def message(self):
        rng = self._rng
        if rng.random() < 0.2:
            return [rng.randbytes(rng.choice((0, 1, 63, 64, 65, 200))) for _ in range(self._few())]
        if rng.random() < 0.1:
            rest = rng.randbytes(HEADER.size - 4)
            return [
                b"SRL" + bytes([FORMAT]) + rest,
                *(rng.randbytes(9) for _ in range(self._few())),
            ]
        parts = [bytes(part) for part in rng.choice(self._sound)]
        for _ in range(self._few()):
            parts = rng.choice(
                (self._flip, self._cut, self._lengthen, self._drop, self._add, self._renumber)
            )(parts)
        return parts or [b""]

    def _few(self):
        return self._rng.choice((1, 1, 1, 2, 3))

    def _at(self, parts):
        return self._rng.randrange(len(parts)) if parts else None

    def _changed(self, parts, change):
        at = self._at(parts)
        return parts if at is None else [*parts[:at], change(parts[at]), *parts[at + 1 :]]

    def _flip(self, parts):
        def flip(part):
            data = bytearray(part)
            for _ in range(self._few() if data else 0):
                data[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
            return bytes(data)

        return self._changed(parts, flip)

    def _cut(self, parts):
        return self._changed(parts, lambda part: part[: self._rng.randrange(len(part) + 1)])

    def _lengthen(self, parts):
        return self._changed(parts, lambda part: part + self._rng.randbytes(self._few()))

    def _drop(self, parts):
        at = self._at(parts)
        return parts if at is None else [*parts[:at], *parts[at + 1 :]]

    def _add(self, parts):
        return [*parts, self._rng.randbytes(self._rng.choice((0, 8, 64, 5000)))]

    def _renumber(self, parts):
        header = header_of(parts) if parts else None
        if header is None:
            return parts
        name = self._rng.choice(("sender", "incarnation", "sequence", "a", "b", "c", "d"))
        most = {"sender": 2**32 - 1, "incarnation": 2**32 - 1, "sequence": 2**64 - 1}.get(name)
        number = self._rng.choice(NUMBERS)
        number = number if most is None else number & most
        tail = bytes(parts[0][HEADER.size :])
        return [pack(header._replace(**{name: number})) + tail, *parts[1:]]


def header_of(parts):
    """The header of a message; None where it has none."""
    data = parts[0][: HEADER.size]
    is_whole = len(data) == HEADER.size and data[:3] == b"SRL" and data[3] == FORMAT
    return unpack(data) if is_whole and data[4] in [*Kind] else None


def sizes_of(parts):
    """Of the header of a message and of each of its frames, the first of which may be in the header's part."""
    head, *rest = map(len, parts)
    return [head, *rest] if head <= HEADER.size else [HEADER.size, head - HEADER.size, *rest]


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


class Rogue:
    """A socket with the keys, to which no rule of SRL applies."""

    def __init__(self, kind, keys, address, *, name=b"rogue"):
        self.context = zmq.Context()
        self.socket = self.context.socket(kind)
        use_keys(self.socket, keys, serves=kind == zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        if kind == zmq.ROUTER:
            self.socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 0)
            self.socket.bind(address)
        else:
            self.socket.setsockopt(zmq.ROUTING_ID, name)
            self.socket.connect(address)

    def close(self):
        self.context.destroy(linger=0)


def attack(count, mutator, *, send, heard, work, may_send=lambda parts: True):
    """Send `count` messages in bursts, with honest work in between; returns those that were sent."""
    sent, before, is_warm = [], 0, False
    for number in range(count // BURST):
        burst = []
        while len(burst) < BURST:
            parts = mutator.message()
            if may_send(parts):
                burst.append(parts)
        for parts in burst:
            send(parts)
        sent += [(header_of(parts), sizes_of(parts)) for parts in burst]
        eventually(partial(is_heard, heard, len(sent)), "the messages of the rogue")
        work(number)
        if not is_warm and number >= count // BURST // 4:
            is_warm, before = True, resident()
    assert resident() - before < MOST_GROWTH
    return sent


def is_heard(heard, count):
    return heard() >= count


def count_parsed(endpoint, *, peer=None):
    """A function that says how many messages an endpoint has looked at, or those of one peer."""
    parse, seen = endpoint.parse, []

    def counted(parts):
        if peer is None or bytes(parts[0]) == peer:
            seen.append(None)
        return parse(parts)

    endpoint.parse = counted
    return lambda: len(seen)


@pytest.mark.parametrize("count", COUNTS)
def test_sample_consumer(count):
    with closing(TcpSampleHarness()) as hosts:
        hosts.settle()
        consumer, producer = hosts.consumer(0), hosts.producer(0)
        (server,) = consumer._servers
        consumer.grant({0: count, 1: count}, 0)
        hosts.settle()
        spec, size = LAYOUT.spec.to_json().encode(), LAYOUT.nbytes
        mine = Header(Kind.HELLO, 1, 0, 0, digest=DIGEST)
        sound = [
            [pack(mine._replace(a=1)), spec],
            [pack(mine._replace(kind=Kind.ABANDON, a=1))],
            [pack(mine._replace(kind=Kind.GOODBYE))],
            *(
                [pack(mine._replace(kind=Kind.BLOCK, sequence=n, a=n % 3, b=1)), bytes(size)]
                for n in range(1, 4)
            ),
        ]

        def may_send(parts):
            header = header_of(parts)
            is_hello = header is not None and header.kind is Kind.HELLO
            return not (is_hello and header.sender == 0 and header.digest == DIGEST)

        found, expected = [], []

        def pump():
            for delivery in consumer.recv(99):
                if delivery.producer == 0:
                    found.append(int(delivery.block.buffer[0]))
                consumer.take(delivery, dropped=False)
            consumer.recv(0)
            return rogue_heard()

        def greet():
            producer._hello_at = 0.0
            producer.poll()
            pump()

        def work(number):
            def acquired():
                greet()
                grants.append(producer.acquire())
                return grants[-1] is not None

            grants = []
            eventually(acquired, "a slot of the honest producer")
            expected.append(number % 251)
            grants[-1].block.buffer[:] = number % 251
            producer.send(grants[-1])
            eventually(lambda: greet() or found == expected, "the honest block")

        with closing(Rogue(zmq.DEALER, hosts._keys, hosts._address(0))) as rogue:
            rogue_heard = count_parsed(server, peer=b"rogue")
            sent = attack(
                count,
                Mutator(count, sound),
                send=rogue.socket.send_multipart,
                heard=pump,
                work=work,
                may_send=may_send,
            )
        kinds = (Kind.HELLO, Kind.BLOCK, Kind.ABANDON, Kind.GOODBYE)
        foreign = [
            header is None
            or header.kind not in kinds
            or header.sender not in (0, 1)
            or (header.kind is Kind.HELLO and header.digest != DIGEST)
            or (header.kind is Kind.BLOCK and sizes[1:] != [size])
            for header, sizes in sent
        ]
        assert consumer.rejected >= sum(foreign) > count / 4
        assert len(expected) == count // BURST
        assert hosts._blocks().table.ledger(consumer_lives=True).adds_up


@pytest.mark.parametrize("count", COUNTS)
def test_inference_server(count):
    with closing(TcpInferenceHarness()) as harness:
        harness.publish(1)
        server, size = harness._server, harness._server._layouts.request.nbytes
        mine = Header(Kind.HELLO, 0, 0, 0, digest=DIGEST)
        sound = [
            [pack(mine), LAYOUT.spec.to_json().encode()],
            *(
                [pack(mine._replace(kind=Kind.REQUEST, sequence=n, c=n % 3)), bytes(size)]
                for n in range(1, 9)
            ),
        ]

        def may_send(parts):
            header = header_of(parts)
            is_hello = header is not None and header.kind is Kind.HELLO
            return not (is_hello and header.sender == 0 and header.digest == DIGEST)

        def pump():
            assert not server.recv(), "a request of nobody"
            return rogue_heard()

        def work(number):
            grant = harness.grant(number % 3, 1)
            row = number % LAYOUT.rows
            grant.block["obs"][row] = number
            harness.client().post(number % 3, grant, row)
            assert harness.answer() == [number % 3]
            expected = harness.expected(grant, row)
            assert all(np.array_equal(grant.block[n][row], expected[n]) for n in expected)

        address = address_of(harness._listener)
        with closing(Rogue(zmq.DEALER, harness._keys, address)) as rogue:
            rogue_heard = count_parsed(server._server, peer=b"rogue")
            work(0)
            send = rogue.socket.send_multipart
            attack(
                count, Mutator(count, sound), send=send, heard=pump, work=work, may_send=may_send
            )
        assert server.rejected >= count
        assert harness.client().resent == 0


@pytest.mark.parametrize("count", COUNTS)
def test_inference_client(count):
    with closing(TcpInferenceHarness()) as harness, closing(listen("127.0.0.1")) as place:
        address = address_of(place)
        place.close()
        harness.publish(1)
        layouts, honest = harness._server._layouts, address_of(harness._listener)
        with closing(Rogue(zmq.ROUTER, harness._keys, address)) as rogue:
            harness._client.close()
            client = harness._client = TcpInferenceClient(
                layouts,
                [honest, address],
                keys=harness._keys,
                context=harness._context,
                index=0,
                incarnation=0,
                num_slots=3,
                digest=DIGEST,
            )
            assert rogue.socket.poll(20_000), "no hello"
            peer = rogue.socket.recv_multipart()[0]
            theirs = Header(Kind.REPLY, 0, 0, 0, digest=DIGEST)
            sound = [
                [pack(theirs._replace(kind=Kind.NEWS))],
                *(
                    [pack(theirs._replace(sequence=n, c=n % 3)), bytes(layouts.answer.nbytes)]
                    for n in range(1, 9)
                ),
            ]

            def may_send(parts):
                header = header_of(parts)
                if header is None or header.kind is not Kind.WELCOME:
                    return header is None or header.kind is not Kind.REFUSED
                return header.digest != DIGEST

            def work(number):
                grant = harness.grant(number % 3, 1)
                row = number % LAYOUT.rows
                grant.block["obs"][row] = number
                client.post(number % 3, grant, row)
                assert harness.answer() == [number % 3]
                expected = harness.expected(grant, row)
                assert all(np.array_equal(grant.block[n][row], expected[n]) for n in expected)

            rogue_heard = count_parsed(client._clients[1])
            work(0)
            attack(
                count,
                Mutator(count, sound),
                send=lambda parts: rogue.socket.send_multipart([peer, *parts]),
                heard=lambda: (client.poll() and None) or rogue_heard(),
                work=work,
                may_send=may_send,
            )
        assert client.rejected == count
        assert client.late == 0


@pytest.mark.parametrize("count", COUNTS)
def test_parameters(count):
    """Half of the messages to the source, half from it to the sink."""
    with closing(TcpParameterHarness()) as hosts:
        weights = hosts.weights(1)
        hosts.publisher().publish(weights, 0)
        server, client, digest = hosts.source._server, hosts.sink._client, hosts.source._digest
        header = Header(Kind.HELLO, 0, 0, 0, digest=digest)
        to_source = [[pack(header._replace(a=3))], [pack(header._replace(kind=Kind.FETCH, a=0))]]
        which = np.arange(2, dtype=np.int64).tobytes()
        tensors = [which, bytes(300 * 7 * 4), bytes(8)]
        to_sink = [
            [pack(header._replace(kind=Kind.NEWS, a=0, c=1))],
            [pack(header._replace(kind=Kind.WEIGHTS, a=9, b=-1)), *tensors],
        ]

        def work(number):
            weights["big"][:] = number
            version = hosts.sink.version + 1
            hosts.publisher().publish(weights, version)
            version_there, fetched = hosts.subscriber().fetch()
            assert version_there == version
            assert all(np.array_equal(fetched[name], weights[name]) for name in weights)

        def may_send(parts):
            header = header_of(parts)
            if header is None or header.kind is not Kind.WEIGHTS:
                return header is None or header.kind is not Kind.REFUSED
            return header.digest != digest or not are_whole(*parts[1:])

        def are_whole(numbers=b"-", *found):
            """Whether these are tensors; none, or zeros, are."""
            if len(numbers) % 8:
                return False
            numbers = np.frombuffer(numbers, np.int64).tolist()
            sizes = {0: 300 * 7 * 4, 1: 8, 2: 0}
            return [sizes.get(number) for number in numbers] == [len(part) for part in found]

        (peer,) = hosts.source._peers
        heard_by_sink = count_parsed(client)
        base = [0]

        def send_to_sink(parts):
            server.socket.send_multipart([peer, *parts])

        def heard_sink():
            hosts.sink.step()
            return heard_by_sink() - base[0]

        def work_sink(number):
            before = heard_by_sink()
            work(number)
            base[0] += heard_by_sink() - before

        address = address_of(hosts._listener)
        with closing(Rogue(zmq.DEALER, hosts._keys, address)) as rogue:
            heard = count_parsed(server, peer=b"rogue")
            sent = attack(
                count // 2,
                Mutator(count, to_source),
                send=rogue.socket.send_multipart,
                heard=lambda: (hosts.source.step() and None) or heard(),
                work=work,
            )
        kinds = (Kind.HELLO, Kind.FETCH)
        foreign = [h is None or h.kind not in kinds or h.digest != digest for h, _ in sent]
        assert server.rejected == sum(foreign) > count / 8
        rejected = client.rejected
        base[0] = heard_by_sink()
        sent = attack(
            count // 2,
            Mutator(count + 1, to_sink),
            send=send_to_sink,
            heard=heard_sink,
            work=work_sink,
            may_send=may_send,
        )
        foreign = [h is None or h.kind is not Kind.NEWS or h.digest != digest for h, _ in sent]
        assert client.rejected - rejected >= sum(foreign) > count / 8


@pytest.mark.parametrize("count", COUNTS)
def test_control_lines(count):
    """Half of the messages by who is no host, half as the first words of one."""
    context, keys, listener = zmq.Context(), make_keys(), listen("127.0.0.1")
    keeper, address = Doorkeeper(context, keys), address_of(listener)
    board = Switchboard(context, address, keeper, os.dup(listener.fileno()), known={0})
    framing = Framing()
    messages = (
        Retire(3),
        Ready("actor-0", 1, 0.5, 9.0, has_torch=False),
        Report("actor-0", counters={"env_steps": 2**40}),
        StartNode(b"plan", {"a": 1}, ["actor-0"], {}, "/logs", "/sockets", []),
    )
    sound = [[framing.bytes_of(message)] for message in messages]
    far = zmq.Context()
    line = Line(far, address, keys, host=0)
    line.send(b"hello\n")

    def work(number):
        line.send(framing.bytes_of(Retire(number)))
        found = []

        def has_come():
            board.poll(0)
            line.recv()
            found.extend(board.hosts[0].recv_all() if 0 in board.hosts else [])
            return found == [Retire(number)]

        eventually(has_come, "the honest host's message")

    def heard():
        board.poll(0)
        return board.rejected

    with closing(Rogue(zmq.DEALER, keys, address, name=b"host-1.1")) as rogue:
        send = rogue.socket.send_multipart
        attack(count // 2, Mutator(count, sound), send=send, heard=heard, work=work)
    assert board.hosts.keys() == {0}
    assert board.rejected == count // 2

    mutator, taken = Mutator(count + 1, sound), 0
    for _ in range(count // 2):
        before, host = board.rejected, HostChannel(board, b"host-0.1")
        host.take(b"".join(mutator.message()))
        for _ in range(3):
            data = b"".join(mutator.message())
            host.take(data)
            for message in host.recv_all():
                assert isinstance(message, msgspec.Struct)
                taken += 1
        assert (host.lost is not None) == (board.rejected > before)
    assert board.rejected > count // 2
    work(1)
    line.close()
    board.close()
    keeper.close()
    far.destroy(linger=0)
    context.destroy(linger=0)
    listener.close()
