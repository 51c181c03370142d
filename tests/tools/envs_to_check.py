"""Envs that break the contract, each in one way, and what the tool needs to tell them apart."""

import time

import gymnasium
import numpy as np
from gymnasium import spaces

from srl.algorithms.ppo import PPOConfig
from srl.core.experiment import EnvConfig, Experiment


class Walk(gymnasium.Env):
    """A random walk; `fault` says what is wrong with it."""

    observation_space = spaces.Box(-99, 99, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, fault="none", limit=20):
        self.fault, self.limit = fault, limit

    def reset(self, *, seed=None, options=None):
        if seed is not None and self.fault == "slow seed":
            time.sleep(0.002)
        if self.fault == "shared seed":
            seed = 0
        if self.fault != "unseeded":
            super().reset(seed=seed)
        self.count = 0
        self.place = self.np_random.normal(size=2).astype(np.float32)
        return self.place, {}

    def step(self, action):
        self.count += 1
        self.place = self.place + self.np_random.normal(size=2).astype(np.float32)
        obs = self.place
        if self.count == 5 and self.fault == "nan":
            obs = obs * np.nan
        if self.count == 5 and self.fault == "dtype":
            obs = obs.astype(np.float64)
        if self.count == 5 and self.fault == "raises":
            raise RuntimeError("the simulator is on fire")
        is_over = self.count >= self.limit
        is_flagged_wrong = self.fault == "terminated"
        return obs, 1.0, is_over and is_flagged_wrong, is_over and not is_flagged_wrong, {}


def make_walk(fault="none"):
    return Walk(fault)


def experiment():
    return Experiment(
        name="walk",
        env=EnvConfig(name=f"{__file__}:Walk", options='{"limit": 12}'),
        algorithm=PPOConfig(),
    )


class NotBuilt:
    """A batched env that raises what it should not."""

    @staticmethod
    def make_batch(request):
        raise ValueError("no licence")
