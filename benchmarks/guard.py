"""What the look for numbers that are not finite costs, as a share of an update; into guard.json.

    python benchmarks/guard.py [cartpole] [half-cheetah] [pong] [--device cpu] [--rounds 9]

Batches of the recipes' sizes with random numbers, no env. `check`: the batch before, metrics and
weights after (always done). `copy`: the learner's state, kept with `--on-nan skip` only.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from srl.core.algorithm import Learner
from srl.core.block import route_layout
from srl.core.collective import Alone
from srl.core.compute import Compute
from srl.core.env import AgentSpec, Box, Discrete, Observation
from srl.experiments.cartpole import cartpole
from srl.experiments.half_cheetah import half_cheetah
from srl.experiments.pong import pong
from srl.learning.finite import Tracer
from srl.learning.guard import Guard
from srl.testing.batches import record_batches

HERE = Path(__file__).parent
CASES = {
    "cartpole": (cartpole, (Observation("obs", (4,), "float32"),), Discrete(2)),
    "half-cheetah": (
        half_cheetah,
        (Observation("obs", (17,), "float64"),),
        Box((6,), (-1.0,) * 6, (1.0,) * 6),
    ),
    "pong": (pong, (Observation("obs", (84, 84), "uint8", stack=4),), Discrete(6)),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", default=["cartpole", "half-cheetah"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--results", type=Path, default=HERE / "guard.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = json.loads(options.results.read_text()) if options.results.exists() else {}
    for case in options.cases:
        key = case if options.device == "cpu" else f"{case} on {options.device}"
        results[key] = measure(case, options.device, options.rounds)
        print(key, json.dumps(results[key]))
    options.results.write_text(json.dumps(results, indent=1) + "\n")


def measure(case: str, device: str, rounds: int) -> dict[str, Any]:
    """Microseconds, medians; update and check take turns."""
    make, seen, action = CASES[case]
    algorithm, agent = make().algorithm, AgentSpec(seen, action)
    compute = Compute(device=device)
    learner: Learner = algorithm.make_learner(agent, seed=0, compute=compute, ranks=Alone())
    acting = algorithm.make_policy(agent, seed=0, compute=Compute())
    lanes = algorithm.batch_size // algorithm.rollout
    (batch,) = record_batches(acting, agent, rollout=algorithm.rollout, lanes=lanes)
    layout = route_layout(agent, acting.records, rollout=algorithm.rollout, lanes=lanes, envs=lanes)
    guard = Guard(Tracer(layout), worker="trainer-0")
    metrics = learner.learn(batch, 0.0)

    def check() -> None:
        assert guard.before(batch) is None
        assert guard.after(metrics, learner.policy.weights(), batch, 0) is None

    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        timed(times, "update", lambda: learner.learn(batch, 0.0))
        timed(times, "check", check)
        timed(times, "copy", learner.save)
        timed(times, "weights", learner.policy.weights)
    median = {name: statistics.median(values) * 1e6 for name, values in times.items()}
    # publishing reads the weights anyway: the check and it share that
    checked = median["check"] - median["weights"]
    return {
        "update_us": round(median["update"]),
        "check_us": round(checked, 1),
        "check_percent": round(100 * checked / median["update"], 3),
        "copy_us": round(median["copy"], 1),
        "copy_percent": round(100 * median["copy"] / median["update"], 3),
        "machine": torch.cuda.get_device_name(0) if device != "cpu" else platform.processor(),
    }


def timed(times: dict[str, list[float]], name: str, call: Callable[[], Any]) -> None:
    """Add one duration."""
    start = time.perf_counter()
    call()
    times.setdefault(name, []).append(time.perf_counter() - start)


if __name__ == "__main__":
    main()
