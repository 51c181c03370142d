"""CartPole with plain Gymnasium envs: env steps/s of SRL and of a CleanRL-style script, side by side.

Same work on both sides: 64 envs, rollout 64, batch 4,096, 4 epochs, minibatches of 2,048, two
64x64 networks, Adam, gradient clipping. Runs are interleaved; both numbers are of the steady
state, the script's own of its measured window, SRL's from its metrics file after the first
seconds. Both sides are screened with one and with two compute threads first.

    python benchmarks/first_look.py [--repeats 5] [--seconds 20]
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
SETTLE_SECONDS = 6.0  # imports and the first batches


def cleanrl_style(threads: int, seconds: float) -> float:
    script = HERE / "peers" / "cleanrl_style.py"
    words = "--env cartpole --vec sync --n 64 --T 64 --mb 2048 --epochs 4 --warm 5"
    command = [sys.executable, str(script), *words.split()]
    command += ["--secs", str(seconds), "--threads", str(threads)]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
    return float(json.loads(out.splitlines()[-1])["steps_s"])


def srl(threads: int, seconds: float, extra: tuple[str, ...] = ()) -> tuple[float, dict]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        options = {
            "actors.count": 1,
            "actors.envs": 64,
            "actors.groups": 1,
            "algorithm.rollout": 64,
            "algorithm.batch-size": 4096,
            "algorithm.minibatch-size": 2048,
            "algorithm.epochs": 4,
            "algorithm.learning-rate": 2.5e-4,
            "algorithm.learning-rate-schedule": "constant",
            "algorithm.clip-schedule": "constant",
            "algorithm.entropy-weight": 0.01,
            "stop.env-steps": None,
            "stop.return": None,
            "stop.seconds": seconds + SETTLE_SECONDS,
            "threads": threads,
            "out": out,
        }
        command = [sys.executable, "-m", "srl.cli", "train", "cartpole"]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        subprocess.run([*command, *extra], capture_output=True, check=True, timeout=600)
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        summary = json.loads((out / "summary.json").read_text())
    rows = [row for row in rows if row["time"]["seconds"] >= SETTLE_SECONDS]
    first, last = rows[0], rows[-1]
    rate = (last["env_steps"] - first["env_steps"]) / (
        last["time"]["seconds"] - first["time"]["seconds"]
    )
    return rate, {"split": summary["time_split"], "bottleneck": summary["bottleneck"]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    screen_peer = {t: cleanrl_style(t, 8) for t in (1, 2)}
    screen_srl = {t: srl(t, 8)[0] for t in (1, 2)}
    peer_threads = max(screen_peer, key=lambda t: screen_peer[t])
    srl_threads = max(screen_srl, key=lambda t: screen_srl[t])
    print("screen", {"cleanrl_style": screen_peer, "srl": screen_srl}, flush=True)
    peers, ours, facts = [], [], {}
    for _ in range(options.repeats):
        peers.append(cleanrl_style(peer_threads, options.seconds))
        rate, facts = srl(srl_threads, options.seconds)
        ours.append(rate)
        print(f"cleanrl-style {peers[-1]:,.0f}/s  srl {rate:,.0f}/s", flush=True)
    ratios = [a / b for a, b in zip(ours, peers, strict=True)]
    result = {
        "workload": "CartPole-v1, plain Gymnasium, MLP 64x64, 4 epochs, minibatch 2048",
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "screen": {"cleanrl_style": screen_peer, "srl": screen_srl},
        "threads": {"cleanrl_style": peer_threads, "srl": srl_threads},
        "cleanrl_style_steps_per_second": peers,
        "srl_steps_per_second": ours,
        "ratios": ratios,
        "ratio_median": statistics.median(ratios),
        "ratio_lowest": min(ratios),
        "srl_last_run": facts,
    }
    (HERE / "first_look.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
