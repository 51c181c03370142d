"""A long run on two cores: does anything of it grow, or slow down?

    python benchmarks/soak.py [--minutes 30] [--out soak.json]

CartPole with two actors, a policy worker, a trainer, an evaluator beside it, and a checkpoint every ten
seconds. Every five seconds each process of the run is measured. After the first sixth of the time (minute 5
of 30), the resident memory of no process may grow by 5 MB an hour or more, all of it and what is its own
alone, nor may its descriptors become more (slopes by Theil and Sen: the median over all pairs of samples);
and a row may cost at most 3 % more core time in the last third than in the first. Exits with 1 where
that does not hold. Wants a quiet machine.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from srl.testing.chaos.run import Run
from srl.tools.bench.report import host

HERE = Path(__file__).parent
SAMPLE_SECONDS = 5.0
MOST_MEGABYTES = 5.0
"""An hour, of any process."""
MOST_COST = 1.03
SETTLES = 1 / 6
"""Share of the time in which buffers fill."""
THIRD = 1 / 3
WORDS = (
    *("train", "cartpole", "--launcher", "local", "--inference", "shm", "--actors.count", "2"),
    *("--actors.envs", "16", "--evaluation.count", "1", "--evaluation.every", "20"),
    *(
        "--evaluation.episodes",
        "20",
        "--checkpoint.seconds",
        "10",
        "--stop.env-steps",
        "1000000000",
    ),
    *("--algorithm.learning-rate", "3e-4"),
)
TICKS = os.sysconf("SC_CLK_TCK")


def measure(pid: int) -> dict[str, float] | None:
    """What a process holds and has spent; None where it is gone."""
    folder = Path(f"/proc/{pid}")
    try:
        status = dict(
            line.split(":", 1)
            for line in (folder / "status").read_text().splitlines()
            if ":" in line
        )
        spent = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
        rollup = (folder / "smaps_rollup").read_text().splitlines()[1:]
        descriptors = len(os.listdir(folder / "fd"))
    except OSError:
        return None
    kilobytes = {line.split()[0].rstrip(":"): int(line.split()[1]) for line in rollup}
    return {
        "resident": int(status["VmRSS"].split()[0]) * 1024 / 1e6,
        "anonymous": int(status["RssAnon"].split()[0]) * 1024 / 1e6,
        "private": (kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]) * 1024 / 1e6,
        "descriptors": descriptors,
        "threads": int(status["Threads"]),
        "cpu_seconds": sum(map(int, spent)) / TICKS,
    }


def sample(run: Run, minutes: float) -> list[dict]:
    """Samples of the run until its time is over: seconds, env steps, and each process."""
    samples, start = [], time.monotonic()
    while run.is_alive and (now := time.monotonic() - start) < minutes * 60:
        found = {name: measure(pid) for name, pid in run.processes().items()}
        samples.append(
            {
                "seconds": now,
                "env_steps": run.rows()[-1]["env_steps"],
                "pids": run.processes(),
                "processes": {name: facts for name, facts in found.items() if facts is not None},
            }
        )
        time.sleep(max(0.0, start + len(samples) * SAMPLE_SECONDS - time.monotonic()))
    return samples


def slope(samples: list[dict], name: str, what: str) -> float:
    """Growth an hour: the median of the slopes of all pairs."""
    points = [
        (s["seconds"] / 3600, s["processes"][name][what]) for s in samples if name in s["processes"]
    ]
    hours, values = np.array(points).T
    i, j = np.triu_indices(len(points), 1)
    return float(np.median((values[j] - values[i]) / (hours[j] - hours[i])))


def cost(samples: list[dict]) -> float:
    """Core-microseconds a row, over all processes."""
    first, last = samples[0], samples[-1]
    spent = [sum(p["cpu_seconds"] for p in s["processes"].values()) for s in (first, last)]
    return 1e6 * (spent[1] - spent[0]) / (last["env_steps"] - first["env_steps"])


def judge(samples: list[dict]) -> dict:
    end = samples[-1]["seconds"]
    settled = [s for s in samples if s["seconds"] >= end * SETTLES]
    names = sorted(samples[-1]["processes"])
    processes = {
        name: {
            **{f"{what}_at_last": settled[-1]["processes"][name][what] for what in ("resident",)},
            **{
                f"{what}_megabytes_an_hour": round(slope(settled, name, what), 2)
                for what in ("resident", "anonymous", "private")
            },
            "descriptors": [
                settled[0]["processes"][name]["descriptors"],
                settled[-1]["processes"][name]["descriptors"],
            ],
            "descriptors_an_hour": slope(settled, name, "descriptors"),
        }
        for name in names
    }
    first = cost([s for s in samples if s["seconds"] <= end * THIRD])
    last = cost([s for s in samples if s["seconds"] >= end * (1 - THIRD)])
    wrong = [
        f"{name}: {what} {facts[what]} MB an hour"
        for name, facts in processes.items()
        for what in ("resident_megabytes_an_hour", "anonymous_megabytes_an_hour")
        if facts[what] >= MOST_MEGABYTES
    ]
    wrong += [
        f"{name}: descriptors {facts['descriptors']}"
        for name, facts in processes.items()
        if facts["descriptors_an_hour"] > 0
    ]
    if last > MOST_COST * first:
        wrong.append(f"a row costs {last / first:.3f} times what it did")
    if samples[0]["pids"] != samples[-1]["pids"]:
        wrong.append(f"processes changed: {samples[0]['pids']}, {samples[-1]['pids']}")
    minute = max(2, int(60 / SAMPLE_SECONDS))
    return {
        "wrong": wrong,
        "core_microseconds_a_row": {
            "first_third": round(first, 2),
            "last_third": round(last, 2),
            "ratio": round(last / first, 4),
            "each_minute": [
                round(cost(samples[i : i + minute + 1]), 2)
                for i in range(0, len(samples) - minute, minute)
            ],
        },
        "processes": processes,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--out", type=Path, default=HERE / "soak.json")
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="srls-"))
    run = Run(place, list(WORDS))
    try:
        wanted = {"actor-0", "actor-1", "policy-0", "trainer-0", "evaluator-0"}
        begun = run.wait_until(lambda: wanted <= run.workers().keys() and len(run.rows()) > 2, 120)
        if not begun:
            sys.exit(f"the run did not begin:\n{run.output}")
        samples = sample(run, options.minutes)
        code = run.end()
        keys = ("status", "env_steps", "env_steps_per_second", "version", "episodes", "mean_return")
        keys += ("worker_restarts", "blocks_lost", "checkpoints")
        summary = {key: run.summary[key] for key in keys}
        left = run.wait_gone()
    finally:
        run.kill_all()
        shutil.rmtree(place, ignore_errors=True)
    found = judge(samples)
    if code != 0:
        found["wrong"].append(f"exit code {code}: {run.output[-800:]}")
    if left:
        found["wrong"].append(f"processes left: {left}")
    kept = {
        name: {
            what: [round(s["processes"][name][what], 2) for s in samples if name in s["processes"]]
            for what in ("resident", "anonymous", "private", "descriptors")
        }
        for name in found["processes"]
    }
    result = {
        "command": " ".join(WORDS),
        "minutes": options.minutes,
        "host": host(),
        "summary": summary,
        **found,
        "sample_seconds": SAMPLE_SECONDS,
        "samples": kept,
    }
    options.out.write_text(json.dumps(result) + "\n")
    for name, facts in found["processes"].items():
        print(
            f"{name}: {facts['resident_at_last']:.0f} MB, "
            f"{facts['resident_megabytes_an_hour']:+.1f} MB/h resident, "
            f"{facts['anonymous_megabytes_an_hour']:+.1f} its own; descriptors "
            f"{facts['descriptors']}"
        )
    print(f"core-microseconds a row: {found['core_microseconds_a_row']}")
    print("\n".join(found["wrong"]) or "holds")
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
