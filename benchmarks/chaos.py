"""Chaos, as often as asked: simulated schedules and real runs; accumulates into chaos.json.

    python benchmarks/chaos.py [--simulated 10000] [--real 200] [--seconds 20] [--out chaos.json]

Goes on where it stopped: seeds that are done are not done again. A failure prints the seed that
replays it: `--seed N` runs that one alone, simulated and real.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from srl.testing.chaos.real import run_real
from srl.testing.chaos.simulation import simulate

HERE = Path(__file__).parent
CHUNK = 100


def simulate_many(first: int) -> tuple[list[dict], Counter, Counter]:
    """Schedules `first` to `first + CHUNK`: those that fail, rules looked at, faults."""
    failed, seen, faults = [], Counter(), Counter()
    for seed in range(first, first + CHUNK):
        outcome = simulate(seed)
        seen.update(outcome.seen)
        faults.update(fault.partition(" ")[0] for fault in outcome.faults)
        if outcome.violations:
            told = [str(violation) for violation in outcome.violations]
            failed.append({"seed": seed, "faults": outcome.faults, "violations": told})
    return failed, seen, faults


def add(total: dict, part: Counter) -> dict:
    """Counts added up."""
    return dict(Counter(total) + part)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--simulated", type=int, default=10_000)
    parser.add_argument("--real", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--parallel", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=HERE / "chaos.json")
    options = parser.parse_args()
    if options.seed is not None:
        print(simulate(options.seed))
        print(run_real(options.seed, seconds=options.seconds))
        return 0
    done = json.loads(options.out.read_text()) if options.out.exists() else {}
    done.setdefault("simulated", {"schedules": 0, "failed": [], "looked_at": {}, "faults": {}})
    done.setdefault("real", {"runs": [], "failed": 0, "faults": 0})
    done["host"] = {"cores": os.cpu_count(), "python": sys.version.split()[0]}
    done["commit"] = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False
    ).stdout.strip()
    write = lambda: options.out.write_text(json.dumps(done, indent=1) + "\n")  # noqa: E731

    simulated = done["simulated"]
    firsts = range(simulated["schedules"], options.simulated, CHUNK)
    start = time.monotonic()
    with ProcessPoolExecutor(options.parallel) as pool:
        for failed, seen, faults in pool.map(simulate_many, firsts):
            simulated["schedules"] += CHUNK
            simulated["failed"] += failed
            simulated["looked_at"] = add(simulated["looked_at"], seen)
            simulated["faults"] = add(simulated["faults"], faults)
            write()
            print(
                f"{simulated['schedules']:,} simulated, {len(simulated['failed'])} failed "
                f"({time.monotonic() - start:.0f} s)",
                flush=True,
            )
    real = done["real"]
    for seed in range(len(real["runs"]), options.real):
        outcome = run_real(seed, seconds=options.seconds)
        told = [str(violation) for violation in outcome.violations]
        real["runs"].append(
            {
                "seed": seed,
                "topology": outcome.topology,
                "faults": outcome.faults,
                "versions": outcome.versions,
                "restarts": outcome.restarts,
                "violations": told,
            }
        )
        real["failed"] += bool(told)
        real["faults"] += len(outcome.faults)
        write()
        print(
            f"real run {seed} ({outcome.topology}): {outcome.faults} {told or 'holds'}", flush=True
        )
    return 1 if simulated["failed"] or real["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
