"""Everything that a stranger may try at a port, in a process of its own: what ZeroMQ does there is not the test's.

python stranger.py < {"port": 1234, "keys": {"public": "...", "secret": "..."}}
"""

import random
import socket
import sys
import time
from contextlib import suppress
from typing import Any

import msgspec
import zmq

from srl.transport.keys import Keys, make_keys, use_keys

TLS_HELLO = bytes.fromhex("16030100a5010000a10303") + bytes(range(160))
SCANS = (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", TLS_HELLO, random.Random(1).randbytes(3000))
HEARD_MILLISECONDS = 5000
"""Given to who has the keys to be heard, also by a host that has much to do."""


class Aim(msgspec.Struct):
    """What is tried, and with whose keys."""

    port: int
    keys: Keys


def scan(port: int) -> None:
    """As port scanners, browsers and noise do."""
    for data in SCANS:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as scanner:
            scanner.sendall(data)


def greet(context: "zmq.Context[Any]", port: int, pair: Keys | None, server: Keys | None) -> None:
    """As a peer without keys, with others, or with those of the run, who sends junk."""
    peer = context.socket(zmq.DEALER)
    if pair is not None and server is not None:
        use_keys(peer, pair, serves=False)
        peer.setsockopt(zmq.CURVE_SERVERKEY, server.public.encode())
    peer.connect(f"tcp://127.0.0.1:{port}")
    with suppress(zmq.Again):  # who was refused by now has nobody to send to
        peer.send_multipart([b"junk", bytes(100)], zmq.NOBLOCK)
    time.sleep(0.05)
    peer.close(linger=HEARD_MILLISECONDS if pair is not None and pair is server else 0)


def main() -> None:
    """Entry point of the process."""
    aim = msgspec.json.decode(sys.stdin.buffer.read(), type=Aim)
    other = make_keys()
    scan(aim.port)
    context: zmq.Context[Any] = zmq.Context()
    for pair, server in ((None, None), (other, other), (other, aim.keys), (aim.keys, aim.keys)):
        greet(context, aim.port, pair, server)
    context.term()


if __name__ == "__main__":
    main()
