"""A run whose ports strangers find: it learns as it would without them, says how many were refused, and its keys
are nowhere to be read."""

import base64
import os
import random
import socket
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import zmq
from zmq.utils import z85

import srl
from srl.launch import cluster, local
from srl.transport.keys import Keys, make_keys, use_keys
from tests.launch.test_cluster import children_of, place

ROUNDS = 3
ENDS = 2
"""That listen at least: of the trainer, and of the policy worker."""
TLS_HELLO = bytes.fromhex("16030100a5010000a10303") + bytes(range(160))
SCANS = (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", TLS_HELLO, random.Random(1).randbytes(3000))


def listening_ports(pids: list[int]) -> set[int]:
    """TCP ports at which one of these processes listens."""
    inodes = set()
    for pid in pids:
        with suppress(OSError):
            links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
            inodes |= {link[8:-1] for link in links if link.startswith("socket:[")}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(r[1].split(":")[1], 16) for r in rows if r[3] == "0A" and r[9] in inodes}


class Strangers:
    """Find the run's ports and try everything at them, until it is over."""

    def __init__(self, made: list[Keys]) -> None:
        self._made = made
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._context: zmq.Context[Any] = zmq.Context()
        self.rounds = 0
        self.ports: set[int] = set()
        self.seen: dict[str, bytes] = {}
        """What `ps` shows of the run's processes."""
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join(60)
        assert not self._thread.is_alive()  # ZeroMQ aborts where its sockets are closed under it
        self._context.destroy(linger=0)

    def _work(self) -> None:
        while not self._is_over.wait(0.05):
            pids = children_of(os.getpid())
            for pid in pids:
                for name in ("cmdline", "environ"):
                    with suppress(OSError):
                        path = Path(f"/proc/{pid}/{name}")
                        self.seen[str(path)] = path.read_bytes()
            if self.rounds == ROUNDS:
                continue
            self.ports |= listening_ports(pids)
            with suppress(OSError):  # the run has ended
                for port in self.ports:
                    if not self._is_over.is_set():
                        self._strike(port)
                self.rounds += len(self.ports) >= ENDS

    def _strike(self, port: int) -> None:
        for data in SCANS:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as scanner:
                scanner.sendall(data)
        keys, other = self._made[0], make_keys()
        for pair, server in ((None, None), (other, other), (other, keys), (keys, keys)):
            peer = self._context.socket(zmq.DEALER)
            if pair is not None and server is not None:
                use_keys(peer, pair, serves=False)
                peer.setsockopt(zmq.CURVE_SERVERKEY, server.public.encode())
            peer.connect(f"tcp://127.0.0.1:{port}")
            peer.send_multipart([b"junk", bytes(100)])
            self._is_over.wait(0.05)
            # who has the keys is given the time to be heard, also by a host that has much to do
            peer.close(linger=5000 if pair is keys else 0)


@pytest.mark.parametrize("hosts", [{}, {"policy-0": 1, "actor-0": 2}], ids=["one host", "links"])
def test_strangers_are_refused_and_counted_and_learn_no_key(
    hosts: dict[str, int],
    auditing: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    assert_ledger_adds_up: Any,
) -> None:
    made: list[Keys] = []
    for module in (local, cluster):
        monkeypatch.setattr(module, "make_keys", lambda: made.append(make_keys()) or made[0])
    if hosts:
        place(monkeypatch, hosts)
    options = {"samples": "tcp", "inference": "tcp", "policies__count": 1}
    with closing(Strangers(made)) as strangers:
        run = srl.train(auditing, launcher="local", seed=1, out=str(tmp_path / "run"), **options)
    summary = run.summary
    assert summary["status"] == "completed", summary["reason"]
    assert summary["eval_return"] >= 15  # of 16; guessing gives 4
    assert_ledger_adds_up(summary)
    assert summary["blocks_lost"] == summary["worker_restarts"] == 0
    assert strangers.rounds >= 1
    assert len(strangers.ports) == ENDS if not hosts else len(strangers.ports) >= ENDS
    assert summary["connections_refused"] >= len(SCANS) * len(strangers.ports)
    assert summary["messages_refused"] >= 1

    places = {str(p): p.read_bytes() for p in run.folder.rglob("*") if p.is_file()}
    places |= strangers.seen | {"what was said": "".join(capfd.readouterr()).encode()}
    assert sum(name.endswith("cmdline") for name in places) >= 4  # agent, trainer, policy, actor
    raw = z85.decode(made[0].secret.encode())
    for secret in (made[0].secret.encode(), raw, raw.hex().encode(), base64.b64encode(raw)):
        assert [name for name, text in places.items() if secret in text] == []
