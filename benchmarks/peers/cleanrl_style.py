"""CleanRL-style PPO (a minimal equivalent of cleanrl/ppo_atari_envpool.py, ppo.py, ppo_continuous_action.py), single process.
python cleanrl_style.py --env pong --vec envpool --n 64 --T 128 --mb 1024 --epochs 4 --secs 60
Prints agent steps/s over the steady window (after the first `--warm` iterations)."""
import argparse, os, time, json
P = argparse.ArgumentParser()
P.add_argument("--env", default="pong"); P.add_argument("--vec", default="envpool"); P.add_argument("--n", type=int, default=64)
P.add_argument("--T", type=int, default=128); P.add_argument("--mb", type=int, default=1024); P.add_argument("--epochs", type=int, default=4)
P.add_argument("--secs", type=float, default=60); P.add_argument("--warm", type=int, default=2); P.add_argument("--threads", type=int, default=2); P.add_argument("--env-threads", type=int, default=2)
P.add_argument("--hidden", type=int, default=64); P.add_argument("--compile", action="store_true"); P.add_argument("--bf16", action="store_true"); P.add_argument("--lr", type=float, default=2.5e-4)
A = P.parse_args()
import numpy as np, torch, torch.nn as nn
from torch.distributions import Categorical, Normal
torch.set_num_threads(A.threads)
IMG = A.env == "pong"; N, T = A.n, A.T
EP = {"pong": "Pong-v5", "cartpole": "CartPole-v1", "cheetah": "HalfCheetah-v5", "ant": "Ant-v5"}[A.env]
if A.vec == "envpool":
    import envpool
    v = envpool.make(EP, env_type="gymnasium", num_envs=N, num_threads=A.env_threads, **({"episodic_life": True, "reward_clip": True} if IMG else {}))
elif A.vec == "ale":
    from ale_py.vector_env import AtariVectorEnv
    v = AtariVectorEnv("pong", N, num_threads=A.env_threads)
else:
    import gymnasium as gym
    if IMG: import ale_py; gym.register_envs(ale_py)
    def mk():
        if IMG:
            e = gym.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.); e = gym.wrappers.AtariPreprocessing(e, frame_skip=4); return gym.wrappers.FrameStackObservation(e, 4)
        return gym.make(EP)
    v = (gym.vector.SyncVectorEnv if A.vec == "sync" else gym.vector.AsyncVectorEnv)([mk]*N)
o, _ = v.reset(); o = np.asarray(o); oshape = o.shape[1:]
sp = getattr(v, "single_action_space", None) or v.action_space
DISC = hasattr(sp, "n"); adim = int(sp.n) if DISC else sp.shape[-1]
def li(l, s=np.sqrt(2)): nn.init.orthogonal_(l.weight, s); nn.init.zeros_(l.bias); return l
class Net(nn.Module):
    def __init__(s):
        super().__init__()
        if IMG:
            s.body = nn.Sequential(li(nn.Conv2d(4, 32, 8, 4)), nn.ReLU(), li(nn.Conv2d(32, 64, 4, 2)), nn.ReLU(), li(nn.Conv2d(64, 64, 3, 1)), nn.ReLU(), nn.Flatten(), li(nn.Linear(3136, 512)), nn.ReLU())
            s.pi, s.v = li(nn.Linear(512, adim), .01), li(nn.Linear(512, 1), 1)
        else:
            h, d = A.hidden, int(np.prod(oshape))
            s.pi = nn.Sequential(li(nn.Linear(d, h)), nn.Tanh(), li(nn.Linear(h, h)), nn.Tanh(), li(nn.Linear(h, adim), .01))
            s.v = nn.Sequential(li(nn.Linear(d, h)), nn.Tanh(), li(nn.Linear(h, h)), nn.Tanh(), li(nn.Linear(h, 1), 1))
        s.logstd = nn.Parameter(torch.zeros(adim)) if not DISC else None
    def forward(s, x):
        if IMG: h = s.body(x.float()/255.); return s.pi(h), s.v(h).squeeze(-1)
        x = x.float(); return s.pi(x), s.v(x).squeeze(-1)
