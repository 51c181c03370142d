"""SB3 PPO. python run_sb3.py --env pong --vec subproc --n 8 --T 128 --mb 256 --epochs 4 --secs 60"""
import argparse, time, json
P = argparse.ArgumentParser()
P.add_argument("--env", default="pong"); P.add_argument("--vec", default="dummy"); P.add_argument("--n", type=int, default=8)
P.add_argument("--T", type=int, default=128); P.add_argument("--mb", type=int, default=256); P.add_argument("--epochs", type=int, default=4)
P.add_argument("--secs", type=float, default=60); P.add_argument("--warm", type=int, default=2); P.add_argument("--threads", type=int, default=2); P.add_argument("--hidden", type=int, default=64)
if __name__ == "__main__":
    A = P.parse_args()
    import torch; torch.set_num_threads(A.threads)
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env, make_atari_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack
    from stable_baselines3.common.callbacks import BaseCallback
    V = SubprocVecEnv if A.vec == "subproc" else DummyVecEnv
    if A.env == "pong":
        import ale_py, gymnasium as gym; gym.register_envs(ale_py)
        env = VecFrameStack(make_atari_env("PongNoFrameskip-v4", n_envs=A.n, vec_env_cls=V, vec_env_kwargs=(dict(start_method="fork") if A.vec == "subproc" else None)), 4); pol = "CnnPolicy"; kw = {}
    else:
        env = make_vec_env({"cartpole": "CartPole-v1", "cheetah": "HalfCheetah-v5", "ant": "Ant-v5"}[A.env], n_envs=A.n, vec_env_cls=V); pol = "MlpPolicy"; kw = dict(policy_kwargs=dict(net_arch=[A.hidden]*2))
    class CB(BaseCallback):
        def __init__(s): super().__init__(); s.it = 0; s.t0 = None; s.marks = []; s.ts = 0
        def _on_rollout_start(s):
            now = time.perf_counter()
            if s.it == A.warm: s.t0 = now; s.n0 = s.model.num_timesteps; s.ts = 0
            if s.t0: s.marks.append((now-s.t0, s.model.num_timesteps-s.n0))
            s.it += 1; s.tr = now
        def _on_rollout_end(s): s.ts += time.perf_counter()-s.tr
        def _on_step(s): return not (s.t0 and s.marks and s.marks[-1][0] > A.secs)
    cb = CB()
    m = PPO(pol, env, n_steps=A.T, batch_size=A.mb, n_epochs=A.epochs, device="cpu", **kw)
    m.learn(10**9, callback=cb)
    mk = cb.marks; h = len(mk)//2; dt, st = mk[-1]
    print(json.dumps(dict(peer="sb3", **vars(A), steps_s=round(st/dt), window=round(dt, 2), halves=[round((b[1]-a[1])/max(1e-9, b[0]-a[0])) for a, b in ((mk[0], mk[h]), (mk[h], mk[-1]))], iters=len(mk)-1, sample_frac=round(cb.ts/dt, 3))), flush=True)
    env.close()
