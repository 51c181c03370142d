"""How fast blocks come over tcp, beside bare ZeroMQ sockets that carry the same frames; results into wire.json.

    python benchmarks/wire.py [--seconds 3] [--repeats 5] [--receivers 1 2] [--senders N] [--out FILE]

Sender processes send prefilled blocks over loopback, as fast as they can, to one process that receives them:

- stream: the sample stream, as in a run: credit by the gate, every block copied into its slot, taken, and its slot
  given back; both ends are those of a run, keys and doorkeeper included.
- lz4: the same, compressed (where lz4 is installed); rates are of what comes out.
- curve: PUSH and PULL with CURVE, which drop what they receive; plain: the same without encryption.

All have the allocator of a worker. They take turns within a repeat; ratios are taken within it, and medians over all. The receiver is what is
measured: `cores` is what its process kept busy, all threads together, and `us_a_block` its CPU time. A host that is
busy with something else makes rates useless, and that time less so.
"""

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import time
from contextlib import ExitStack, closing, suppress
from importlib.util import find_spec
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from srl.core.algorithm import Records
from srl.core.block import Block, Layout, route_layout
from srl.core.env import AgentSpec, Discrete, Observation
from srl.core.spec import Field, Spec
from srl.launch.host.process import use_allocator
from srl.learning.staleness import Gate
from srl.streams.samples.tcp import TcpConsumer, TcpProducer
from srl.tools.bench.report import host
from srl.transport.arena import Arena
from srl.transport.blocks import BlockArena, block_arena_bytes
from srl.transport.codec import HEADER
from srl.transport.compression import Lz4, make_compression
from srl.transport.keys import Doorkeeper, Keys, make_keys, use_keys
from srl.transport.listener import address_of, listen
from srl.transport.sockets import Server

HERE = Path(__file__).parent
CORES = len(os.sched_getaffinity(0))
WARM_UP_SECONDS = 0.5
START_SECONDS = 60.0
QUEUED_BYTES = 64 << 20
"""Of bare sockets, on each side."""
OUTPUTS = Spec(
    (Field("action", (), "int64"), Field("log_prob", (), "float32"), Field("value", (), "float32"))
)
SIZES = {
    "cartpole": (Observation("obs", (4,), "float32"), 32, 8, 64),
    "atari": (Observation("obs", (84, 84), "uint8", stack=4), 128, 4, 16),
}
"""Block to its observation, rollout, lanes, and how many of them may be on their way in all."""


def layout_of(size: str) -> Layout:
    observation, rollout, lanes, _ = SIZES[size]
    agent = AgentSpec((observation,), Discrete(6))
    return route_layout(agent, Records(OUTPUTS), rollout=rollout, lanes=lanes, envs=lanes)