net = Net(); fwd = torch.compile(net, dynamic=False) if A.compile else net
def dist(lo): return Categorical(logits=lo) if DISC else Normal(lo, net.logstd.exp().expand_as(lo))
opt = torch.optim.Adam(net.parameters(), lr=A.lr, eps=1e-5)
odt = torch.uint8 if IMG else torch.float32
O = torch.zeros((T, N)+oshape, dtype=odt); AC = torch.zeros((T, N)+(() if DISC else (adim,)), dtype=torch.long if DISC else torch.float32)
LP = torch.zeros(T, N); R = torch.zeros(T, N); D = torch.zeros(T, N); V = torch.zeros(T, N)
no, nd = torch.as_tensor(o), torch.zeros(N)
t_s = t_l = 0; it = 0; steps = 0; t0 = None; rets = []; cur = np.zeros(N); marks = []
import contextlib
ac = (lambda: torch.autocast("cpu", dtype=torch.bfloat16)) if A.bf16 else contextlib.nullcontext
while True:
    if it == A.warm: t0 = time.perf_counter(); t_s = t_l = 0; steps = 0; marks = [(0, 0)]
    ts = time.perf_counter()
    for t in range(T):
        O[t] = no; D[t] = nd
        with torch.no_grad():
            with ac(): lo, val = fwd(O[t])
            d = dist(lo.float()); a = d.sample(); lp = d.log_prob(a)
        AC[t] = a; LP[t] = lp if DISC else lp.sum(-1); V[t] = val
        act = a.numpy()
        if not DISC: act = np.clip(act, -1, 1).astype(np.float64 if A.vec == "envpool" else np.float32)
        elif A.vec == "envpool": act = act.astype(np.int32)
        o, r, te, tr, _ = v.step(act)
        dn = np.logical_or(te, tr); R[t] = torch.as_tensor(np.asarray(r, np.float32)); no = torch.as_tensor(np.asarray(o)); nd = torch.as_tensor(dn.astype(np.float32))
        cur += r
        if dn.any(): rets += list(cur[dn]); cur[dn] = 0
    t_s += time.perf_counter()-ts; tl = time.perf_counter()
    with torch.no_grad():
        nv = net(no.to(odt))[1]; adv = torch.zeros(T, N); g = 0
        for t in reversed(range(T)):
            nn_ = 1-(nd if t == T-1 else D[t+1]); vn = nv if t == T-1 else V[t+1]
            g = R[t]+.99*vn*nn_-V[t]+.99*.95*nn_*g; adv[t] = g
        ret = adv+V
    bo, ba, bl, bad, br = O.reshape((-1,)+oshape), AC.reshape((-1,)+AC.shape[2:]), LP.reshape(-1), adv.reshape(-1), ret.reshape(-1)
    for _ in range(A.epochs):
        for ix in torch.randperm(T*N).split(A.mb):
            with ac(): lo, val = fwd(bo[ix])
            d = dist(lo.float()); lp = d.log_prob(ba[ix]); en = d.entropy()
            if not DISC: lp, en = lp.sum(-1), en.sum(-1)
            ratio = (lp-bl[ix]).exp(); x = bad[ix]; x = (x-x.mean())/(x.std()+1e-8)
            loss = torch.max(-x*ratio, -x*ratio.clamp(.9, 1.1)).mean()+.5*.5*((val.float()-br[ix])**2).mean()-(.01 if DISC else 0)*en.mean()
            opt.zero_grad(); loss.backward(); nn.utils.clip_grad_norm_(net.parameters(), .5); opt.step()
    t_l += time.perf_counter()-tl; it += 1; steps += T*N
    if t0:
        dt = time.perf_counter()-t0; marks.append((dt, steps))
        if dt > A.secs and it > A.warm: break
h = len(marks)//2
sps = [(b[1]-a[1])/max(1e-9, b[0]-a[0]) for a, b in ((marks[0], marks[h]), (marks[h], marks[-1]))]
print(json.dumps(dict(peer="cleanrl-style", **vars(A), steps_s=round(steps/dt), window=round(dt, 2), halves=[round(x) for x in sps], iters=it-A.warm, sample_frac=round(t_s/dt, 3), sample_steps_s=round(steps/t_s), learn_steps_s=round(steps/t_l), ret=round(float(np.mean(rets[-50:])), 2) if rets else None, total=steps)), flush=True)
