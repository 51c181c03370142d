"""Learning curves, three seeds each: CartPole in every topology, Acrobot, and other sets of cases.

Resumable: results accumulate in SET.json (the set without a name: learn.json); a case that is there is
not run again.

    python benchmarks/learn.py [recall|match|half-cheetah|algorithms] [--only CASE] [--again] [--parallel N]
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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
SETS = {
    "learn": LEARN,
    "recall": {
        "gru": f"{RECALL} --algorithm.memory gru",
        "lstm": f"{RECALL} --algorithm.memory lstm",
        "gru, burn-in of 8": f"{RECALL} --algorithm.memory gru --algorithm.burn-in 8",
        "gtrxl": f"{RECALL} --algorithm.memory gtrxl --launcher inline",
        "no memory": f"{RECALL} --algorithm.memory none",
    },
    "half-cheetah": {"half-cheetah": "train half-cheetah"},
    "algorithms": {
        name: f"train {name} --launcher inline"
        for name in (
            "cartpole-a2c",
            "cartpole-impala",
            "cartpole-appo",
            "cartpole-ppg",
            "cartpole-dqn",
            "cartpole-rainbow",
            "cartpole-r2d2",
            "acrobot-dqn",
            "recall-r2d2",
            "pendulum-sac",
            "pendulum-td3",
            "half-cheetah-sac",
            "half-cheetah-td3",
        )
    },
    "match": {
        f"{case}, {launcher}": f"train {HERE}/match.py:{case} --launcher {launcher}"
        for case in ("shared", "separate", "against")
        for launcher in ("inline", "local")
    },
}


def run(words: str, seed: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "srl.cli", *words.split()]
        command += ["--seed", str(seed), "--out", str(out)]
        code = subprocess.run(command, capture_output=True, timeout=3600, check=False).returncode
        summary = json.loads((out / "summary.json").read_text())
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    if len(summary["policies"]) > 1:
        mine = next(name for name, facts in summary["policies"].items() if not facts["frozen"])
        rows = [row for row in rows if row["policy"] == mine]
    curve = [(row["env_steps"], row["mean_return"]) for row in rows]
    step = max(1, len(curve) // 40)
    keys = ("policies", "eval_return", "env_steps", "seconds", "staleness_max", "status", "reason")
    ledger = {k: v for k, v in summary.items() if k.startswith("blocks_")}
    facts = {key: summary[key] for key in keys}
    host = {"cores": os.cpu_count(), "python": platform.python_version()}
    return {"seed": seed, "exit": code, "host": host, **facts, **ledger, "curve": curve[::step]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("set", nargs="?", default="learn", choices=list(SETS))
    parser.add_argument("--again", action="store_true", help="run every case anew")
    parser.add_argument("--only", action="append", help="of these cases alone")
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time")
    options = parser.parse_args()
    file = HERE / f"{options.set}.json"
    results = {} if options.again or not file.exists() else json.loads(file.read_text())
    if options.set == "match" and not OPPONENT.exists():
        prepare = f"train {HERE}/match.py:opponent --launcher inline --out {OPPONENT}"
        subprocess.run([sys.executable, "-m", "srl.cli", *prepare.split()], check=True)
    left = []
    for case, words in SETS[options.set].items():
        if options.only and case not in options.only:
            continue
        command = words.replace(str(HERE), "benchmarks")
        done = results.setdefault(case, {"command": f"srl {command}", "runs": []})
        known = {entry["seed"] for entry in done["runs"]}
        left += [(case, words, seed) for seed in SEEDS if seed not in known]

    def run_one(which: tuple[str, str, int]) -> tuple[str, dict]:
        case, words, seed = which
        return case, run(words, seed)

    with ThreadPoolExecutor(options.parallel) as pool:
        for case, entry in pool.map(run_one, left):
            results[case]["runs"].append(entry)
            file.write_text(json.dumps(results, indent=1) + "\n")
            print(
                f"{case}, seed {entry['seed']}: return {entry['eval_return']} at "
                f"{entry['env_steps']:,} env steps, exit {entry['exit']}, "
                f"{entry['seconds']:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
