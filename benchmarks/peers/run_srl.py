"""SRL itself: agent steps/s learned from in a window of the real run, as `srl bench train` measures it.

python run_srl.py --workload pong-4 --secs 30 [--warm-s 2] [options of srl train]

The window begins and ends with a learned batch: rows sampled and not learned yet do not count."""
import argparse, json
from dataclasses import asdict
from srl.tools.bench.command import find
from srl.tools.bench.window import run_window
if __name__ == "__main__":
    P = argparse.ArgumentParser(allow_abbrev=False)
    P.add_argument("--workload", required=True); P.add_argument("--secs", type=float, default=30); P.add_argument("--warm-s", type=float, default=2)
    A, more = P.parse_known_args()
    w = run_window(find(A.workload, more), warm_up=A.warm_s, window=A.secs)
    rounded = json.loads(json.dumps(asdict(w)), parse_float=lambda x: round(float(x), 4))
    print(json.dumps(dict(peer="srl", steps_s=round(w.env_steps_per_second, 1), window=round(w.seconds, 2), iters=w.versions, **{k: rounded[k] for k in ("workers", "cpu", "elsewhere")})), flush=True)
