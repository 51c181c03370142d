"""`srl bench scale`: thousands of clients against one controller, its trainers and a policy worker.

Every size is a run of its own: a real controller, a real host with trainers, a policy worker and the source of
parameters, and node agents with 125 light clients each, several agents a process (`crowd.py`). What a client
costs must not grow with how many there are.
"""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from srl.core.checks import check_at_least
from srl.core.errors import ConfigError, WorkerError
from srl.launch.host.process import thread_environment
from srl.tools.bench.plot import write_bars
from srl.tools.bench.report import host, print_table, say, write_json
from srl.tools.bench.scale_run import ScaleOrder
from srl.tools.words import read_options

USAGE = (
    "srl bench scale [--clients 1000,5000,15000] [--agents N] [--trainers 4] [--processes 4] "
    "[--seconds 60] [--block-seconds 10] [--rows 32] [--megabytes 6] [--json F.json]"
)
_CLIENTS_AN_AGENT = 125
_OPTION_OF = {"crowds": "processes", "seconds_a_block": "block-seconds"}
_START_SECONDS = 600.0
"""For a run to start and to end, beside its window."""
_STOP_SECONDS = 60.0
_OWN = {
    "clients": str,
    "agents": int,
    "trainers": int,
    "processes": int,
    "seconds": float,
    "block-seconds": float,
    "rows": int,
    "megabytes": float,
    "json": str,
}


def main(words: Sequence[str]) -> int:
    """Entry point of the command."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what it has started ends, too
    own, rest = read_options(words, _OWN)
    if rest:
        raise ConfigError(f"srl bench scale knows no {rest[0]!r}: {USAGE}")
    sizes = sizes_of(own.get("clients", "1000,5000,15000"))
    settings = {
        "trainers": own.get("trainers", 4),
        "crowds": own.get("processes", 4),
        "seconds": own.get("seconds", 60.0),
        "seconds_a_block": own.get("block-seconds", 10.0),
        "rows": own.get("rows", 32),
        "megabytes": own.get("megabytes", 6.0),
    }
    for name in ("trainers", "crowds", "rows"):
        check_at_least(_OPTION_OF.get(name, name), settings[name], 1)
    for name in ("seconds", "seconds_a_block", "megabytes"):
        check_at_least(_OPTION_OF.get(name, name), settings[name], 0.01)
    check_at_least("agents", own.get("agents", 1), 1)
    path = Path(own["json"]) if "json" in own else None
    result = resumed(path, settings)
    for clients in sizes:
        agents = own.get("agents") or -(-clients // _CLIENTS_AN_AGENT)
        same = (clients, agents)
        if any((row["clients"], row["agents"]) == same for row in result["sizes"]):
            say(f"{clients} clients of {agents} agents: measured before")
            continue
        result["sizes"].append(
            {
                **measure(clients, agents, settings),
                "commit": host()["commit"],
            }  # of each, as it may go on later
        )
        result["sizes"].sort(key=lambda row: row["clients"])
        if path is not None:
            write_json(path, result)
    show(result)
    if path is not None:
        plot(result, path.with_suffix(".svg"))
    return 0 if all(is_sound(row) for row in result["sizes"]) else 1


def sizes_of(text: str) -> list[int]:
    """Numbers of clients, as typed; raises ConfigError where they are none."""
    try:
        sizes = [int(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(f"--clients {text} is not of whole numbers: {USAGE}") from None
    if min(sizes) < 1:
        raise ConfigError(f"--clients {text}: there is at least one")
    return sizes


def resumed(path: Path | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured before with the same settings, or nothing."""
    result = {"command": "scale", "settings": dict(settings), "host": host(), "sizes": []}
    if path is None or not path.exists():
        return result
    before = msgspec.json.decode(path.read_bytes())
    return before if before.get("settings") == dict(settings) else result


def measure(clients: int, agents: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run one size in a process of its own; what it found. Nothing of it is left behind."""
    say(f"{clients} clients of {agents} agents ...")
    with tempfile.TemporaryDirectory(prefix="srl-scale-") as place:
        here = Path(place)
        order = ScaleOrder(
            clients=clients, agents=agents, folder=str(here / "run"), **dict(settings)
        )
        (here / "order.json").write_bytes(msgspec.json.encode(order))
        found = here / "found.json"
        program = [sys.executable, "-P", "-m", "srl.tools.bench.scale_run"]
        with (here / "log").open("wb") as log:
            process = subprocess.Popen(
                [*program, str(here / "order.json"), str(found)],
                stdout=log,
                stderr=log,
                env=thread_environment(1),
                start_new_session=True,
            )
        try:
            code = process.wait(_START_SECONDS + order.seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
        if code:
            said = (here / "log").read_text(errors="replace").strip().splitlines()
            raise WorkerError(f"{clients} clients: {said[-1] if said else f'exit code {code}'}")
        if code is None or not found.exists():
            raise WorkerError(f"{clients} clients: no result within {_START_SECONDS:.0f} s")
        return msgspec.json.decode(found.read_bytes())


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Have a run that still goes on end in order, and its processes with it."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()  # the rest ends with it: their inputs close, and the kernel tells them
            process.wait(5)


def is_sound(row: Mapping[str, Any]) -> bool:
    """Whether all came, and nothing was lost."""
    blocks = row["blocks"]
    accounted = sum(blocks[name] for name in ("consumed", "dropped", "lost", "in_flight"))
    return (
        row["registered"] == row["clients"]
        and blocks["sent"] == blocks["received"] == accounted
        and not blocks["lost"]
        and not blocks["duplicated"]
    )


def cost_of(row: Mapping[str, Any], *kinds: str) -> float:
    """Core-microseconds a client-second of these kinds of processes."""
    costs = row["core_microseconds_per_client_second"]
    return sum(costs.get(kind, 0.0) for kind in kinds)


def show(result: Mapping[str, Any]) -> None:
    """Print the table."""
    rows = []
    for row in result["sizes"]:
        delay, blocks = row["version_to_last_client_seconds"], row["blocks"]
        seconds = " / ".join("-" if s is None else f"{s:.2f}" for s in delay.values())
        rows.append(
            [
                f"{row['clients']:,}",
                f"{row['agents']}",
                f"{row['registered']:,}",
                f"{row['heartbeats_heard_per_second']:,.0f}",
                seconds,
                f"{row['rows_per_second']:,.0f}",
                f"{blocks['sent']:,} / {blocks['received']:,} / {blocks['lost']}",
                f"{row['cores']['controller']:.3f}",
                f"{row['megabytes']['controller']:,.0f}",
                f"{cost_of(row, 'controller'):.1f}",
                f"{cost_of(row, 'trainer'):.0f}",
                f"{cost_of(row, 'agents'):.0f}",
            ]
        )
    columns = ["clients", "agents", "came", "beats/s", "version to all, s", "rows/s"]
    columns += ["blocks sent/received/lost", "cores", "MB", "µs", "trainers µs", "agents µs"]
    title = "scale: cores and MB of the controller; core-µs a client-second; median / max seconds"
    print_table(title, columns, rows)


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Write what a client costs, by size."""
    kinds = ("controller", "trainer", "policy", "relay", "agents")
    bars = {
        f"{row['clients']:,} clients": {kind: cost_of(row, kind) for kind in kinds}
        for row in result["sizes"]
    }
    write_bars(path, "What a client costs", bars, unit="core-microseconds a client-second")
