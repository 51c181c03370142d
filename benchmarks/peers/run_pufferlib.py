"""PufferLib 3.0.0 PuffeRL trainer on CPU. python run_pufferlib.py --env cartpole --backend mp --n 64 --workers 2 --T 32 --mb 2048 --epochs 4 --secs 40"""
import argparse, time, json
P = argparse.ArgumentParser()
P.add_argument("--env", default="cartpole"); P.add_argument("--backend", default="mp"); P.add_argument("--n", type=int, default=64); P.add_argument("--workers", type=int, default=2); P.add_argument("--vb", type=int, default=0)
P.add_argument("--T", type=int, default=64); P.add_argument("--mb", type=int, default=2048); P.add_argument("--epochs", type=int, default=4); P.add_argument("--secs", type=float, default=40); P.add_argument("--threads", type=int, default=2); P.add_argument("--hidden", type=int, default=64); P.add_argument("--warm", type=int, default=2)
A = P.parse_args()
import numpy as np, torch, torch.nn as nn, gymnasium as gym, pufferlib, pufferlib.vector, pufferlib.emulation, pufferlib.models, pufferlib.pytorch
def mk(buf=None, seed=0, **kw):
    if A.env == "pong":
        import ale_py
        try: gym.register_envs(ale_py)
        except Exception: pass
        e = gym.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.)
        e = gym.wrappers.AtariPreprocessing(e, frame_skip=4); e = gym.wrappers.FrameStack(e, 4)
        class N(gym.ObservationWrapper):
            def observation(s, o): return np.asarray(o)
        e = N(e)
    elif A.env == "cartpole": e = gym.make("CartPole-v1")
    else: e = gym.make("HalfCheetah-v4"); e = pufferlib.ClipAction(e) if hasattr(pufferlib, "ClipAction") else e; e = gym.wrappers.TransformObservation(e, lambda o: o.astype(np.float32)); e.observation_space = gym.spaces.Box(-np.inf, np.inf, (17,), np.float32)
    return pufferlib.emulation.GymnasiumPufferEnv(env=e, buf=buf)
class MLP(nn.Module):
    def __init__(s, env):
        super().__init__(); o = int(np.prod(env.single_observation_space.shape)); h = A.hidden; s.is_continuous = not hasattr(env.single_action_space, "n"); s.hidden_size = h
        a = env.single_action_space.shape[0] if s.is_continuous else env.single_action_space.n
        s.pi = nn.Sequential(nn.Linear(o, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh(), nn.Linear(h, a)); s.v = nn.Sequential(nn.Linear(o, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh(), nn.Linear(h, 1))
        s.ls = nn.Parameter(torch.zeros(1, a))
    def forward_eval(s, x, state=None): return s.forward(x, state)
    def forward(s, x, state=None):
        x = x.view(x.shape[0], -1).float(); m = s.pi(x)
        return (torch.distributions.Normal(m, s.ls.expand_as(m).exp()) if s.is_continuous else m), s.v(x)
class CNN(pufferlib.models.Convolutional):
    def forward_eval(s, x, state=None): return s.forward(x, state)
    def forward(s, x, state=None):
        if x.ndim == 5: x = x.reshape(-1, *x.shape[2:])
        return super().forward(x, state)
if __name__ == "__main__":
    torch.set_num_threads(A.threads)
    from pufferlib import pufferl
    B = {"serial": pufferlib.vector.Serial, "mp": pufferlib.vector.Multiprocessing}[A.backend]
    kw = {} if A.backend == "serial" else dict(num_workers=A.workers, batch_size=A.vb or A.n, zero_copy=True, overwork=True)
    env = pufferlib.vector.make(mk, num_envs=A.n, backend=B, **kw)
    pol = CNN(env, framestack=4, flat_size=3136) if A.env == "pong" else MLP(env)
    d = env.driver_env
    cfg = dict(name="b", project="b", env="b", seed=1, torch_deterministic=False, cpu_offload=False, device="cpu", optimizer="adam", anneal_lr=False, precision="float32", total_timesteps=10**9, learning_rate=2.5e-4, gamma=.99, gae_lambda=.95, update_epochs=A.epochs, clip_coef=.1, vf_coef=.5, vf_clip_coef=.2, max_grad_norm=.5, ent_coef=.01, adam_beta1=.9, adam_beta2=.999, adam_eps=1e-5, data_dir=__import__("tempfile").mkdtemp(), checkpoint_interval=10**9, batch_size="auto", minibatch_size=A.mb, max_minibatch_size=A.mb, bptt_horizon=A.T, compile=False, compile_mode="default", compile_fullgraph=False, vtrace_rho_clip=1., vtrace_c_clip=1., prio_alpha=0., prio_beta0=1., use_rnn=False)
    tr = pufferl.PuffeRL(cfg, env, pol); tr.print_dashboard = lambda *a, **k: None
    it = 0; t0 = None; marks = []; ts = 0
    while True:
        now = time.perf_counter()
        if it == A.warm: t0 = now; g0 = tr.global_step; ts = 0
        if t0: marks.append((now-t0, tr.global_step-g0))
        if t0 and now-t0 > A.secs: break
        tr.evaluate(); ts += time.perf_counter()-now; tr.train(); it += 1
    h = len(marks)//2; dt, st = marks[-1]
    print(json.dumps(dict(peer="pufferlib", **vars(A), steps_s=round(st/dt), window=round(dt, 2), halves=[round((b[1]-a[1])/max(1e-9, b[0]-a[0])) for a, b in ((marks[0], marks[h]), (marks[h], marks[-1]))], iters=len(marks)-1, sample_frac=round(ts/dt, 3))), flush=True)
    import os; env.close(); os._exit(0)
