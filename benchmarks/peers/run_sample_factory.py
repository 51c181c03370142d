"""Sample Factory 2.1.1, through its own training scripts: reads its log and reports agent steps/s.

python run_sample_factory.py --secs 30 --warm-s 10 --frameskip 4 sf_examples.atari.train_atari --algo=APPO --env=atari_pong ...

Steps are its 'Total num frames' / frameskip, between --warm-s after its first such line and the end. It is left
running: whoever started this ends the whole process group, because SIGTERM to its main process leaves workers behind."""
import argparse, datetime, json, os, re, subprocess, sys, tempfile, time
P = argparse.ArgumentParser()
P.add_argument("--secs", type=float, default=30); P.add_argument("--warm-s", type=float, default=10); P.add_argument("--frameskip", type=int, default=1)
A, args = P.parse_known_args()
TD = tempfile.mkdtemp(prefix="sf"); lf = f"{TD}/log"
cmd = [sys.executable, "-m", *args, "--experiment=b", f"--train_dir={TD}/td", "--device=cpu", "--train_for_env_steps=100000000000", "--save_every_sec=10000", "--experiment_summaries_interval=100"]
p = subprocess.Popen(cmd, cwd=TD, stdout=open(lf, "w"), stderr=subprocess.STDOUT)
rx = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+)\].*Fps is .*Total num frames: (\d+)\..*Samples: (\d+)")
def text(): return re.sub(r"\x1b\[[0-9;]*m", "", open(lf, errors="ignore").read())
def read(): return [(datetime.datetime.strptime(m[1], "%Y-%m-%d %H:%M:%S,%f").timestamp(), int(m[2]), int(m[3])) for m in map(rx.search, text().splitlines()) if m and int(m[2]) > 0]
while True:
    time.sleep(1); pts = read()
    if p.poll() is not None: sys.exit(f"Sample Factory ended with {p.returncode}:\n{text()[-3000:]}")
    a = next((x for x in pts if x[0]-pts[0][0] >= A.warm_s), None)
    if a and pts[-1][0]-a[0] >= A.secs: break
b = pts[-1]; mid = pts[(pts.index(a)+len(pts)-1)//2]
f = lambda x, y: round((y[1]-x[1])/max(1e-9, y[0]-x[0])/A.frameskip)
rw = re.findall(r"Avg episode reward: \[\(0, '([-\d.]+)'\)\]", text())
print(json.dumps(dict(peer="sample-factory", steps_s=f(a, b), window=round(b[0]-a[0], 2), halves=[f(a, mid), f(mid, b)], sampled_s=round((b[2]-a[2])/max(1e-9, b[0]-a[0])), ret=rw[-1] if rw else None, args=args)), flush=True)
os._exit(0)