def slots_of(size: str, senders: int) -> int:
    """Blocks of one sender that may be on their way."""
    return max(2, SIZES[size][3] // senders)


# --- the real stream -------------------------------------------------------------------------


def send_stream(
    size: str,
    slots: int,
    index: int,
    address: str,
    keys: Keys,
    pipe: Connection,
    compression: str = "none",
) -> None:
    """An actor that has nothing to do but to send."""
    use_allocator("tuned")  # as every worker
    layout = layout_of(size)
    arena = Arena.heap(block_arena_bytes(layout, 1, slots))
    blocks = BlockArena(arena.buffer, layout, 1, slots)
    for slot in range(slots):
        fill(size, blocks.block(0, slot).buffer, index)
    context: zmq.Context[Any] = zmq.Context()
    producer = TcpProducer(
        blocks,
        address,
        index=index,
        incarnation=1,
        keys=keys,
        context=context,
        compression=make_compression(compression),
    )
    poller = zmq.Poller()
    poller.register(pipe.fileno(), zmq.POLLIN)
    for socket in producer.pollables():
        poller.register(socket, zmq.POLLIN)
    with closing(producer):
        while pipe.fileno() not in dict(poller.poll(100)):
            producer.poll()
            while (grant := producer.acquire()) is not None:
                producer.send(grant)
    context.destroy(linger=0)


def receive_stream(
    size: str,
    senders: int,
    receivers: int,
    seconds: float,
    pipe: Connection,
    compression: str = "none",
) -> None:
    """A trainer that has nothing to do but to receive."""
    use_allocator("tuned")  # as every worker
    layout, slots = layout_of(size), slots_of(size, senders)
    keys, context = make_keys(), zmq.Context(receivers)
    arena = Arena.create("wire", block_arena_bytes(layout, senders, slots))
    blocks = BlockArena(arena.buffer, layout, senders, slots)
    listeners = [listen("127.0.0.1") for _ in range(receivers)]
    with ExitStack() as stack:
        keeper = stack.enter_context(closing(Doorkeeper(context, keys)))
        servers = [
            Server(
                context,
                address_of(listener),
                keeper=keeper,
                listener=os.dup(listener.fileno()),
                thread=number,
            )
            for number, listener in enumerate(listeners)
        ]
        consumer = stack.enter_context(
            closing(TcpConsumer(blocks, servers, compression=make_compression(compression)))
        )
        pipe.send(([address_of(listener) for listener in listeners], keys))
        batch = senders * slots // 2
        gate = Gate(num_producers=senders, batch=batch, max_staleness=3)
        poller = zmq.Poller()
        for socket in consumer.pollables():
            poller.register(socket, zmq.POLLIN)
        taken = 0

        def step() -> int:
            nonlocal taken
            deliveries = consumer.recv(batch)
            for delivery in deliveries:
                gate.deliver(delivery.producer)
                consumer.take(delivery, dropped=False)
            taken += len(deliveries)
            consumer.count_consumed(len(deliveries))
            if not taken or taken // batch > gate.version:
                gate.version = taken // batch
                consumer.grant(dict(enumerate(gate.open())), gate.version)
            if not deliveries:
                poller.poll(100)
            return len(deliveries)

        deadline = time.monotonic() + START_SECONDS
        while len(consumer.producers()) < senders and time.monotonic() < deadline:
            step()
        rate, cores = measure(step, seconds)
        ledger = blocks.table.ledger(consumer_lives=True)
        assert ledger.adds_up, ledger
        assert not consumer.rejected, "blocks were refused"
        assert not keeper.refused, "producers were refused"
        pipe.send((rate * layout.nbytes, cores))
        pipe.poll(START_SECONDS)
    context.destroy(linger=0)
    for listener in listeners:
        listener.close()
    arena.close()


def send_lz4(*words: Any) -> None:
    send_stream(*words, compression="lz4")


def receive_lz4(*words: Any) -> None:
    receive_stream(*words, compression="lz4")


# --- bare sockets ----------------------------------------------------------------------------


def send_bare(
    size: str, slots: int, index: int, address: str, keys: Keys | None, pipe: Connection
) -> None:
    use_allocator("tuned")
    layout = layout_of(size)
    buffers = [np.empty(layout.nbytes, np.uint8) for _ in range(slots)]
    for buffer in buffers:
        fill(size, buffer, index)
    context: zmq.Context[Any] = zmq.Context()
    socket = context.socket(zmq.PUSH)
    if keys is not None:
        use_keys(socket, keys, serves=False)
    socket.setsockopt(zmq.SNDHWM, queue_of(layout))
    socket.connect(address)
    header, number = bytes(HEADER.size), 0
    copies = layout.nbytes <= socket.copy_threshold  # the faster way for either
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLOUT)
    poller.register(pipe.fileno(), zmq.POLLIN)
    while pipe.fileno() not in dict(poller.poll(100)):
        try:
            for _ in range(slots):
                socket.send(header, zmq.SNDMORE | zmq.DONTWAIT)
                socket.send(buffers[number % slots].data, zmq.DONTWAIT, copy=copies)
                number += 1
        except zmq.Again:
            pass
    context.destroy(linger=0)


