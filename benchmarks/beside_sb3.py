"""Learning beside Stable-Baselines3 from PyPI, in an environment of its own; results into beside_sb3.json.

    python benchmarks/beside_sb3.py [CASE ...] [--seeds 5] [--threads 1]

The same env, the same number of env steps, five seeds each, ours and theirs in turn, each by its own recipe: theirs are the
settings RL Baselines3 Zoo has tuned (peers/learn_sb3.py), ours the shipped experiment. What is compared is the mean return
of evaluation episodes by the final policy, without exploration; ours must be inside theirs' 95 % interval, or above.
Resumable: what is in the JSON is not run again.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from srl.tools.bench.peer_environments import Environments, default_cache
from srl.tools.bench.peer_settings import read_settings
from srl.tools.bench.report import host

HERE = Path(__file__).parent
FILE = HERE / "beside_sb3.json"
EPISODES = 100
CASES = {
    "cartpole-ppo": ("cartpole", 100_000),
    "cartpole-dqn": ("cartpole-dqn", 100_000),
    "pendulum-sac": ("pendulum-sac", 20_000),
    "pendulum-td3": ("pendulum-td3", 20_000),
    "half-cheetah-sac": ("half-cheetah-sac", 100_000),
    "half-cheetah-td3": ("half-cheetah-td3", 100_000),
}


def ours(experiment: str, steps: int, seed: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        words = [
            "train",
            experiment,
            "--launcher",
            "inline",
            "--seed",
            str(seed),
            "--out",
            str(out),
        ]
        words += ["--stop.env-steps", str(steps), "--stop.return", "None"]
        words += ["--evaluation.episodes", str(EPISODES)]
        command = [sys.executable, "-m", "srl.cli", *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        summary = json.loads((out / "summary.json").read_text())
    found = {"return": summary["eval_return"], "seconds": summary["seconds"]}
    return found | {"env_steps": summary["env_steps"]}


def theirs(python: Path, case: str, seed: int) -> dict[str, float]:
    script = [str(python), str(HERE / "peers" / "learn_sb3.py"), case, str(seed), str(EPISODES)]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(script, check=True, capture_output=True, text=True, env=clean)
    return json.loads(done.stdout.splitlines()[-1])


def interval(returns: list[float]) -> tuple[float, float]:
    """Of the mean, 95 %, by Student's t (2.776 for five seeds)."""
    quantiles = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 10: 2.262}
    if len(returns) < 2:
        return -np.inf, np.inf
    spread = quantiles.get(len(returns), 2.0) * np.std(returns, ddof=1) / np.sqrt(len(returns))
    return float(np.mean(returns) - spread), float(np.mean(returns) + spread)


def conclude(entry: dict[str, Any]) -> dict[str, Any]:
    mine, other = ([run["return"] for run in entry[side]] for side in ("srl", "sb3"))
    lowest, highest = interval(other)
    return {
        "srl_mean": float(np.mean(mine)),
        "srl_interval": interval(mine),
        "sb3_mean": float(np.mean(other)),
        "sb3_interval": (lowest, highest),
        "holds": float(np.mean(mine)) >= lowest,
        "seconds": {
            side: float(np.mean([r["seconds"] for r in entry[side]])) for side in ("srl", "sb3")
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], default=[])
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    folder = HERE / "peers"
    settings = read_settings(folder)
    environments = Environments(
        settings, folder, default_cache(), lambda words: print(words, flush=True)
    )
    python = environments.python("sb3")
    results: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {"cases": {}}
    results["host"] = host()
    for case in options.cases or CASES:
        experiment, steps = CASES[case]
        entry = results["cases"].setdefault(
            case,
            {
                "experiment": experiment,
                "env_steps": steps,
                "episodes": EPISODES,
                "srl": [],
                "sb3": [],
            },
        )
        for seed in range(1, options.seeds + 1):
            for side in ("srl", "sb3"):
                if any(run["seed"] == seed for run in entry[side]):
                    continue
                found = (
                    ours(experiment, steps, seed) if side == "srl" else theirs(python, case, seed)
                )
                entry[side].append({"seed": seed, **found})
                print(
                    f"{case} {side} seed {seed}: {found['return']:.1f}, {found['seconds']:.0f} s",
                    flush=True,
                )
                if entry["srl"] and entry["sb3"]:
                    entry["result"] = conclude(entry)
                FILE.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
