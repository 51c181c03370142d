"""Hosts on one machine: network namespaces, joined by a switch. Needs root and iproute2, to lose packets nftables.

Each host is a namespace with an interface `eth0`. The switch is in a namespace of its own, so nothing of
this machine's network is touched: a bridge, or, for links with delay, a program that passes frames on
when their time has come.
"""

import contextlib
import fcntl
import heapq
import itertools
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

_TUNSETIFF = 0x400454CA
_TAP = 0x0002 | 0x1000
"""Ethernet frames, without a header of the kernel's."""
_FRAME_BYTES = 65_600
_MTU = 9000
_numbers = itertools.count()


def can_have_hosts() -> bool:
    """Whether namespaces can be made here."""
    return sys.platform == "linux" and os.geteuid() == 0 and shutil.which("ip") is not None


class Hosts:
    """Some hosts, numbered from 1, each with the address 10.77.0.NUMBER."""

    def __init__(self, count: int, *, delay_seconds: float = 0.0) -> None:
        """Make them; every frame takes `delay_seconds` from one to another."""
        self.name = f"srl{os.getpid()}-{next(_numbers)}"  # a process may have several at a time
        self._switch = f"{self.name}-sw"
        self._program: subprocess.Popen[bytes] | None = None
        self._names = [f"{self.name}-{number}" for number in range(1, count + 1)]
        try:
            for name in (self._switch, *self._names):
                _ip("netns", "add", name)
                _ip("-n", name, "link", "set", "lo", "up")
            if delay_seconds:
                self._start_program(delay_seconds)
            else:
                self._add_bridge()
            for number, name in enumerate(self._names, 1):
                _ip("-n", name, "addr", "add", f"{address(number)}/24", "dev", "eth0")
                _ip("-n", name, "link", "set", "eth0", "mtu", str(_MTU), "up")
        except BaseException:
            self.close()
            raise

    def _add_bridge(self) -> None:
        _ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "br0", "up")
        for number, name in enumerate(self._names, 1):
            port = f"port{number}"
            pair = ("eth0", "netns", name, "type", "veth", "peer", "name", port)
            _ip("link", "add", *pair, "netns", self._switch)
            _ip("-n", self._switch, "link", "set", port, "mtu", str(_MTU), "master", "br0", "up")

    def _start_program(self, delay_seconds: float) -> None:
        words = [sys.executable, "-m", "srl.testing.hosts", str(delay_seconds), *self._names]
        self._program = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._program.stdout is not None
        if self._program.stdout.readline() != b"ready\n":
            raise RuntimeError("the switch of the hosts did not start")

    def command(self, number: int, words: Sequence[str]) -> list[str]:
        """A command, to be run on a host."""
        return [*self.prefix(number), *words]

    def prefix(self, number: int) -> list[str]:
        """What runs a command on a host."""
        return ["ip", "netns", "exec", self._names[number - 1]]

    def cut(self, number: int) -> None:
        """Pull the plug of a host's network."""
        _ip("-n", self._names[number - 1], "link", "set", "eth0", "down")

    def heal(self, number: int) -> None:
        """Put it in again."""
        _ip("-n", self._names[number - 1], "link", "set", "eth0", "up")

    def limit(self, number: int, megabits: float) -> None:
        """Cap what a host can send."""
        words = ("rate", f"{megabits}mbit", "burst", "256k", "latency", "50ms")
        tc = ["tc", "-n", self._names[number - 1], "qdisc", "replace", "dev", "eth0", "root", "tbf"]
        subprocess.run([*tc, *words], check=True, capture_output=True)

    def lose(self, number: int, percent: int) -> None:
        """Lose so many of the packets that reach a host, by chance; 0: none any more."""
        rules = "add table inet loss; delete table inet loss; add table inet loss; "
        rules += "add chain inet loss input { type filter hook input priority 0; }; "
        rules += f"add rule inet loss input numgen random mod 100 < {percent} counter drop"
        words = self.command(number, ["nft", rules])
        subprocess.run(words, check=True, capture_output=True)

    def kill(self, number: int) -> None:
        """End every process of a host at once, as a power cut would."""
        for pid in self.pids(number):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def pids(self, number: int) -> list[int]:
        """Processes of a host."""
        found = subprocess.run(
            ["ip", "netns", "pids", self._names[number - 1]],
            check=True,
            capture_output=True,
            text=True,
        )
        return [int(pid) for pid in found.stdout.split()]

    def close(self) -> None:
        """End what still runs on them, and remove them; may be called twice."""
        for number, name in enumerate(self._names, 1):
            with contextlib.suppress(subprocess.CalledProcessError):
                self.kill(number)
                _ip("netns", "del", name)
        if self._program is not None:
            self._program.kill()
            self._program.communicate()
            self._program = None
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("netns", "del", self._switch)


def address(number: int) -> str:
    """Of a host."""
    return f"10.77.0.{number}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def switch(delay_seconds: float, names: Sequence[str]) -> None:
    """Pass frames between the hosts' interfaces, each when its time has come, until the input closes."""
    ports = [_open_tap(name) for name in names]
    owners: dict[bytes, int] = {}
    """Address of an interface to its port."""
    waiting: list[tuple[float, int, int, bytes]] = []
    """Due, a number that keeps their order, port, frame."""
    count, ended = 0, sys.stdin.fileno()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        wait = None if not waiting else max(0.0, waiting[0][0] - time.monotonic())
        ready = select.select([*ports, ended], [], [], wait)[0]
        if ended in ready:
            return
        now = time.monotonic()
        for port in ready:
            for frame in _read_all(port):
                owners[frame[6:12]] = port
                to = owners.get(frame[:6])
                for other in ports if to is None else (to,):
                    if other != port:
                        count += 1
                        heapq.heappush(waiting, (now + delay_seconds, count, other, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, port, frame = heapq.heappop(waiting)
            with contextlib.suppress(OSError):  # the interface is down, or full: the frame is lost
                os.write(port, frame)


def _open_tap(name: str) -> int:
    """An interface `eth0` in a namespace, and the descriptor of its other side."""
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    away = os.open(f"/run/netns/{name}", os.O_RDONLY)
    _setns(away)
    try:
        port = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(port, _TUNSETIFF, struct.pack("16sH", b"eth0", _TAP))
    finally:
        _setns(home)
        os.close(home)
        os.close(away)
    return port


def _setns(namespace: int) -> None:
    import ctypes

    libc: Any = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, 0):
        raise OSError(ctypes.get_errno(), "setns")


def _read_all(port: int) -> list[bytes]:
    frames = []
    with contextlib.suppress(BlockingIOError):
        while len(frames) < 1000:
            frames.append(os.read(port, _FRAME_BYTES))
    return frames


if __name__ == "__main__":
    switch(float(sys.argv[1]), sys.argv[2:])
