"""A Ray cluster whose nodes are hosts of their own (`srl/testing/hosts.py`)."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from srl.testing.hosts import Hosts, address

_PORT = 6379
_START_SECONDS = 60.0


class RayHosts:
    """Ray on some hosts; the first is its head, and has a driver's processes, too."""

    def __init__(
        self, cores: Sequence[int], *, delay_seconds: float = 0.0, private: Path | None = None
    ) -> None:
        """Start one node a host with so many cores each; all but the first see `private` empty."""
        self.place = Path(tempfile.mkdtemp(prefix="srlr-"))
        self.address = f"{address(1)}:{_PORT}"
        self._cores = cores
        self._private = private
        token = self.place / "token"
        token.write_text(os.urandom(32).hex())
        token.chmod(0o600)
        self._environment = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            "TMPDIR": str(self.place),
        }
        self._nodes: dict[int, subprocess.Popen[bytes]] = {}
        self.hosts = Hosts(len(cores), delay_seconds=delay_seconds)
        try:
            for number in range(1, len(cores) + 1):  # they share a folder, and two at once do not
                self.start_node(number)
                self.wait_for_nodes(number)
        except BaseException:
            self.close()
            raise

    def start_node(self, number: int) -> None:
        """Start Ray on a host, again where it was killed."""
        words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
        words += ["--node-ip-address", address(number), "--num-cpus", str(self._cores[number - 1])]
        words += ["--disable-usage-stats", "--object-store-memory", str(80 << 20)]
        if number == 1:
            words += ["--head", "--port", str(_PORT), "--include-dashboard", "false"]
            words += ["--temp-dir", str(self.place / "ray")]
        else:
            words += ["--address", self.address]
        if self._private is not None and number > 1:  # each host has mounts of its own
            mount = f"mount -t tmpfs tmpfs '{self._private}' && exec \"$@\""
            words = ["sh", "-c", mount, "-", *words]
        if number in self._nodes:
            self._nodes[number].wait(30)
        with (self.place / f"ray-{number}.log").open("ab") as log:
            self._nodes[number] = subprocess.Popen(
                self.hosts.command(number, words),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def wait_for_nodes(self, count: int) -> None:
        """Wait until so many nodes are part of the cluster."""
        script = (
            f"import ray, time; ray.init({self.address!r}, log_to_driver=False)\n"
            f"deadline = time.monotonic() + {_START_SECONDS}\n"
            "while time.monotonic() < deadline:\n"
            f"    if sum(n['Alive'] for n in ray.nodes()) >= {count}: raise SystemExit(0)\n"
            "    time.sleep(0.2)\n"
            "raise SystemExit('not all nodes have come')"
        )
        deadline = time.monotonic() + _START_SECONDS
        while True:
            done = self.run([sys.executable, "-c", script])
            if not done.returncode:
                return
            if time.monotonic() > deadline:
                logs = [path.read_text()[-1000:] for path in sorted(self.place.glob("ray-*.log"))]
                raise RuntimeError("\n".join(["Ray did not start:", done.stderr, *logs]))
            time.sleep(1.0)

    def run(
        self, words: Sequence[str], seconds: float = 120.0
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command on the first host to its end."""
        return subprocess.run(
            self.hosts.command(1, words),
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def start(self, words: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
        """Start `srl` on the first host."""
        with log.open("wb") as file:
            return subprocess.Popen(
                self.hosts.command(1, [sys.executable, "-m", "srl.cli", *words]),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )

    def seen(self, number: int, folder: Path) -> list[Path]:
        """What is in a folder, as a host sees it."""
        root = Path(f"/proc/{self._nodes[number].pid}/root")
        return [*(root / folder.relative_to("/")).iterdir()]

    def options(self, where: Mapping[str, Sequence[int]]) -> list[str]:
        """Options of a run on this cluster: kind of workers to the numbers of their hosts."""
        words = ["--launcher", "ray", "--ray.address", self.address]
        for kind, numbers in where.items():
            words += [f"--ray.{kind}", *(address(number) for number in numbers)]
        return words

    def close(self) -> None:
        """End all, and remove the hosts."""
        import shutil

        self.hosts.close()
        for node in self._nodes.values():
            node.kill()
            node.wait(10)
        shutil.rmtree(self.place, ignore_errors=True)
