"""Learning curves: every topology on CartPole, three seeds each, and Acrobot.

Resumable: results accumulate in learn.json; a case that is there is not run again.

    python benchmarks/learn.py [--again]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "learn.json"
SEEDS = (1, 2, 3)
CASES = {
    "cartpole inline": "train cartpole --launcher inline",
    "cartpole local, inference inline": "train cartpole --launcher local --inference inline",
    "cartpole local, 1 policy worker": "train cartpole --launcher local --inference shm",
    "cartpole local, 2 policy workers": (
        "train cartpole --launcher local --inference shm --policies.count 2"
    ),
    "cartpole local, 2 actors": "train cartpole --launcher local --actors.count 2 --actors.envs 16",
    "acrobot local, inference inline": "train acrobot --launcher local",
}


def run(words: str, seed: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "srl.cli", *words.split()]
        command += ["--seed", str(seed), "--out", str(out)]
        code = subprocess.run(command, capture_output=True, timeout=900, check=False).returncode
        summary = json.loads((out / "summary.json").read_text())
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    curve = [(row["env_steps"], row["mean_return"]) for row in rows]
    step = max(1, len(curve) // 40)
    keys = ("eval_return", "env_steps", "seconds", "staleness_max", "status", "reason")
    ledger = {k: v for k, v in summary.items() if k.startswith("blocks_")}
    facts = {key: summary[key] for key in keys}
    return {"seed": seed, "exit": code, **facts, **ledger, "curve": curve[::step]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--again", action="store_true", help="run every case anew")
    again = parser.parse_args().again
    results = {} if again or not RESULTS.exists() else json.loads(RESULTS.read_text())
    for case, words in CASES.items():
        done = results.setdefault(case, {"command": f"srl {words}", "runs": []})
        for seed in SEEDS:
            if any(entry["seed"] == seed for entry in done["runs"]):
                continue
            started = time.monotonic()
            done["runs"].append(run(words, seed))
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
            entry = done["runs"][-1]
            print(
                f"{case}, seed {seed}: return {entry['eval_return']} at {entry['env_steps']:,} "
                f"env steps, exit {entry['exit']}, {time.monotonic() - started:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
