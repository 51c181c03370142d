"""Chaos, as often as asked: simulated schedules and real runs; accumulates into chaos.json.

    python benchmarks/chaos.py [--simulated 10000] [--real 200] [--seconds 20] [--parallel N]

Goes on where it stopped: seeds that are done are not done again. N schedules, or real runs, go on at
once (by default one a core); a real run is in a place of its own, and looks at nothing of the others.
A failure prints the seed that replays it: `--seed N` runs that one alone, simulated and real.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from srl.testing.chaos.real import run_real
from srl.testing.chaos.simulation import simulate
from srl.tools.bench.report import host

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


def real_one(seed: int, seconds: float) -> dict:
    """What became of one real run."""
    try:
        outcome = run_real(seed, seconds=seconds)
    except Exception as error:  # noqa: BLE001 - it is one failure, and the others go on
        return {"seed": seed, "faults": [], "violations": [f"no outcome: {error!r}"]}
    return {
        "seed": seed,
        "topology": outcome.topology,
        "envs": outcome.envs,
        "seconds": seconds,
        "took": round(outcome.took, 1),
        "faults": outcome.faults,
        "broken_envs": outcome.broken,
        "versions": outcome.versions,
        "restarts": outcome.restarts,
        "violations": [str(violation) for violation in outcome.violations],
    }


def totals(runs: list[dict]) -> dict:
    """What real runs come to, all together."""
    return {
        "failed": sum(bool(run["violations"]) for run in runs),
        "fewest_faults": min(len(run["faults"]) for run in runs),
        "faults": dict(Counter(fault.partition(" ")[0] for run in runs for fault in run["faults"])),
        "topologies": dict(Counter(run.get("topology") for run in runs)),
        "broken_envs": sum(run.get("broken_envs", 0) for run in runs),
        "restarts": sum(run.get("restarts", 0) for run in runs),
    }


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
    done.setdefault("real", {"runs": []})
    done["host"] = here = host()
    write = lambda: options.out.write_text(json.dumps(done, indent=1) + "\n")  # noqa: E731

    simulated = done["simulated"]
    firsts = range(simulated["schedules"], options.simulated, CHUNK)
    start = time.monotonic()
    with ProcessPoolExecutor(options.parallel) as pool:
        for failed, seen, faults in pool.map(simulate_many, firsts):
            simulated["schedules"] += CHUNK
            simulated["commits"] = sorted({*simulated.get("commits", ()), here["commit"]})
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
    known = {run["seed"] for run in real["runs"]}
    left = [seed for seed in range(options.real) if seed not in known]
    with ProcessPoolExecutor(options.parallel) as pool:
        started = [pool.submit(real_one, seed, options.seconds) for seed in left]
        for future in as_completed(started):
            run = {**future.result(), "commit": here["commit"]}
            runs = sorted([*real["runs"], run], key=lambda r: r["seed"])
            done["real"] = real = {**totals(runs), "runs": runs}
            write()
            print(
                f"{len(runs)} real runs, {real['failed']} failed; seed {run['seed']} "
                f"({run.get('topology')}): {run['faults']} {run['violations'] or 'holds'}",
                flush=True,
            )
    return 1 if simulated["failed"] or real.get("failed") else 0


if __name__ == "__main__":
    sys.exit(main())
