"""SRL itself, by `srl train`: agent steps/s learned from, between two learned batches of the steady state.

python run_srl.py --workload pong-4 --secs 30 [--warm 3] [--warm-s 2] [options of srl train]

It reads the run's own metrics file. A row is written when a batch has been learned, so the window begins and ends
with one: rows sampled and not learned yet do not count. The run is left to be ended by whoever started this."""
import argparse, json, os, subprocess, sys, tempfile, time
from srl.tools.bench.workloads import WORKLOADS
P = argparse.ArgumentParser(allow_abbrev=False)
P.add_argument("--workload", required=True); P.add_argument("--secs", type=float, default=30); P.add_argument("--warm", type=int, default=3); P.add_argument("--warm-s", type=float, default=2)
A, more = P.parse_known_args()
W = WORKLOADS[A.workload]; out = tempfile.mkdtemp(prefix="srl") + "/run"
fixed = ["--stop.env-steps", "None", "--stop.return", "None", "--stop.seconds", "None", "--evaluation.episodes", "0", "--checkpoint.seconds", "1e9", "--out", out]
command = [sys.executable, "-m", "srl.cli", "train", W.experiment, *W.arguments(), *fixed, *more]
p = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=open(out.replace("/run", "/err"), "w"))
def rows():
    try: lines = open(f"{out}/metrics.jsonl").read().split("\n")[:-1]
    except FileNotFoundError: return []
    last = {}  # batches reported together have one time: the newest of them was learned just before it
    for row in map(json.loads, lines): last[row["time"]["seconds"]] = row["consumed_env_steps"], row["version"]
    return [(t, n, v) for t, (n, v) in sorted(last.items())]
while True:
    time.sleep(.5); R = rows()
    if p.poll() is not None: sys.exit(f"srl train ended with {p.returncode}:\n{open(out.replace('/run', '/err')).read()[-3000:]}")
    warm = [r for r in R if r[2] > A.warm and r[0] >= R[0][0]+A.warm_s]
    if warm and warm[-1][0]-warm[0][0] >= A.secs: break
end = next(i for i, r in enumerate(warm) if r[0]-warm[0][0] >= A.secs); warm = warm[:end+1]
f = lambda a, b: round((b[1]-a[1])/max(1e-9, b[0]-a[0]), 1)
mid = warm[len(warm)//2]
try: state = json.load(open(f"{out}/summary.json"))
except (OSError, ValueError): state = {}
print(json.dumps(dict(peer="srl", steps_s=f(warm[0], warm[-1]), window=round(warm[-1][0]-warm[0][0], 2), halves=[f(warm[0], mid), f(mid, warm[-1])] if 0 < len(warm)//2 < len(warm)-1 else None, iters=warm[-1][2]-warm[0][2], ready_s=round(R[0][0], 2), args=more)), flush=True)
os._exit(0)
