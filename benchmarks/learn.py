"""Learning curves, three seeds each: CartPole in every topology, Acrobot, and other sets of cases.

Resumable: results accumulate in SET.json (the set without a name: learn.json); a run that is there is
not made again. How long it took is said at the end; the runs of `algorithms` take a core each.

    python benchmarks/learn.py [recall|match|half-cheetah|algorithms] [--only CASE] [--again] [--parallel N]

`benchmarks/tables.py` writes what `algorithms` found into the pages of docs/algorithms.
"""

import argparse
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from running import HOST, curve, run_all, train, write

HERE = Path(__file__).parent
SEEDS = (1, 2, 3)
OPPONENT = Path("runs/match-opponent")  # as in match.py
RECALL = f"train {HERE}/recall.py:recall"
LEARN = {
    "cartpole inline": "train cartpole --launcher inline",
    "cartpole local, inference inline": "train cartpole --launcher local --inference inline",
    "cartpole local, 1 policy worker": "train cartpole --launcher local --inference shm",
    "cartpole local, 2 policy workers": (
        "train cartpole --launcher local --inference shm --policies.count 2"
    ),
    "cartpole local, 2 actors": "train cartpole --launcher local --actors.count 2 --actors.envs 16",
    "acrobot local, inference inline": "train acrobot --launcher local",
}
WANTED = {
    "cartpole-a2c": 475,
    "cartpole-impala": 475,
    "cartpole-appo": 475,
    "cartpole-ppg": 475,
    "cartpole-dqn": 475,
    "cartpole-rainbow": 475,
    "cartpole-r2d2": 475,
    "acrobot-dqn": -100,
    "recall-gtrxl": 0.9,
    "recall-r2d2": 0.9,
    "pendulum-sac": -200,
    "pendulum-td3": -200,
    "pendulum-ddpg": -200,
    "half-cheetah-sac": None,  # to be compared with Stable-Baselines3's: beside_sb3.py
    "half-cheetah-td3": None,
}
"""Case of the set `algorithms`, a recipe, to the return it should reach."""
STEPS = {"half-cheetah-sac": 100_000, "half-cheetah-td3": 100_000}
"""Where they are fewer than the recipe's."""
SETS = {
    "learn": LEARN,
    "recall": {
        "gru": f"{RECALL} --algorithm.memory gru",
        "lstm": f"{RECALL} --algorithm.memory lstm",
        "gru, burn-in of 8": f"{RECALL} --algorithm.memory gru --algorithm.burn-in 8",
        "gtrxl": f"{RECALL} --algorithm.memory gtrxl --launcher inline",
        "no memory": f"{RECALL} --algorithm.memory none --algorithm.memory-size 64",
    },
    "half-cheetah": {"half-cheetah": "train half-cheetah"},
    "algorithms": {
        name: f"train {name} --launcher inline"
        + (f" --stop.env-steps {STEPS[name]}" if name in STEPS else "")
        for name in WANTED
    },
    "match": {
        f"{case}, {launcher}": f"train {HERE}/match.py:{case} --launcher {launcher}"
        for case in ("shared", "separate", "against")
        for launcher in ("inline", "local")
    },
}


def run(words: str, seed: int, wanted: float | None) -> dict[str, Any]:
    summary, rows, code = train(words.split(), seed)
    if len(summary["policies"]) > 1:
        mine = next(name for name, facts in summary["policies"].items() if not facts["frozen"])
        rows = [row for row in rows if row["policy"] == mine]
    keys = ("policies", "eval_return", "env_steps", "seconds", "staleness_max", "status", "reason")
    ledger = {k: v for k, v in summary.items() if k.startswith("blocks_")}
    facts = {key: summary[key] for key in keys}
    if wanted is not None:
        facts["reached_at"] = reached(rows, wanted)
    return {"seed": seed, "exit": code, "host": HOST, **facts, **ledger, "curve": curve(rows)}


def reached(rows: list[dict[str, Any]], wanted: float) -> int | None:
    """Env steps after which the mean return of the last 100 training episodes was what is wanted."""
    known = (row for row in rows if row["mean_return"] is not None)
    return next((row["env_steps"] for row in known if row["mean_return"] >= wanted), None)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("set", nargs="?", default="learn", choices=list(SETS))
    parser.add_argument("--again", action="store_true", help="run these cases anew")
    parser.add_argument(
        "--only", action="append", help="this case alone; may be given several times"
    )
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time")
    options = parser.parse_args()
    file = HERE / f"{options.set}.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    for case in (options.only or SETS[options.set]) if options.again else ():
        results.pop(case, None)
    if options.set == "match" and not OPPONENT.exists():
        prepare = f"train {HERE}/match.py:opponent --launcher inline --out {OPPONENT}"
        subprocess.run([sys.executable, "-m", "srl.cli", *prepare.split()], check=True)
    jobs, runs_of = {}, {}
    for seed in SEEDS:  # of all cases the first, then of all the second
        for case, words in SETS[options.set].items():
            if options.only and case not in options.only:
                continue
            wanted = WANTED.get(case) if options.set == "algorithms" else None
            command = words.replace(str(HERE), "benchmarks")
            done = results.setdefault(case, {"command": f"srl {command}", "runs": []})
            if wanted is not None:
                done["wanted"] = wanted
            if seed not in {entry["seed"] for entry in done["runs"]}:
                name = f"{case}, seed {seed}"
                jobs[name], runs_of[name] = partial(run, words, seed, wanted), done["runs"]

    def keep(name: str, entry: dict[str, Any]) -> str:
        runs_of[name].append(entry)
        runs_of[name].sort(key=lambda entry: entry["seed"])
        write(file, results)
        return (
            f"return {entry['eval_return']} at {entry['env_steps']:,} env steps, exit "
            f"{entry['exit']}, {entry['seconds']:.0f} s"
        )

    return min(1, run_all(jobs, keep, options.parallel))


if __name__ == "__main__":
    sys.exit(main())
