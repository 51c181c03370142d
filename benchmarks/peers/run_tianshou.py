"""tianshou 2.0.1 PPO: Collector.collect + PPO.update, the two calls OnPolicyTrainer makes. python run_tianshou.py --env cartpole --vec dummy --n 64 --T 64 --mb 2048 --epochs 4 --secs 20"""
import argparse, time, json
P = argparse.ArgumentParser()
P.add_argument("--env", default="cartpole"); P.add_argument("--vec", default="dummy"); P.add_argument("--n", type=int, default=64); P.add_argument("--T", type=int, default=64); P.add_argument("--mb", type=int, default=2048); P.add_argument("--epochs", type=int, default=4); P.add_argument("--secs", type=float, default=20); P.add_argument("--warm", type=int, default=2); P.add_argument("--threads", type=int, default=1); P.add_argument("--hidden", type=int, default=64)
A = P.parse_args()
import numpy as np, torch, gymnasium as gym
torch.set_num_threads(A.threads)
from tianshou.env import DummyVectorEnv, SubprocVectorEnv, ShmemVectorEnv
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.algorithm.modelfree.ppo import PPO
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.utils.net.common import Net
def mk():
    if A.env == "pong":
        import ale_py; gym.register_envs(ale_py)
        e = gym.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.); e = gym.wrappers.AtariPreprocessing(e, frame_skip=4); return gym.wrappers.FrameStackObservation(e, 4)
    return gym.make({"cartpole": "CartPole-v1", "cheetah": "HalfCheetah-v5"}[A.env])
if __name__ == "__main__":
    V = {"dummy": DummyVectorEnv, "subproc": SubprocVectorEnv, "shmem": ShmemVectorEnv}[A.vec]
    envs = V([mk]*A.n); e = mk(); osp, asp = e.observation_space, e.action_space
    if A.env == "cheetah":
        from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
        from torch.distributions import Independent, Normal
        actor = ContinuousActorProbabilistic(preprocess_net=Net(state_shape=osp.shape, hidden_sizes=[A.hidden]*2, activation=torch.nn.Tanh), action_shape=asp.shape, unbounded=True)
        critic = ContinuousCritic(preprocess_net=Net(state_shape=osp.shape, hidden_sizes=[A.hidden]*2, activation=torch.nn.Tanh))
        dist = lambda ls: Independent(Normal(*ls), 1)
    else:
        from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
        if A.env == "pong":
            from tianshou.env.atari.atari_network import DQNet, ScaledObsInputActionReprNet
            net = ScaledObsInputActionReprNet(DQNet(4, 84, 84, asp.n, features_only=True, output_dim_added_layer=512)); n2 = net
        else: net = Net(state_shape=osp.shape, hidden_sizes=[A.hidden]*2, activation=torch.nn.Tanh); n2 = Net(state_shape=osp.shape, hidden_sizes=[A.hidden]*2, activation=torch.nn.Tanh)
        actor = DiscreteActor(preprocess_net=net, action_shape=asp.n, softmax_output=False); critic = DiscreteCritic(preprocess_net=n2)
        dist = lambda lo: torch.distributions.Categorical(logits=lo)
    pol = ProbabilisticActorPolicy(actor=actor, dist_fn=dist, action_space=asp, action_scaling=A.env == "cheetah", action_bound_method="clip" if A.env == "cheetah" else None)
    alg = PPO(policy=pol, critic=critic, optim=AdamOptimizerFactory(lr=2.5e-4), max_grad_norm=.5, max_batchsize=A.mb, eps_clip=.1)
    kw = dict(ignore_obs_next=True, save_only_last_obs=False) if A.env == "pong" else {}
    col = Collector(alg, envs, VectorReplayBuffer(A.n*A.T, A.n, **kw)); col.reset()
    from tianshou.utils.torch_utils import policy_within_training_step
    it = 0; t0 = None; steps = 0; marks = []; ts = 0
    while True:
        now = time.perf_counter()
        if it == A.warm: t0 = now; steps = 0; ts = 0
        if t0: marks.append((now-t0, steps))
        if t0 and now-t0 > A.secs: break
        with policy_within_training_step(alg.policy):
            col.collect(n_step=A.n*A.T); ts += time.perf_counter()-now
            alg.update(buffer=col.buffer, batch_size=A.mb, repeat=A.epochs); col.reset_buffer(keep_statistics=True)
        it += 1; steps += A.n*A.T
    h = len(marks)//2; dt, st = marks[-1]
    print(json.dumps(dict(peer="tianshou", **vars(A), steps_s=round(st/dt), window=round(dt, 2), halves=[round((b[1]-a[1])/max(1e-9, b[0]-a[0])) for a, b in ((marks[0], marks[h]), (marks[h], marks[-1]))], iters=len(marks)-1, sample_frac=round(ts/dt, 3))), flush=True); envs.close()
