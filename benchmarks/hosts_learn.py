"""CartPole and Pong, as they are, on a Ray cluster of three hosts; results and curves into hosts_learn.json.

    python benchmarks/hosts_learn.py [cartpole] [pong] [--seeds 1] [--gpu --out hosts_learn-gpu.json]

The hosts are network namespaces. Apart: training on the first, policy workers on the second, actors on the third.
Inline: actors on the second and third that answer themselves. Mixed: actors and policy workers on several, with
trainers beside some of them. CartPole must be solved; Pong, by the light encoder, must reach a mean return of -15 over 100
episodes, where a random policy has -20.3 to -20.7. Every block must be accounted for. Resumable. Needs root and iproute2.
`--gpu`: of a machine with 16 cores and a GPU, which every host has shares of; there Pong must reach 18.
"""

import argparse
import json
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from srl.testing.ray_hosts import RayHosts
from srl.tools.bench.report import host

HERE = Path(__file__).parent
HOST = host()
LEDGER = ("consumed", "dropped", "lost", "in_flight")
WHERE = {
    "apart": ({"trainers": [1], "policies": [2], "actors": [3]}, "--inference shm"),
    "inline": ({"trainers": [1], "actors": [2, 3]}, "--inference inline"),
    "mixed": (
        {"trainers": [1], "policies": [1, 2], "actors": [1, 2, 3]},
        "--inference shm --policies.count 2",
    ),
}
OPTIONS = {
    "cartpole": "--evaluation.episodes 20",
    "pong": (
        "--algorithm.encoder light --precision bf16 --stop.return -15 --stop.env-steps 3000000 "
        "--evaluation.episodes 0"
    ),
}
ACTORS = {"apart": 2, "inline": 2, "mixed": 3}
GOALS = {"cartpole": 475.0, "pong": -15.0}
WITH_GPU = {
    "cartpole": OPTIONS["cartpole"],
    "pong": (
        "--actors.envs 32 --algorithm.rollout 32 --algorithm.batch-size 8192 "
        "--algorithm.minibatch-size 1024 --algorithm.learning-rate 5e-4 --stop.return 18 "
        "--stop.env-steps 6000000 --evaluation.episodes 20"
    ),
}
"""As in pong.py."""
ON_GPU = "--trainers.device cuda --trainers.gpus 0.5"
ANSWERS_ON_GPU = "--policies.device cuda --policies.gpus 0.25"
ACTORS_WITH_GPU, GOAL_WITH_GPU = 12, 18.0
SECONDS = 4800


def command(name: str, where: str, *, gpu: bool) -> tuple[str, float]:
    """Of a run, and the return that it must reach."""
    inference = WHERE[where][1]
    if not gpu:
        return f"{inference} {OPTIONS[name]} --actors.count {ACTORS[where]}", GOALS[name]
    devices = ON_GPU if "inline" in inference else f"{ON_GPU} {ANSWERS_ON_GPU}"
    count = ACTORS_WITH_GPU if name == "pong" else ACTORS[where]
    goal = GOAL_WITH_GPU if name == "pong" else GOALS[name]
    return f"{inference} {devices} {WITH_GPU[name]} --actors.count {count}", goal


def one(hosts: RayHosts, name: str, where: str, seed: int, *, gpu: bool) -> dict[str, Any]:
    """What became of one run."""
    places = WHERE[where][0]
    options, goal = command(name, where, gpu=gpu)
    words = f"train {name} {options} --seed {seed}"
    with tempfile.TemporaryDirectory() as place:
        folder, log = Path(place) / "run", Path(place) / "log"
        process = hosts.start([*words.split(), *hosts.options(places), "--out", str(folder)], log)
        code = process.wait(SECONDS)
        if code not in (0, 1):  # 1: it did not reach what was asked for
            sys.exit(log.read_text()[-4000:])
        summary = json.loads((folder / "summary.json").read_text())
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    reached = summary["eval_return"] if name == "cartpole" else summary["mean_return"]
    counts = {f"blocks_{word}": summary[f"blocks_{word}"] for word in ("sent", *LEDGER)}
    adds_up = counts["blocks_sent"] == sum(counts[f"blocks_{word}"] for word in LEDGER)
    steps = max(1, len(rows) // 40)
    return {
        "experiment": name,
        "where": where,
        "seed": seed,
        "host": HOST,
        "command": f"srl {words} --launcher ray",
        "status": summary["status"],
        "reached": reached,
        "holds": reached >= goal and adds_up and not summary["blocks_duplicated"],
        **{word: summary[word] for word in ("seconds", "env_steps", "env_steps_per_second")},
        **counts,
        "curve": [[row["env_steps"], row.get("mean_return")] for row in rows[::steps]],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("experiments", nargs="*", default=["cartpole", "pong"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "hosts_learn.json")
    options = parser.parse_args()
    done = json.loads(options.out.read_text()) if options.out.exists() else {"runs": []}
    known = {(run["experiment"], run["where"], run["seed"]) for run in done["runs"]}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # hosts are closed then, too
    hosts = RayHosts([16, 16, 16] if options.gpu else [6, 6, 6])
    try:
        for name in options.experiments:
            for where in WHERE:
                for seed in range(options.seeds):
                    if (name, where, seed) in known:
                        continue
                    found = one(hosts, name, where, seed, gpu=options.gpu)
                    done["runs"].append(found)
                    options.out.write_text(json.dumps(done, indent=1) + "\n")
                    print({key: found[key] for key in found if key != "curve"}, flush=True)
    finally:
        hosts.close()
    return 0 if all(run["holds"] for run in done["runs"]) else 1


if __name__ == "__main__":
    sys.exit(main())
