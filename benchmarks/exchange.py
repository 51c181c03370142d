"""What a sum over two trainers of one host takes: in memory they share, and by torch's gloo; results into exchange.json.

    python benchmarks/exchange.py [--rounds 5]

Both in the same two processes, in turns: numbers of a meeting, the gradient of CartPole's network, and of Pong's. The median round,
when the two do nothing else.
"""

import argparse
import json
import multiprocessing
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from srl.learning.parallel import BetweenHosts, OnOneHost, TrainerGroup
from srl.tools.bench.report import host, write_json

HERE = Path(__file__).parent
SIZES = {"8 numbers": 8, "37 kB": 9_155, "6.7 MB": 1_686_180}
TIMES = {8: 300, 9_155: 300, 1_686_180: 20}


def one(rank: int, folder: str, port: int, rounds: int, found: Any) -> None:
    torch.set_num_threads(1)
    points = {
        "memory": OnOneHost(Path(folder) / "ranks"),
        "gloo": BetweenHosts(f"tcp://127.0.0.1:{port}", "127.0.0.1"),
    }
    groups = {
        name: TrainerGroup(point, life=1, policy="main", rank=rank, size=2, device="cpu")
        for name, point in points.items()
    }
    for size, count in SIZES.items():
        tensor, times = torch.zeros(count), TIMES[count]
        for turn in range(rounds + 1):
            for name, group in groups.items():
                wall, cpu = time.perf_counter(), time.process_time()
                for _ in range(times):
                    group.learner.sum_(tensor)
                took = (time.perf_counter() - wall) / times, (time.process_time() - cpu) / times
                if turn and not rank:  # the first is to warm up
                    found.put((size, name, *took))
    for group in groups.values():
        group.close()
    if not rank:
        found.put(None)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=HERE / "exchange.json")
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    found = spawn.Queue()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    rows: dict[str, dict[str, list[tuple[float, float]]]] = {}
    with tempfile.TemporaryDirectory(prefix="srl-") as folder:
        ranks = [
            spawn.Process(target=one, args=(rank, folder, port, options.rounds, found))
            for rank in range(2)
        ]
        for rank in ranks:
            rank.start()
        while (row := found.get(timeout=120)) is not None:
            size, name, wall, cpu = row
            rows.setdefault(size, {}).setdefault(name, []).append((wall, cpu))
        for rank in ranks:
            rank.join(30)
    result: dict[str, Any] = {"host": host(), "rounds": options.rounds}
    for size, by_name in rows.items():
        result[size] = {
            name: {
                "us": round(1e6 * statistics.median(wall for wall, _ in took), 1),
                "core_us": round(1e6 * statistics.median(cpu for _, cpu in took), 1),
                "all_us": [round(1e6 * wall, 1) for wall, _ in took],
            }
            for name, took in by_name.items()
        }
        ratios = [g[0] / m[0] for g, m in zip(by_name["gloo"], by_name["memory"], strict=True)]
        result[size]["times as fast"] = round(statistics.median(ratios), 2)
    write_json(options.out, result)
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