def receive_bare(
    size: str, senders: int, receivers: int, seconds: float, pipe: Connection, *, has_keys: bool
) -> None:
    use_allocator("tuned")
    layout = layout_of(size)
    keys, context = make_keys() if has_keys else None, zmq.Context(receivers)
    sockets, poller = [], zmq.Poller()
    for number in range(receivers):
        socket = context.socket(zmq.PULL)
        if keys is not None:
            use_keys(socket, keys, serves=True)
            socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 0)  # nobody keeps this door
        socket.setsockopt(zmq.RCVHWM, queue_of(layout))
        socket.setsockopt(zmq.AFFINITY, 1 << number)
        socket.bind("tcp://127.0.0.1:*")
        poller.register(socket, zmq.POLLIN)
        sockets.append(socket)
    pipe.send(([socket.getsockopt_string(zmq.LAST_ENDPOINT) for socket in sockets], keys))

    def step() -> int:
        found = 0
        for socket, _ in poller.poll(100):
            try:
                for _ in range(32):
                    _, block = socket.recv_multipart(zmq.DONTWAIT, copy=False)
                    assert len(block) == layout.nbytes
                    found += 1
            except zmq.Again:
                pass
        return found

    rate, cores = measure(step, seconds)
    pipe.send((rate * layout.nbytes, cores))
    pipe.poll(START_SECONDS)
    context.destroy(linger=0)


def receive_curve(*words: Any) -> None:
    receive_bare(*words, has_keys=True)


def receive_plain(*words: Any) -> None:
    receive_bare(*words, has_keys=False)


SIDES = {
    "stream": (send_stream, receive_stream),
    "curve": (send_bare, receive_curve),
    "plain": (send_bare, receive_plain),
}
if find_spec("lz4") is not None:
    SIDES["lz4"] = (send_lz4, receive_lz4)


# --- both ------------------------------------------------------------------------------------


def fill(size: str, buffer: np.ndarray, seed: int) -> None:
    """Numbers, or the pictures of a game: flat, with a score, two bars and a ball that move."""
    rng = np.random.default_rng(seed)
    if size != "atari":
        buffer[:] = rng.integers(0, 256, buffer.nbytes, np.uint8)
        return
    block = Block(layout_of(size), buffer)
    frames = block["obs"]
    frames[:] = 87
    frames[:, :, :10, 10:74] = rng.integers(0, 2, (10, 64), np.uint8) * 236
    for row, lane in np.ndindex(frames.shape[:2]):
        for x, height in ((8, 16), (74, 16), (int(rng.integers(10, 72)), 2)):
            y = int(rng.integers(14, 84 - height))
            frames[row, lane, y : y + height, x : x + 2] = rng.integers(140, 240)
    for name in ("log_prob", "value", "reward"):
        block[name][:] = rng.standard_normal(block[name].shape)


def packing(size: str) -> dict[str, Any]:
    """What lz4 makes of a block, and how fast, on one core."""
    buffer, lz4 = np.zeros(layout_of(size).nbytes, np.uint8), Lz4()
    fill(size, buffer, 0)
    packed = lz4.pack(buffer.data)
    if packed is None:
        return {"share": 1.0}

    def rate(call: Any) -> float:
        times = []
        for _ in range(20):
            begin = time.thread_time()
            call()
            times.append(time.thread_time() - begin)
        return round(buffer.nbytes / statistics.median(times) / 1e6)

    return {
        "share": round(len(packed) / buffer.nbytes, 3),
        "pack_mb_s": rate(lambda: lz4.pack(buffer.data)),
        "unpack_mb_s": rate(lambda: lz4.unpack(packed, buffer.nbytes)),
    }


