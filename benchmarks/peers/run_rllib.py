"""RLlib new API stack. python run_rllib.py --algo PPO|APPO|IMPALA --env pong --runners 2 --n 8 --batch 4096 --mb 256 --epochs 4 --secs 60
steps/s from num_env_steps_sampled_lifetime over wall time (and, for APPO/IMPALA, trained steps too)."""
import argparse, time, json, os
P = argparse.ArgumentParser()
P.add_argument("--algo", default="PPO"); P.add_argument("--env", default="pong"); P.add_argument("--runners", type=int, default=1); P.add_argument("--n", type=int, default=8)
P.add_argument("--batch", type=int, default=4096); P.add_argument("--mb", type=int, default=256); P.add_argument("--epochs", type=int, default=4); P.add_argument("--frag", default="auto")
P.add_argument("--learners", type=int, default=0); P.add_argument("--secs", type=float, default=60); P.add_argument("--warm_s", type=float, default=15); P.add_argument("--hidden", type=int, default=64); P.add_argument("--gymvec", default="sync"); P.add_argument("--ncpu", type=int, default=4); P.add_argument("--threads", type=int, default=1)
A = P.parse_args()
os.environ.setdefault("RAY_DEDUP_LOGS", "1"); os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"; os.environ["OMP_NUM_THREADS"] = str(A.threads)
import ray, gymnasium as gym, ale_py
from ray.tune.registry import register_env
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
def mk(cfg=None):
    import gymnasium as gym, ale_py; gym.register_envs(ale_py)
    if A.env == "pong":
        e = gym.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.)
        e = gym.wrappers.AtariPreprocessing(e, frame_skip=4, scale_obs=True); e = gym.wrappers.FrameStackObservation(e, 4)
        import numpy as np
        return gym.wrappers.TransformObservation(e, lambda o: np.ascontiguousarray(np.moveaxis(np.asarray(o), 0, -1)), gym.spaces.Box(0., 1., (84, 84, 4), np.float32))
    return gym.make({"cartpole": "CartPole-v1", "cheetah": "HalfCheetah-v5", "ant": "Ant-v5"}[A.env])
register_env("bench", mk)
ray.init(num_cpus=A.ncpu, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
cfg = {"PPO": PPOConfig, "APPO": APPOConfig, "IMPALA": IMPALAConfig}[A.algo]()
cfg = cfg.environment("bench").env_runners(num_env_runners=A.runners, num_envs_per_env_runner=A.n, rollout_fragment_length=(A.frag if A.frag == "auto" else int(A.frag)), create_env_on_local_worker=False)
try: cfg = cfg.env_runners(gym_env_vectorize_mode=A.gymvec)
except Exception as e: print("vecmode", e)
mc = DefaultModelConfig(conv_filters=[[32, 8, 4], [64, 4, 2], [64, 3, 1]], conv_activation="relu", head_fcnet_hiddens=[512], head_fcnet_activation="relu", vf_share_layers=True) if A.env == "pong" else DefaultModelConfig(fcnet_hiddens=[A.hidden]*2, fcnet_activation="tanh", vf_share_layers=False)
cfg = cfg.rl_module(model_config=mc).learners(num_learners=A.learners, num_gpus_per_learner=0)
if A.algo == "PPO": cfg = cfg.training(train_batch_size_per_learner=A.batch, minibatch_size=A.mb, num_epochs=A.epochs)
elif A.algo == "APPO": cfg = cfg.training(train_batch_size_per_learner=A.batch)
else: cfg = cfg.training(train_batch_size_per_learner=A.batch)
cfg = cfg.reporting(min_time_s_per_iteration=0 if A.algo == "PPO" else 3)
t = time.perf_counter(); algo = cfg.build_algo(); print("build_s", round(time.perf_counter()-t, 1), flush=True)
def get(r):
    s = r["env_runners"].get("num_env_steps_sampled_lifetime", 0)
    l = r.get("learners", {}).get("__all_modules__", {}); tr = l.get("num_env_steps_trained_lifetime", 0)
    return s, tr
t0 = w = None; marks = []
while True:
    r = algo.train(); now = time.perf_counter(); s, tr = get(r)
    if t0 is None and s > 0 and (tr > 0 or A.algo == "PPO"): t0 = now  # the first batch was learned
    if w is None:
        if t0 and now-t0 > A.warm_s: w = now; marks = [(0, s, tr)]
        continue
    marks.append((now-w, s, tr))
    if now-w > A.secs: break
h = len(marks)//2; a, b = marks[0], marks[-1]
print(json.dumps(dict(peer="rllib", **vars(A), steps_s=round((b[1]-a[1])/b[0]), window=round(b[0], 2), trained_s=round((b[2]-a[2])/b[0]), halves=[round((y[1]-x[1])/max(1e-9, y[0]-x[0])) for x, y in ((a, marks[h]), (marks[h], b))], iters=len(marks)-1, ret=r["env_runners"].get("episode_return_mean"))), flush=True)
algo.stop(); ray.shutdown()
