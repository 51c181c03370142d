"""Hosts that are killed and links that are cut, as often as asked; accumulates into host_faults.json.

    python benchmarks/host_faults.py [--runs 50]

CartPole on three hosts (network namespaces, under Ray), with training on the first: at a random moment of each
run, by its seed, the host of the actors or that of the policy workers is killed (and two seconds later has a
Ray node again), or its link is cut for ten seconds. The run must go on, end `completed`, and hold the rules of the
chaos suite (`srl/testing/chaos/checker.py`); afterwards nothing may be left set aside in Ray. Resumable. Needs
root and iproute2.
"""

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from srl.testing.chaos.checker import Checker
from srl.testing.ray_hosts import RayHosts
from srl.tools.bench.report import host

HERE = Path(__file__).parent
CUT_SECONDS = 10.0
MAX_STALENESS = 1
"""CartPole's."""
INFERENCE = {
    "inline": (("--inference", "inline"), {"trainers": [1], "actors": [2, 3]}),
    "policy workers": (
        ("--inference", "shm"),
        {"trainers": [1], "policies": [2], "actors": [3]},
    ),
}
NOTHING_LEFT = """
import ray, sys, time
ray.init({address!r}, log_to_driver=False)
deadline = time.monotonic() + 30
while ray.available_resources().get("CPU") != ray.cluster_resources().get("CPU"):
    if time.monotonic() > deadline: sys.exit("cores are still set aside")
    time.sleep(0.2)
"""


def one(hosts: RayHosts, seed: int) -> dict:
    """What became of one run."""
    rng = random.Random(seed)
    inference = rng.choice(list(INFERENCE))
    victim, fault = rng.choice([2, 3]), rng.choice(["kill", "cut"])
    options, where = INFERENCE[inference]
    with tempfile.TemporaryDirectory() as place:
        folder, log = Path(place) / "run", Path(place) / "log"
        words = ["train", "cartpole", *hosts.options(where), *options, "--actors.count", "2"]
        words += ["--stop.return", "None", "--stop.env-steps", "500000"]
        words += ["--evaluation.episodes", "0", "--seed", str(seed), "--out", str(folder)]
        process = hosts.start(words, log)
        metrics, deadline = folder / "metrics.jsonl", time.monotonic() + 90
        while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(rng.uniform(0.0, 5.0))
        steps = json.loads(metrics.read_text().splitlines()[-1])["env_steps"]
        if fault == "kill":
            hosts.hosts.kill(victim)
            time.sleep(2.0)
            hosts.start_node(victim)
        else:
            hosts.hosts.cut(victim)
            time.sleep(CUT_SECONDS)
            hosts.hosts.heal(victim)
        checker = Checker(max_staleness=MAX_STALENESS)
        try:
            code = process.wait(300)
        except Exception:  # noqa: BLE001 - a run that does not end is what this looks for
            process.kill()
            code = process.wait(30)
        summary = json.loads((folder / "summary.json").read_text())
        is_over = not code and summary["status"] == "completed"
        words = f"exit code {code}, {summary['status']}: {summary['reason']}"
        checker.must("ends", is_over, words)
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        checker.told(rows, summary)
        if checker.violations:
            print(log.read_text()[-4000:])
    hosts.wait_for_nodes(3)
    left = hosts.run([sys.executable, "-c", NOTHING_LEFT.format(address=hosts.address)])
    checker.left("in Ray", left.stderr.strip().splitlines()[-1:] if left.returncode else None)
    names = ("seconds", "env_steps", "worker_restarts", "blocks_sent", "blocks_lost")
    return {
        "seed": seed,
        "inference": inference,
        "fault": f"{fault} {'actors' if victim in where['actors'] else 'policy workers'}",
        "at_env_steps": steps,
        **{name: summary[name] for name in names},
        "rules": dict(checker.seen),
        "violations": [str(violation) for violation in checker.violations],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--out", type=Path, default=HERE / "host_faults.json")
    options = parser.parse_args()
    done = json.loads(options.out.read_text()) if options.out.exists() else {"runs": []}
    done["host"] = host()
    left = set(range(options.runs)) - {run["seed"] for run in done["runs"]}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # hosts are closed then, too
    hosts = RayHosts([4, 4, 4])
    try:
        for seed in sorted(left):
            found = one(hosts, seed)
            done["runs"] = sorted([*done["runs"], found], key=lambda run: run["seed"])
            done["failed"] = sum(bool(run["violations"]) for run in done["runs"])
            options.out.write_text(json.dumps(done, indent=1) + "\n")
            print(f"{len(done['runs'])} runs, {done['failed']} failed: {found}", flush=True)
    finally:
        hosts.close()
    return 1 if done["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
