"""What stale batches cost: CartPole by PPO, IMPALA and APPO at `max_staleness` 0, 1, 4 and 16.

In one process, so that a run is the same every time. Every group of envs fills a batch of its own, and there
are `max_staleness + 1` of them: once they have spread out, every batch is as old as it may be.
`staleness_mean` of each run says how old they were. Other options are the recipes'.

Resumable: results accumulate in staleness.json; a run that is there is not made again. About a minute a run
on one core: 36 runs.

    python benchmarks/staleness.py [--only WORD] [--again]
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FILE = Path(__file__).with_suffix(".json")
ALGORITHMS = {"ppo": "cartpole", "impala": "cartpole-impala", "appo": "cartpole-appo"}
STALENESS = (0, 1, 4, 16)
SEEDS = (1, 2, 3)
LANES, ROLLOUT, ENV_STEPS = 16, 32, 200_000
KEPT = ("eval_return", "mean_return", "env_steps", "staleness_mean", "staleness_max", "seconds")


def options(algorithm: str, staleness: int) -> list[str]:
    """The command of a cell, but for its seed and folder."""
    sizes = {
        "actors.groups": staleness + 1,
        "actors.envs": LANES * (staleness + 1),
        "algorithm.rollout": ROLLOUT,
        "algorithm.batch-size": LANES * ROLLOUT,
        "stop.env-steps": ENV_STEPS,
        "max-staleness": staleness,
    }
    words = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    return ["train", ALGORITHMS[algorithm], "--launcher", "inline", *words]


def run(words: list[str], seed: int) -> dict:
    """One run: what became of it, and its curve."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "srl.cli", *words]
        command += ["--seed", str(seed), "--out", str(out)]
        code = subprocess.run(command, capture_output=True, timeout=3600, check=False).returncode
        summary = json.loads((out / "summary.json").read_text())
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    drift = [row["log_prob_drift"] for row in rows]
    curve = [(row["env_steps"], row["mean_return"]) for row in rows]
    facts = {name: summary[name] for name in KEPT}
    facts["log_prob_drift"] = sum(drift) / len(drift)
    return {"seed": seed, "exit": code, **facts, "curve": curve[:: max(1, len(curve) // 40)]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="cells whose name has this: appo, 'staleness 4'")
    parser.add_argument("--again", action="store_true", help="make every run anew")
    chosen = parser.parse_args()
    results = {} if chosen.again or not FILE.exists() else json.loads(FILE.read_text())
    host = {"cores": os.cpu_count(), "python": platform.python_version()}
    for algorithm in ALGORITHMS:
        for staleness in STALENESS:
            name, words = f"{algorithm}, staleness {staleness}", options(algorithm, staleness)
            if f" {chosen.only}" not in f" {name}":  # ppo is not appo
                continue
            cell = {"command": f"srl {' '.join(words)}", "host": host, "runs": []}
            cell = results.setdefault(name, cell)
            known = {entry["seed"] for entry in cell["runs"]}
            for seed in SEEDS:
                if seed in known:
                    continue
                began = time.monotonic()
                entry = run(words, seed)
                cell["runs"].append(entry)
                FILE.write_text(json.dumps(results, indent=1) + "\n")
                print(
                    f"{name}, seed {seed}: return {entry['eval_return']}, staleness "
                    f"{entry['staleness_mean']:.1f}, {time.monotonic() - began:.0f} s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
