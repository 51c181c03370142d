"""One learning run of Stable-Baselines3, in its own environment; prints one JSON line.

    python learn_sb3.py CASE SEED EPISODES

Settings are those RL Baselines3 Zoo has tuned for each env, with the steps of the case.
"""

import json
import sys
import time

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3 import DQN, PPO, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecNormalize


def linear(value):
    return lambda left: left * value


def noise(env):
    size = env.action_space.shape[0]
    return NormalActionNoise(np.zeros(size), 0.1 * np.ones(size))


CASES = {
    "cartpole-ppo": (
        PPO,
        "CartPole-v1",
        8,
        100_000,
        {
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "ent_coef": 0.0,
            "learning_rate": linear(1e-3),
            "clip_range": linear(0.2),
        },
    ),
    "cartpole-dqn": (
        DQN,
        "CartPole-v1",
        1,
        100_000,
        {
            "learning_rate": 2.3e-3,
            "batch_size": 64,
            "buffer_size": 100_000,
            "learning_starts": 1000,
            "gamma": 0.99,
            "target_update_interval": 10,
            "train_freq": 256,
            "gradient_steps": 128,
            "exploration_fraction": 0.16,
            "exploration_final_eps": 0.04,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
    ),
    "pendulum-sac": (SAC, "Pendulum-v1", 1, 20_000, {"learning_rate": 1e-3}),
    "pendulum-td3": (
        TD3,
        "Pendulum-v1",
        1,
        20_000,
        {
            "gamma": 0.98,
            "buffer_size": 200_000,
            "learning_starts": 10_000,
            "action_noise": noise,
            "gradient_steps": 1,
            "train_freq": 1,
            "learning_rate": 1e-3,
            "policy_kwargs": {"net_arch": [400, 300]},
        },
    ),
    "half-cheetah-sac": (SAC, "HalfCheetah-v5", 1, 100_000, {"learning_starts": 10_000}),
    "half-cheetah-td3": (
        TD3,
        "HalfCheetah-v5",
        1,
        100_000,
        {
            "learning_starts": 10_000,
            "action_noise": noise,
            "train_freq": 1,
            "gradient_steps": 1,
            "learning_rate": 1e-3,
            "batch_size": 256,
            "policy_kwargs": {"net_arch": [400, 300]},
        },
    ),
}


def main(case, seed, episodes):
    torch.set_num_threads(1)
    kind, name, num_envs, steps, options = CASES[case]
    env = make_vec_env(name, n_envs=num_envs, seed=seed)
    assert not isinstance(env, VecNormalize)
    options = dict(options)
    if callable(options.get("action_noise")):
        options["action_noise"] = options["action_noise"](gymnasium.make(name))
    model = kind("MlpPolicy", env, seed=seed, device="cpu", **options)
    start = time.perf_counter()
    model.learn(steps)
    seconds = time.perf_counter() - start
    judge = make_vec_env(name, n_envs=1, seed=seed + 10_000)
    returns, _ = evaluate_policy(model, judge, n_eval_episodes=episodes, return_episode_rewards=True)
    found = {"return": float(np.mean(returns)), "seconds": seconds, "env_steps": model.num_timesteps}
    found["sb3"] = stable_baselines3.__version__
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