def queue_of(layout: Layout) -> int:
    """Messages that a bare socket may hold."""
    return max(8, min(1000, QUEUED_BYTES // layout.nbytes))


def measure(step: Any, seconds: float) -> tuple[float, float]:
    """Blocks a second, and cores that this process kept busy."""
    deadline, blocks = time.monotonic() + START_SECONDS, 0
    while not blocks and time.monotonic() < deadline:
        blocks += step()
    assert blocks, "nothing came"
    end = time.monotonic() + WARM_UP_SECONDS
    while time.monotonic() < end:
        step()
    blocks, begin, busy = 0, time.monotonic(), cpu_seconds()
    while (now := time.monotonic()) < begin + seconds:
        blocks += step()
    return blocks / (now - begin), (cpu_seconds() - busy) / (now - begin)


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def run(side: str, size: str, senders: int, receivers: int, seconds: float) -> tuple[float, float]:
    """Bytes a second and cores of the receiver; every process has ended afterwards."""
    make = multiprocessing.get_context("spawn")
    send, receive = SIDES[side]
    started: list[tuple[BaseProcess, Connection]] = []

    def start(target: Any, *words: Any) -> Connection:
        mine, theirs = make.Pipe()
        process = make.Process(target=target, args=(*words, theirs), daemon=True)
        process.start()
        theirs.close()
        started.append((process, mine))
        return mine

    try:
        receiver = start(receive, size, senders, receivers, seconds)
        assert receiver.poll(START_SECONDS), "the receiver did not start"
        addresses, keys = receiver.recv()
        for index in range(senders):
            start(send, size, slots_of(size, senders), index, addresses[index % receivers], keys)
        assert receiver.poll(2 * START_SECONDS + seconds), "the receiver has nothing to say"
        return receiver.recv()
    finally:
        for _, pipe in reversed(started):
            with suppress(OSError):  # it has ended
                pipe.send("end")
        for process, _ in started:
            process.join(10)
            if process.is_alive():
                process.kill()


def compare(options: argparse.Namespace, size: str) -> dict[str, Any]:
    """Every side with every number of receivers, in turn."""
    cases = [(side, n) for n in options.receivers for side in SIDES]
    found: dict[str, list[tuple[float, float]]] = {f"{side} {n}": [] for side, n in cases}
    for _ in range(options.repeats):
        for side, receivers in cases:
            result = run(side, size, options.senders, receivers, options.seconds)
            found[f"{side} {receivers}"].append(result)
            print(
                f"{size} {side} {receivers}: {result[0] / 1e6:.0f} MB/s, {result[1]:.2f} cores",
                flush=True,
            )

    def ratio(upper: str, lower: str) -> dict[str, Any]:
        pairs = zip(found[upper], found[lower], strict=True)
        ratios = [round(a / b, 3) for (a, _), (b, _) in pairs]
        return {"median": round(statistics.median(ratios), 3), "all": ratios}

    block_bytes = layout_of(size).nbytes
    results: dict[str, Any] = {"block_bytes": block_bytes}
    if "lz4" in SIDES:
        results["lz4"] = packing(size)
    for name, runs in found.items():
        results[name] = {
            "mb_s": round(statistics.median(rate for rate, _ in runs) / 1e6, 1),
            "cores": round(statistics.median(cores for _, cores in runs), 2),
            "us_a_block": round(
                statistics.median(1e6 * cores * block_bytes / rate for rate, cores in runs), 1
            ),
            "all": [round(rate / 1e6, 1) for rate, _ in runs],
        }
    for n in options.receivers:
        results[f"stream of curve, receivers {n}"] = ratio(f"stream {n}", f"curve {n}")
        results[f"stream of plain, receivers {n}"] = ratio(f"stream {n}", f"plain {n}")
    first = options.receivers[0]
    for n in options.receivers[1:]:
        for side in SIDES:
            results[f"{side}, receivers {n} of {first}"] = ratio(f"{side} {n}", f"{side} {first}")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=HERE / "wire.json")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--senders", type=int, default=max(2, CORES // 2))
    parser.add_argument("--receivers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    options = parser.parse_args()
    results: dict[str, Any] = {
        "host": {
            **host(),
            "zmq": zmq.zmq_version(),
            "pyzmq": zmq.pyzmq_version(),
            "load": os.getloadavg(),  # of others, too
        },
        "seconds": options.seconds,
        "repeats": options.repeats,
        "senders": options.senders,
    }
    for size in options.sizes:
        results[size] = compare(options, size)
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
