"""A run whose ports strangers find: it learns as it would without them, says how many were refused, and its keys
are nowhere to be read."""

import base64
import os
import subprocess
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from zmq.utils import z85

import srl
from srl.launch import cluster, local
from srl.transport.keys import Keys, make_keys
from tests.launch.stranger import SCANS
from tests.launch.test_cluster import children_of, place

ROUNDS = 3
ENDS = 2
"""That listen at least: of the trainer, and of the policy worker."""
PROCESSES = 4
"""Node agent, trainer, policy worker, actor."""
STRANGER = Path(__file__).with_name("stranger.py")
STRIKE_SECONDS = 50


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
    """Find the run's ports and try everything at them (`stranger.py`), until it is over.

    The run waits for them (`auditing.py`): they begin when it does, so that all of its ends are there, and when
    everything was tried once it goes on.
    """

    def __init__(self, made: list[Keys], awaited: Path, done: Path) -> None:
        self._made = made
        self._awaited, self._done = awaited, done
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self.rounds = 0
        self.ports: set[int] = set()
        self.seen: dict[str, bytes] = {}
        """What `ps` shows of the run's processes."""
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join(STRIKE_SECONDS + 5)
        assert not self._thread.is_alive()

    def _work(self) -> None:
        while not self._is_over.wait(0.05):
            pids = children_of(os.getpid())
            for pid in pids:
                for name in ("cmdline", "environ"):
                    with suppress(OSError):
                        path = Path(f"/proc/{pid}/{name}")
                        self.seen[str(path)] = path.read_bytes()
            self.ports |= listening_ports(pids)
            if self.rounds < ROUNDS and self._awaited.exists():
                struck = [self._strike(port) for port in self.ports]
                self.rounds += all(struck)
                if self.rounds:
                    self._done.touch()

    def _strike(self, port: int) -> bool:
        """Whether all was tried: the run may have ended meanwhile, where it has waited."""
        done = subprocess.run(
            [sys.executable, str(STRANGER)],
            input=msgspec.json.encode({"port": port, "keys": self._made[0]}),
            capture_output=True,
            timeout=STRIKE_SECONDS,
            check=False,
        )
        return done.returncode == 0


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
    options: dict[str, Any] = {"samples": "tcp", "inference": "tcp", "policies__count": 1}
    awaited, done = tmp_path / "strangers are awaited", tmp_path / "strangers are done"
    files = {"waits": str(awaited), "file": str(done)}
    options["env__options"] = msgspec.json.encode(files).decode()
    attended = auditing.replace(":experiment", ":attended")
    with closing(Strangers(made, awaited, done)) as strangers:
        run = srl.train(attended, launcher="local", seed=1, out=str(tmp_path / "run"), **options)
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
    assert sum(name.endswith("cmdline") for name in places) >= PROCESSES
    raw = z85.decode(made[0].secret.encode())
    for secret in (made[0].secret.encode(), raw, raw.hex().encode(), base64.b64encode(raw)):
        assert [name for name, text in places.items() if secret in text] == []
