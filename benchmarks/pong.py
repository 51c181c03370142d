"""Pong by PPO on a GPU host: the curve, wall time and env steps/s, into pong.json.

Resumable: a run that was cut off goes on from its newest checkpoint.

    python benchmarks/pong.py [--folder runs/pong] [--seconds 520] [--a.b value ...]

Options it does not know are handed to `srl train` and `srl resume`. Needs the extra `atari`.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
RECIPE = (
    "srl train pong --trainers.device cuda --policies.device cuda --inference shm "
    "--actors.count 16 --actors.envs 32 --algorithm.rollout 32 --algorithm.batch-size 8192 "
    "--algorithm.minibatch-size 1024 --algorithm.learning-rate 5e-4 --stop.return 19.5 "
    "--evaluation.episodes 20 --checkpoint.seconds 60"
)
"""For 16 cores and one GPU: an actor a core; a policy worker and a trainer share the GPU."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("runs/pong"))
    parser.add_argument("--seconds", type=float, default=520, help="stop, resumable, after this")
    parser.add_argument("--results", type=Path, default=HERE / "pong.json")
    options, rest = parser.parse_known_args()
    folder, words = options.folder, RECIPE.split()[1:]
    words = ["resume", str(folder)] if folder.exists() else [*words, "--out", str(folder)]
    process = subprocess.Popen([sys.executable, "-m", "srl.cli", *words, *rest])
    try:
        code = process.wait(timeout=options.seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)  # writes a checkpoint and ends
        code = process.wait(timeout=120)
    options.results.write_text(json.dumps(result(folder, rest, code), indent=1) + "\n")


def result(folder: Path, rest: list[str], code: int) -> dict:
    """What the run's folder says."""
    import torch

    summary = json.loads((folder / "summary.json").read_text())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    curve = [
        (row["env_steps"], round(row["time"]["seconds"], 1), row["mean_return"]) for row in rows
    ]
    step = max(1, len(curve) // 100)
    first = next((point for point in curve if (point[2] or -21) >= 18), None)
    config = json.loads((folder / "config.json").read_text())
    return {
        "command": " ".join([RECIPE, *rest]),
        "host": {
            "cores": os.cpu_count(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            "torch": torch.__version__,
        },
        "exit": code,
        "reached_18_at": first and {"env_steps": first[0], "seconds": first[1]},
        **{
            key: summary[key]
            for key in (
                "status",
                "reason",
                "seed",
                "eval_return",
                "mean_return",
                "env_steps",
                "env_steps_per_second",
                "seconds",
                "version",
                "updates",
                "episodes",
                "staleness_mean",
                "staleness_max",
                "bottleneck",
                "time_split",
            )
        },
        "blocks": {k: v for k, v in summary.items() if k.startswith("blocks_")},
        "actors": config["actors"],
        "algorithm": config["algorithm"],
        "curve": [*curve[::step], *curve[-1:]],
    }


if __name__ == "__main__":
    main()
