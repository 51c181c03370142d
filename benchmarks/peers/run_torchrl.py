"""torchrl PPO: SyncDataCollector + ClipPPOLoss + GAE + ReplayBuffer(SamplerWithoutReplacement), as in its sota-implementations/ppo. python run_torchrl.py --env cartpole --n 16 --T 64 ..."""
import argparse, time, json, warnings; warnings.filterwarnings("ignore")
P = argparse.ArgumentParser()
P.add_argument("--env", default="cartpole"); P.add_argument("--vec", default="serial"); P.add_argument("--n", type=int, default=16); P.add_argument("--T", type=int, default=64); P.add_argument("--mb", type=int, default=1024); P.add_argument("--epochs", type=int, default=4); P.add_argument("--secs", type=float, default=20); P.add_argument("--warm", type=int, default=2); P.add_argument("--threads", type=int, default=1); P.add_argument("--hidden", type=int, default=64)
A = P.parse_args()
import torch, torch.nn as nn, gymnasium as gym, numpy as np
torch.set_num_threads(A.threads)
from torchrl.envs import GymEnv, GymWrapper, SerialEnv, ParallelEnv
try: from torchrl.collectors import SyncDataCollector as Coll
except Exception: from torchrl.collectors import Collector as Coll
from torchrl.modules import ProbabilisticActor, ValueOperator, TanhNormal, ActorValueOperator
from tensordict.nn import TensorDictModule
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
def mk():
    if A.env == "pong":
        import ale_py; gym.register_envs(ale_py)
        e = gym.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.); e = gym.wrappers.AtariPreprocessing(e, frame_skip=4); return GymWrapper(gym.wrappers.FrameStackObservation(e, 4), categorical_action_encoding=True)
    if A.env == "cartpole": return GymEnv("CartPole-v1", categorical_action_encoding=True)
    return GymEnv("HalfCheetah-v5")
if __name__ == "__main__":
    from torchrl.envs import TransformedEnv, DoubleToFloat
    env = {"serial": SerialEnv, "parallel": ParallelEnv}[A.vec](A.n, mk)
    if A.env == "cheetah": env = TransformedEnv(env, DoubleToFloat(in_keys=["observation"]))
    key = "pixels" if A.env == "pong" and "pixels" in env.observation_spec.keys() else "observation"
    h = A.hidden; e1 = mk(); spec = env.action_spec_unbatched if hasattr(env, "action_spec_unbatched") else e1.action_spec
    def mlp(o, a): return nn.Sequential(nn.Linear(o, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh(), nn.Linear(h, a))
    if A.env == "pong":
        class Scale(nn.Module):
            def forward(s, x): return x.float()/255.
        class Body(nn.Module):
            def __init__(s): super().__init__(); s.c = nn.Sequential(Scale(), nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU())
            def forward(s, x): b = x.shape[:-3]; return s.c(x.reshape(-1, *x.shape[-3:])).reshape(*b, 512)
        common = TensorDictModule(Body(), in_keys=[key], out_keys=["feat"])
        pi = ProbabilisticActor(TensorDictModule(nn.Linear(512, 6), in_keys=["feat"], out_keys=["logits"]), in_keys=["logits"], spec=spec, distribution_class=torch.distributions.Categorical, return_log_prob=True)
        av = ActorValueOperator(common, pi, ValueOperator(nn.Linear(512, 1), in_keys=["feat"])); actor, critic = av.get_policy_operator(), av.get_value_operator()
    elif A.env == "cartpole":
        actor = ProbabilisticActor(TensorDictModule(mlp(4, 2), in_keys=[key], out_keys=["logits"]), in_keys=["logits"], spec=spec, distribution_class=torch.distributions.Categorical, return_log_prob=True); critic = ValueOperator(mlp(4, 1), in_keys=[key])
    else:
        from tensordict.nn import AddStateIndependentNormalScale
        actor = ProbabilisticActor(TensorDictModule(nn.Sequential(mlp(17, 6), AddStateIndependentNormalScale(6)), in_keys=[key], out_keys=["loc", "scale"]), in_keys=["loc", "scale"], spec=spec, distribution_class=TanhNormal, return_log_prob=True); critic = ValueOperator(mlp(17, 1), in_keys=[key])
    B = A.n*A.T
    col = Coll(env, actor, frames_per_batch=B, total_frames=-1)
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(B), sampler=SamplerWithoutReplacement(), batch_size=A.mb)
    gae = GAE(gamma=.99, lmbda=.95, value_network=critic, average_gae=False); loss = ClipPPOLoss(actor, critic, clip_epsilon=.1, normalize_advantage=True)
    opt = torch.optim.Adam(loss.parameters(), lr=2.5e-4, eps=1e-5)
    it = 0; t0 = None; steps = 0; marks = []; tl = 0
    for data in col:
        now = time.perf_counter()
        if it == A.warm: t0 = now; steps = 0; tl = 0
        if t0: marks.append((now-t0, steps))
        if t0 and now-t0 > A.secs: break
        with torch.no_grad(): data = gae(data)
        flat = data.reshape(-1)
        for _ in range(A.epochs):
            rb.empty(); rb.extend(flat)
            for b in rb:
                l = loss(b); s = l["loss_critic"]+l["loss_objective"]+l["loss_entropy"]
                s.backward(); nn.utils.clip_grad_norm_(loss.parameters(), .5); opt.step(); opt.zero_grad()
        if hasattr(col, "update_policy_weights_"): col.update_policy_weights_()
        tl += time.perf_counter()-now; it += 1; steps += B
    hh = len(marks)//2; dt, st = marks[-1]
    print(json.dumps(dict(peer="torchrl", **vars(A), steps_s=round(st/dt), window=round(dt, 2), halves=[round((b[1]-a[1])/max(1e-9, b[0]-a[0])) for a, b in ((marks[0], marks[hh]), (marks[hh], marks[-1]))], iters=len(marks)-1, learn_frac=round(tl/dt, 3))), flush=True)
    import os; os._exit(0)
