"""How long a message takes to another process and back, when both only wait for it.

python -m srl.tools.planning.echo ADDRESS_FILE near|far < KEYS
"""

import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import msgspec
import zmq

from srl.core.errors import WorkerError
from srl.transport.keys import Doorkeeper, Keys, make_keys, use_keys

_TIMES = 300
_PATIENCE_MS = 10_000


def echo_seconds(*, is_far: bool) -> float:
    """Median of many, over a socket file or over the encrypted loopback network."""
    keys = make_keys()
    context: zmq.Context[Any] = zmq.Context()
    doorkeeper = Doorkeeper(context, keys) if is_far else None
    socket = context.socket(zmq.PAIR)
    socket.linger = 0
    socket.rcvtimeo = _PATIENCE_MS
    with tempfile.TemporaryDirectory(prefix="srl-") as folder:
        if doorkeeper is not None:
            doorkeeper.guard(socket)
            address = f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"
        else:
            address = f"ipc://{folder}/echo"
            socket.bind(address)
        process = subprocess.Popen(
            [sys.executable, "-m", "srl.tools.planning.echo", address], stdin=subprocess.PIPE
        )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(keys if is_far else None))
        process.stdin.close()
        try:
            socket.recv()
            return statistics.median(_once(socket) for _ in range(_TIMES))
        except zmq.Again as error:
            raise WorkerError("the process that echoes messages did not answer") from error
        finally:
            process.terminate()
            process.wait(5)
            socket.close()
            if doorkeeper is not None:
                doorkeeper.close()
            context.term()


def _once(socket: "zmq.Socket[bytes]") -> float:
    start = time.perf_counter()
    socket.send(b"?" * 64)
    socket.recv()
    return time.perf_counter() - start


def main() -> int:
    """The other process: say hello, then send back what comes."""
    keys = msgspec.json.decode(sys.stdin.buffer.read(), type=Keys | None)
    context: zmq.Context[Any] = zmq.Context()
    socket = context.socket(zmq.PAIR)
    socket.rcvtimeo = _PATIENCE_MS
    if keys is not None:
        use_keys(socket, keys, serves=False)
    socket.connect(sys.argv[1])
    socket.send(b"!")
    while True:
        socket.send(socket.recv())


if __name__ == "__main__":
    sys.exit(main())
