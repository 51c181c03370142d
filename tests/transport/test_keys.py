"""Who has not the run's keys can neither be heard by a server nor hear it."""

import os
import socket
import time
from contextlib import closing

import pytest
import zmq

from srl.core.errors import ConfigError, StreamError
from srl.testing.stream_contract import eventually
from srl.transport.codec import Header, Kind, pack
from srl.transport.keys import Doorkeeper, make_keys, use_keys
from srl.transport.listener import address_of, listen
from srl.transport.sockets import PART_BYTES, Client, Server

HELLO = Header(Kind.HELLO, 0, 1, 0)


class Host:
    """A server with keys, and its doorkeeper."""

    def __init__(self):
        self.keys, self.context, self.listener = make_keys(), zmq.Context(), listen("127.0.0.1")
        self.keeper = Doorkeeper(self.context, self.keys)
        self.address = address_of(self.listener)
        self.server = self.serve()

    def serve(self):
        listener = os.dup(self.listener.fileno())
        return Server(self.context, self.address, keeper=self.keeper, listener=listener)

    def hears_its_own(self):
        """Whether a client with the keys still gets through, and nobody else did before it."""
        with closing(Client(self.context, self.address, keys=self.keys)) as client:
            client.send(HELLO)
            heard = []
            eventually(lambda: heard.extend(self.server.recv_all()) or heard, "a hello")
        return [message.header for message in heard] == [HELLO]

    def close(self):
        self.server.close()
        self.keeper.close()
        self.keeper.close()
        self.context.destroy(linger=0)
        self.listener.close()


@pytest.fixture
def host():
    with closing(Host()) as host:
        yield host


def test_client_with_the_keys_is_heard_and_answered(host):
    assert host.hears_its_own()
    eventually(lambda: host.keeper.refused == 0, "that nobody counts as refused")


def test_client_with_another_client_key_is_refused_and_counted(host):
    """It knows the server's public key, which is no secret, and makes up a pair of its own."""
    stranger, context = make_keys(), zmq.Context()
    intruder = context.socket(zmq.DEALER)
    use_keys(intruder, stranger, serves=False)
    intruder.setsockopt(zmq.CURVE_SERVERKEY, host.keys.public.encode())
    intruder.connect(host.address)
    intruder.send(pack(HELLO))
    eventually(lambda: host.keeper.refused > 0, "a refusal")
    assert host.server.recv_all() == []
    context.destroy(linger=0)
    assert host.hears_its_own()


@pytest.mark.parametrize("has_keys", [False, True], ids=["no keys", "another run's keys"])
def test_client_of_another_run_is_not_heard(host, has_keys):
    context = zmq.Context()
    intruder = context.socket(zmq.DEALER)
    if has_keys:
        use_keys(intruder, make_keys(), serves=False)
    monitor = intruder.get_monitor_socket(
        zmq.EVENT_DISCONNECTED
        | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    )
    intruder.connect(host.address)
    intruder.send(pack(HELLO))
    assert monitor.poll(20_000), "the server did not end the connection"
    assert host.server.recv_all() == []
    eventually(lambda: host.keeper.refused > 0, "a refusal")
    intruder.disable_monitor()
    monitor.close()
    context.destroy(linger=0)
    assert host.hears_its_own()


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100, os.urandom(4096), b""],
    ids=["http", "ones", "random", "nothing"],
)
def test_bytes_of_a_port_scanner_do_nothing(host, data):
    host_name, port = host.address.removeprefix("tcp://").split(":")
    for _ in range(20):
        with socket.create_connection((host_name, int(port)), timeout=10) as scanner:
            scanner.sendall(data)
    assert host.hears_its_own()
    eventually(lambda: host.keeper.refused == 20, "all refusals")


def test_who_connects_before_the_server_is_there_is_counted_too():
    keys, context, listener = make_keys(), zmq.Context(), listen("127.0.0.1")
    address, keeper = address_of(listener), Doorkeeper(context, keys)
    with closing(Client(context, address, keys=keys)) as client:
        client.send(HELLO)
        host_name, port = address.removeprefix("tcp://").split(":")
        early = [socket.create_connection((host_name, int(port)), timeout=10) for _ in range(3)]
        time.sleep(0.1)  # all wait to be accepted
        with closing(Server(context, address, keeper=keeper, listener=listener.detach())) as server:
            eventually(lambda: bool(server.recv_all()), "a hello")
            eventually(lambda: keeper.refused == 3, "that all but the client count as refused")
            for stranger in early:
                stranger.close()
            keeper.close()
    context.destroy(linger=0)


def test_part_that_is_too_large_ends_its_connection_and_nothing_else(host):
    with closing(Client(host.context, host.address, keys=host.keys)) as client:
        client.socket.send_multipart([pack(HELLO), bytes(PART_BYTES)])
        heard = []
        eventually(lambda: heard.extend(host.server.recv_all()) or heard, "the largest part")
        eventually(lambda: host.keeper.refused == 0, "the news that it was let in")
        assert host.keeper.ended == 0
        client.socket.send_multipart([pack(HELLO), bytes(PART_BYTES + 4096)])
        eventually(lambda: host.keeper.ended == 1, "the end of the connection")
        assert host.server.recv_all() == []
    assert host.hears_its_own()


def test_client_ends_a_connection_that_brings_too_much(host):
    with closing(Client(host.context, host.address, keys=host.keys)) as client:
        client.send(HELLO)
        heard = []
        eventually(lambda: heard.extend(host.server.recv_all()) or heard, "a hello")
        too_large = bytes(PART_BYTES + 4096)
        host.server.socket.send_multipart([heard[0].peer, pack(HELLO), too_large])
        eventually(lambda: host.keeper.ended == 1, "the end of the connection")
        assert client.recv_all() == []


def test_doorkeeper_and_servers_end_in_any_order(host):
    others = [host.serve() for _ in range(2)]
    others[0].close()
    host.keeper.close()
    others[1].close()
    assert not host.keeper._thread.is_alive()


def test_address_outlives_who_serves_it(host):
    with closing(Client(host.context, host.address, keys=host.keys)) as client:
        client.send(HELLO)
        eventually(lambda: bool(host.server.recv_all()), "a hello")
        host.server.close()
        time.sleep(0.1)  # the client notices, and connects to what still listens
        host.server = host.serve()

        def is_heard():
            client.send(HELLO)
            return bool(host.server.recv_all())

        eventually(is_heard, "a hello to the next life")


def test_nothing_is_opened_on_a_network_without_keys():
    context = zmq.Context()
    for make in (Server, Client):
        with pytest.raises(StreamError, match="without keys"):
            make(context, "tcp://127.0.0.1:1")
    context.destroy(linger=0)


def test_keys_are_in_no_text_that_is_shown():
    keys = make_keys()
    shown = f"{keys} {keys!r} {[keys]}"
    assert keys.secret not in shown
    assert keys.public not in shown


def test_port_in_use_and_foreign_address_say_so():
    with closing(listen("127.0.0.1")) as first:
        port = first.getsockname()[1]
        with pytest.raises(ConfigError, match="another process listens there"):
            listen("127.0.0.1", port)
    with pytest.raises(ConfigError, match="no such address"):
        listen("192.0.2.1")
