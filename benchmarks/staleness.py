"""What stale batches cost: Acrobot by PPO, IMPALA and APPO at `max_staleness` 0, 1, 4 and 16.

In one process, so that a run is the same every time. Every group of envs fills a batch of its own, and there
are `max_staleness + 1` of them: once they have spread out, every batch is as old as it may be.
`staleness_mean` of each run says how old they were. Batches are small, so that the lanes of all groups are
few beside the steps of a run: with hundreds of lanes a run ends before most have seen two episodes, and
that is no matter of age. All options but the loss are the same for the three: each batch is passed over
once, in two steps.

Resumable: results accumulate in staleness.json; a run that is there is not made again. Some ten seconds a run
on one core: 36 runs. `benchmarks/tables.py` writes them into docs/algorithms/README.md.

    python benchmarks/staleness.py [--only WORD] [--again] [--parallel N]
"""

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from running import HOST, curve, run_all, train, write

FILE = Path(__file__).with_suffix(".json")
ALGORITHMS = {"ppo": "cartpole", "impala": "cartpole-impala", "appo": "cartpole-appo"}
STALENESS = (0, 1, 4, 16)
SEEDS = (1, 2, 3)
LANES, ROLLOUT, ENV_STEPS = 4, 32, 40_000
KEPT = ("eval_return", "mean_return", "env_steps", "staleness_mean", "staleness_max", "seconds")


def options(algorithm: str, staleness: int) -> list[str]:
    """The command of a cell, but for its seed and folder."""
    same = {
        "env.name": "gym/Acrobot-v1",
        "actors.groups": staleness + 1,
        "actors.envs": LANES * (staleness + 1),
        "algorithm.rollout": ROLLOUT,
        "algorithm.batch-size": LANES * ROLLOUT,
        "stop.env-steps": ENV_STEPS,
        "max-staleness": staleness,
        "algorithm.minibatch-size": 64,
        "algorithm.learning-rate": 1e-3,
        "algorithm.discount": 0.99,
        "algorithm.gae-lambda": 0.95,
        "algorithm.normalise-returns": True,
    }
    if algorithm != "impala":  # which has neither
        same |= {"algorithm.epochs": 1, "algorithm.clip-schedule": "constant"}
    words = [word for name, value in same.items() for word in (f"--{name}", str(value))]
    return ["train", ALGORITHMS[algorithm], "--launcher", "inline", *words]


def run(words: list[str], seed: int) -> dict[str, Any]:
    """One run: what became of it, and its curve."""
    summary, rows, code = train(words, seed)
    drift = [row["log_prob_drift"] for row in rows]
    facts = {name: summary[name] for name in KEPT}
    facts["log_prob_drift"] = sum(drift) / len(drift)
    return {"seed": seed, "exit": code, **facts, "curve": curve(rows)}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="cells whose name has this: appo, 'staleness 4'")
    parser.add_argument("--again", action="store_true", help="make every run anew")
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time, a core each")
    chosen = parser.parse_args()
    results = {} if chosen.again or not FILE.exists() else json.loads(FILE.read_text())
    jobs, runs_of = {}, {}
    for seed in SEEDS:
        for algorithm in ALGORITHMS:
            for staleness in STALENESS:
                name, words = f"{algorithm}, staleness {staleness}", options(algorithm, staleness)
                if f" {chosen.only}" not in f" {name}":  # ppo is not appo
                    continue
                cell = {"command": f"srl {' '.join(words)}", "host": HOST, "runs": []}
                runs = results.setdefault(name, cell)["runs"]
                if seed not in {entry["seed"] for entry in runs}:
                    name = f"{name}, seed {seed}"
                    jobs[name], runs_of[name] = partial(run, words, seed), runs

    def keep(name: str, entry: dict[str, Any]) -> str:
        runs_of[name].append(entry)
        runs_of[name].sort(key=lambda entry: entry["seed"])
        write(FILE, results)
        words = f"return {entry['eval_return']}, staleness {entry['staleness_mean']:.1f}"
        return f"{words}, {entry['seconds']:.0f} s"

    return min(1, run_all(jobs, keep, chosen.parallel))


if __name__ == "__main__":
    sys.exit(main())
