"""How long a trainer is blocked by checkpoints, by its own time split: one every 10 seconds.

    python benchmarks/checkpoint.py [--seconds 65] [--every 10] [--hidden 64 64] [--out benchmarks/checkpoint.json]

Runs CartPole with the local launcher. `blocked` is the time the trainer copied its state and waited
for the disk (`checkpoint` in its time split), the last checkpoint of the run included, as a share of
the trainer's whole time. Writes one JSON object.
"""

import argparse
import json
import tempfile
from pathlib import Path

import srl
from srl.learning.checkpoint import latest_checkpoint, read_manifest
from srl.tools.bench.report import host


def measure(seconds: float, every: float, hidden: list[int]) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="srl-checkpoint-") as folder:
        run = srl.train(
            "cartpole",
            launcher="local",
            out=f"{folder}/run",
            stop__seconds=seconds,
            stop__env_steps=10**12,
            checkpoint__seconds=every,
            evaluation__episodes=0,
            algorithm__hidden=hidden,
        )
        manifest = read_manifest(latest_checkpoint(run.folder / "checkpoints"))
    split = run.summary["time_split"]["trainer"]
    whole = sum(split.values())
    written = run.summary["checkpoints"]["written"]
    return {
        "status": run.summary["status"],
        "seconds": round(run.summary["seconds"], 2),
        "checkpoint_every_seconds": every,
        "checkpoints": written,
        "checkpoints_failed": run.summary["checkpoints"]["failed"],
        "megabytes": round(sum(part["bytes"] for part in manifest["parts"]) / 1e6, 3),
        "hidden": hidden,
        "env_steps_per_second": round(run.summary["env_steps_per_second"]),
        "trainer_seconds": round(whole, 3),
        "blocked_seconds": round(split["checkpoint"], 6),
        "blocked_milliseconds_a_checkpoint": round(1e3 * split["checkpoint"] / written, 3),
        "blocked_share": round(split["checkpoint"] / whole, 6),
        "time_split": {name: round(value, 3) for name, value in split.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=65.0)
    parser.add_argument("--every", type=float, default=10.0)
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 64])
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args()
    result = measure(options.seconds, options.every, options.hidden)
    name = f"hidden {' '.join(map(str, options.hidden))}"
    known = json.loads(options.out.read_text()) if options.out.exists() else {}
    known["host"] = host()
    known[name] = result
    options.out.write_text(json.dumps(known, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
