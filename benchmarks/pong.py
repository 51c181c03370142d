"""Pong on a GPU host by PPO, APPO, Rainbow or Ape-X: the curve, wall time and env steps/s, into RECIPE.json.

Resumable: a run that was cut off goes on from its newest checkpoint (Rainbow's and Ape-X's with an empty buffer,
which their recipes do not save).

    python benchmarks/pong.py [pong|pong-appo|pong-rainbow|pong-apex] [--folder runs/RECIPE] [--seconds 520] [--a.b value ...]

Options it does not know are handed to `srl train` and `srl resume`. Needs the extra `atari`.
`benchmarks/tables.py` writes what it found into docs/algorithms/README.md.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
GPU = "--trainers.device cuda --policies.device cuda --inference shm"
LARGE = (
    "--actors.envs 32 --algorithm.rollout 32 --algorithm.batch-size 8192 "
    "--algorithm.minibatch-size 1024 --algorithm.learning-rate 5e-4 --stop.return 19.5"
)
BESIDE = "--evaluation.count 1 --evaluation.every 700"
"""Returns of training are those of episodes that explore: how good the policy is, an evaluator says."""
REPLAYED = "--actors.count 4 --actors.envs 32 --buffers.count 2 --precision tf32"
"""Eight processes, which half of the cores are enough for."""
ENDING = "--evaluation.episodes 20 --checkpoint.seconds 60"
RECIPES = {
    "pong": f"srl train pong {GPU} --actors.count 16 {LARGE} {ENDING}",
    "pong-appo": f"srl train pong-appo {GPU} --actors.count 14 {LARGE} {ENDING}",
    "pong-rainbow": f"srl train pong-rainbow {GPU} {REPLAYED} {BESIDE} {ENDING}",
    "pong-apex": f"srl train pong-apex {GPU} {REPLAYED} {BESIDE} {ENDING}",
}
"""For 16 cores and one GPU: a policy worker and a trainer share it."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe", nargs="?", default="pong", choices=list(RECIPES))
    parser.add_argument("--folder", type=Path, help="the run's; runs/RECIPE if not given")
    parser.add_argument("--seconds", type=float, default=520, help="stop, resumable, after this")
    parser.add_argument("--results", type=Path, help="RECIPE.json beside this file if not given")
    options, rest = parser.parse_known_args()
    folder, recipe = options.folder or Path("runs") / options.recipe, RECIPES[options.recipe]
    words = recipe.split()[1:]
    words = ["resume", str(folder)] if folder.exists() else [*words, "--out", str(folder)]
    process = subprocess.Popen([sys.executable, "-m", "srl.cli", *words, *rest])
    try:
        code = process.wait(timeout=options.seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)  # writes a checkpoint and ends
        code = process.wait(timeout=120)
    if not (folder / "summary.json").exists():
        sys.exit(f"srl ended with exit code {code} and without a result: what it said is above")
    found = result(folder, " ".join([recipe, *rest]), code)
    file = options.results or HERE / f"{options.recipe}.json"
    file.write_text(json.dumps(found, indent=1) + "\n")


def rows_of(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def result(folder: Path, command: str, code: int) -> dict:
    """What the run's folder says."""
    import torch

    summary = json.loads((folder / "summary.json").read_text())
    rows, played = rows_of(folder / "metrics.jsonl"), rows_of(folder / "evaluations.jsonl")
    curve = [
        (row["env_steps"], round(row["time"]["seconds"], 1), row["mean_return"]) for row in rows
    ]
    step = max(1, len(curve) // 100)
    first = next((point for point in curve if (point[2] or -21) >= 18), None)
    evaluations = [(row["env_steps"], row["eval_return"]) for row in played]
    judged = next((steps for steps, found in evaluations if found >= 18), None)
    config = json.loads((folder / "config.json").read_text())
    return {
        "command": command,
        "host": {
            "cores": os.cpu_count(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            "torch": torch.__version__,
        },
        "exit": code,
        "reached_18_at": first and {"env_steps": first[0], "seconds": first[1]},
        "evaluated_18_at": judged,
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
        "evaluations": evaluations,
    }


if __name__ == "__main__":
    main()
