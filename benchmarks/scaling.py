"""Does the cost of a row stay where it is as a run grows? Core-microseconds a row, all workers.

    python benchmarks/scaling.py [--seconds 4] [--out benchmarks/scaling.json]

One factor at a time: actors, envs an actor, bytes a row; through policy workers and shared memory,
with an env, a policy and a learner that cost next to nothing (scaling_parts.py), so that what is
counted is the data path; and how long 16 actors of CartPole take to be ready. A point is a run of its own: CPU time of its workers (user and system,
from /proc, the node agent included) over the rows learned in a window. Rows of more bytes are copied
three times (env, inference, training): what they cost above the smallest is also given a KB.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
ROLLOUT = 32
ACTORS = [{"actors": n, "envs": 64, "bytes": 64} for n in (1, 2, 4, 8, 16)]
ENVS = [{"actors": 1, "envs": n, "bytes": 64} for n in (1, 4, 16, 64, 256, 512)]
BYTES = [{"actors": 1, "envs": 8, "bytes": n} for n in (16, 256, 4096, 25_600, 102_400)]
SWEEPS = {"actors": ACTORS, "envs": ENVS, "bytes": BYTES}


def cpu_seconds(pid):
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children(pid):
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def consumed(folder):
    """Rows learned so far: those of the last whole line."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    whole = [line for line in lines if line.endswith("\n")]
    return json.loads(whole[-1])["consumed_env_steps"] if whole else 0


def sample(folder, pids):
    """Rows and CPU time by worker, at the moment a row of metrics appears."""
    before = consumed(folder)
    while (now := consumed(folder)) == before:
        time.sleep(0.002)
    return now, {name: cpu_seconds(pid) for name, pid in pids.items()}


def measure(point, seconds):
    """One run; core-microseconds a row by kind of worker."""
    folder = Path(tempfile.mkdtemp(prefix="scaling-")) / "run"
    rows = ROLLOUT * point["envs"] * point["actors"]
    command = [sys.executable, "-m", "srl.cli", "train", f"{HERE / 'scaling_parts.py'}:experiment"]
    command += ["--out", str(folder), "--launcher", "local", "--inference", "shm"]
    command += ["--actors.count", str(point["actors"]), "--actors.envs", str(point["envs"])]
    command += ["--env.options", json.dumps({"bytes": point["bytes"]})]
    command += ["--algorithm.rollout", str(ROLLOUT), "--algorithm.batch-size", str(rows)]
    log = folder.with_name("log")
    with log.open("wb") as file:
        run = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        while not consumed(folder):
            if run.poll() is not None:
                raise SystemExit(f"{point}: the run ended with {run.returncode}; see {log}")
            time.sleep(0.05)
        time.sleep(1.0)
        logs = folder / "logs"
        pids = {p.stem: json.loads(p.read_text())["pid"] for p in logs.glob("*-*.json")}
        pids["node-agent"] = children(run.pid)[0]
        start, before = sample(folder, pids)
        time.sleep(seconds)
        end, after = sample(folder, pids)
    finally:
        run.terminate()
        run.wait()
    shutil.rmtree(folder.parent)
    spent = {}
    for name, cpu in after.items():
        kind = name.partition("-")[0]
        spent[kind] = spent.get(kind, 0.0) + (cpu - before[name]) / (end - start) * 1e6
    total = sum(spent.values())
    return {**point, "rows": end - start, "us_a_row": total, "by_kind": spent}


def start_up(actors, repeats=5):
    """Seconds from the command to the moment all actors of a run of CartPole are ready."""
    found = []
    for _ in range(repeats):
        folder = Path(tempfile.mkdtemp(prefix="scaling-")) / "run"
        command = [sys.executable, "-m", "srl.cli", "train", "cartpole", "--out", str(folder)]
        command += ["--actors.count", str(actors), "--actors.envs", "2"]
        start = time.monotonic()
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while len(list(folder.glob("logs/actor-*.json"))) < actors:
                if run.poll() is not None:
                    raise SystemExit(f"the run of {actors} actors ended with {run.returncode}")
                time.sleep(0.005)
            found.append(round(time.monotonic() - start, 2))
        finally:
            run.terminate()
            run.wait()
        shutil.rmtree(folder.parent)
    print(f"start: {actors} actors are ready after {found} s", flush=True)
    return {"actors": actors, "seconds": found, "median": statistics.median(found)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--out", type=Path, default=HERE / "scaling.json")
    parser.add_argument("--only", choices=(*SWEEPS, "start"))
    options = parser.parse_args()
    sweeps = {}
    for name, points in SWEEPS.items():
        if options.only not in (None, name):
            continue
        sweeps[name] = []
        for point in points:
            found = measure(point, options.seconds)
            if name == "bytes" and sweeps[name]:
                least = sweeps[name][0]
                more = (found["bytes"] - least["bytes"]) / 1024
                found["us_a_kb_more"] = (found["us_a_row"] - least["us_a_row"]) / more
            sweeps[name].append(found)
            kinds = "  ".join(f"{kind} {us:.2f}" for kind, us in found["by_kind"].items())
            print(f"{name}: {point}  {found['us_a_row']:.2f} us a row  ({kinds})", flush=True)
    if options.only in (None, "start"):
        sweeps["start"] = start_up(16)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False
    ).stdout.strip()
    host = {"cores": os.cpu_count(), "machine": platform.machine(), "load": os.getloadavg()[0]}
    before = json.loads(options.out.read_text()) if options.out.exists() else {}
    result = {
        **before,
        "commit": commit,
        "host": host,
        "python": platform.python_version(),
        **sweeps,
    }
    options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
