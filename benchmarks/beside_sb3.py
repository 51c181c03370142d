"""Learning beside Stable-Baselines3 from PyPI, in an environment of its own; results into beside_sb3.json.

    python benchmarks/beside_sb3.py [CASE ...] [--seeds 5] [--sides srl sb3] [--parallel N] [--python PATH]

The same env, the same number of env steps, five seeds each, a thread each, each by its own recipe: theirs are the settings
RL Baselines3 Zoo has tuned (peers/learn_sb3.py), ours the shipped experiment. What is compared is the mean return
of evaluation episodes by the final policy, without exploration; ours must be inside theirs' 95 % interval, or above.
Resumable: a run that is in the JSON is not made again, nor is one of ours that learn.py has made for algorithms.json (the same
recipe, seed and number of env steps). `benchmarks/tables.py` writes it into docs/algorithms/README.md.

Their environment is made where it is not there yet; on a host without a network give one by `--python`: an
interpreter that has stable-baselines3 (for HalfCheetah also gymnasium[mujoco]).
"""

import argparse
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from running import HOST, run_all, train, write

from srl.tools.bench.peer_environments import Environments, default_cache
from srl.tools.bench.peer_settings import read_settings

HERE = Path(__file__).parent
FILE = HERE / "beside_sb3.json"
LEARNED = HERE / "algorithms.json"
EPISODES = 100
CASES = {
    "cartpole-ppo": ("cartpole", 100_000),
    "cartpole-dqn": ("cartpole-dqn", 100_000),
    "pendulum-sac": ("pendulum-sac", 20_000),
    "pendulum-td3": ("pendulum-td3", 20_000),
    "half-cheetah-sac": ("half-cheetah-sac", 100_000),
    "half-cheetah-td3": ("half-cheetah-td3", 100_000),
}
QUANTILES = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306}
"""Of Student's t, 97.5 %, by the number of seeds."""


def ours(experiment: str, steps: int, seed: int) -> dict[str, Any]:
    if known := learned(experiment, steps, seed):
        return known
    words = ["train", experiment, "--launcher", "inline", "--stop.env-steps", str(steps)]
    words += ["--evaluation.episodes", str(EPISODES)]
    summary, _, _ = train(words, seed)
    return facts_of(summary) | {"host": HOST}


def facts_of(summary: dict[str, Any]) -> dict[str, Any]:
    names = {"return": "eval_return", "seconds": "seconds", "env_steps": "env_steps"}
    return {name: summary[key] for name, key in names.items()}


def learned(experiment: str, steps: int, seed: int) -> dict[str, Any] | None:
    """The run that learn.py has made, where that is the same."""
    known = json.loads(LEARNED.read_text()) if LEARNED.exists() else {}
    for run in known.get(experiment, {"runs": []})["runs"]:
        if run["seed"] == seed and steps <= run["env_steps"] < 1.01 * steps:
            return facts_of(run) | {"host": run["host"]}
    return None


def theirs(python: Path, case: str, seed: int) -> dict[str, Any]:
    script = [str(python), str(HERE / "peers" / "learn_sb3.py"), case, str(seed), str(EPISODES)]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(script, check=False, capture_output=True, text=True, env=clean)
    if done.returncode:
        raise RuntimeError(done.stderr[-800:])
    return json.loads(done.stdout.splitlines()[-1]) | {"host": HOST}


def interval(returns: list[float]) -> tuple[float, float]:
    """Of the mean of at least two, 95 %, by Student's t."""
    spread = QUANTILES.get(len(returns), 2.262) * np.std(returns, ddof=1) / np.sqrt(len(returns))
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


def installed() -> Path:
    """The interpreter of their environment, which is made if need be."""
    folder = HERE / "peers"
    say = partial(print, flush=True)
    return Environments(read_settings(folder), folder, default_cache(), say).python("sb3")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], default=[])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sides", nargs="+", choices=["srl", "sb3"], default=["srl", "sb3"])
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time, a core each")
    parser.add_argument("--python", type=Path, help="an interpreter that has stable-baselines3")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    python = options.python or (installed() if "sb3" in options.sides else Path(sys.executable))
    results: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {"cases": {}}
    jobs, place = {}, {}
    for seed in range(1, options.seeds + 1):
        for case in options.cases or CASES:
            experiment, steps = CASES[case]
            facts = {"experiment": experiment, "env_steps": steps, "episodes": EPISODES}
            entry = results["cases"].setdefault(case, {**facts, "srl": [], "sb3": []})
            sides = {
                "srl": partial(ours, experiment, steps, seed),
                "sb3": partial(theirs, python, case, seed),
            }
            for side, job in sides.items():
                if side in options.sides and seed not in {run["seed"] for run in entry[side]}:
                    name = f"{case}, {side}, seed {seed}"
                    jobs[name], place[name] = job, (entry, side, seed)

    def keep(name: str, found: dict[str, Any]) -> str:
        entry, side, seed = place[name]
        entry[side].append({"seed": seed, **found})
        entry[side].sort(key=lambda run: run["seed"])
        if min(len(entry["srl"]), len(entry["sb3"])) > 1:
            entry["result"] = conclude(entry)
        write(FILE, results)
        return f"return {found['return']:.1f}, {found['seconds']:.0f} s"

    return min(1, run_all(jobs, keep, options.parallel))


if __name__ == "__main__":
    sys.exit(main())
