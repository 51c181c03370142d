"""What a slow network costs, and what a ring of groups saves of it; results into delay.json.

    python benchmarks/delay.py [--delay 0.02] [--seconds 30]

CartPole on three hosts (network namespaces, under Ray): actors on one, policy workers on another, training on
the third; each link takes 0 or 20 ms. Envs take 2.5 ms a step, so a group of four takes 10 ms. The rule: while
one group waits for its actions the others step, so groups = 1 + the time to an answer / the time of a step.
Needs root and iproute2.
"""

import argparse
import json
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium

from srl.testing.ray_hosts import RayHosts
from srl.tools.bench.report import host

HERE = Path(__file__).parent
STEP_SECONDS = 0.0025
ENVS = 4
"""Of a group."""
ANSWER_SECONDS = 0.005
"""Of a policy worker, without the way to it."""
WHERE = {"trainers": [1], "policies": [2], "actors": [3]}


class Slow(gymnasium.Wrapper):
    """An env whose steps take their time."""

    def step(self, action: Any) -> Any:
        time.sleep(STEP_SECONDS)
        return self.env.step(action)


def groups_for(delay: float) -> int:
    """How many the rule asks for."""
    return 1 + math.ceil((2 * delay + ANSWER_SECONDS) / (ENVS * STEP_SECONDS))


def rate(hosts: RayHosts, groups: int, seconds: float) -> float:
    """Env steps a second of a run, without its first third."""
    with tempfile.TemporaryDirectory() as place:
        folder, log = Path(place) / "run", Path(place) / "log"
        words = ["train", "cartpole", *hosts.options(WHERE), "--inference", "shm"]
        words += ["--actors.count", "2", "--actors.groups", str(groups)]
        words += ["--actors.envs", str(ENVS * groups), "--env.wrappers", f"{__file__}:Slow"]
        words += [
            "--algorithm.rollout",
            "16",
            "--algorithm.batch-size",
            str(2 * ENVS * groups * 16),
        ]
        words += ["--stop.return", "None", "--stop.seconds", str(seconds)]
        words += ["--stop.env-steps", "1000000000", "--evaluation.episodes", "0"]
        code = hosts.start([*words, "--out", str(folder)], log).wait(seconds + 180)
        if code:
            sys.exit(f"the run failed:\n{log.read_text()}")
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    late = [r for r in rows if r["time"]["seconds"] > rows[-1]["time"]["seconds"] - seconds * 2 / 3]
    took = late[-1]["time"]["seconds"] - late[0]["time"]["seconds"]
    return (late[-1]["env_steps"] - late[0]["env_steps"]) / took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--delay", type=float, default=0.02)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--out", type=Path, default=HERE / "delay.json")
    options = parser.parse_args()
    rings = (1, groups_for(options.delay))
    found: dict[int, dict[float, float]] = {groups: {} for groups in rings}
    for delay in (0.0, options.delay):
        hosts = RayHosts([4, 4, 4], delay_seconds=delay)
        try:
            for groups in rings:
                found[groups][delay] = rate(hosts, groups, options.seconds)
                print(
                    f"{groups} groups, {delay * 1000:g} ms: {found[groups][delay]:.0f} env steps/s"
                )
        finally:
            hosts.close()
    result = {
        "host": host(),
        "delay_seconds": options.delay,
        "step_seconds_of_a_group": ENVS * STEP_SECONDS,
        "groups_by_the_rule": rings[1],
        "rings": [
            {
                "groups": groups,
                "env_steps_per_second": rates[0.0],
                "with_delay": rates[options.delay],
                "kept": round(rates[options.delay] / rates[0.0], 3),
            }
            for groups, rates in found.items()
        ],
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    kept = {ring["groups"]: ring["kept"] for ring in result["rings"]}
    print(kept)
    return 0 if kept[rings[1]] >= 0.85 > kept[1] else 1


if __name__ == "__main__":
    sys.exit(main())
