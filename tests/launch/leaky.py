"""An env that keeps some megabytes every second, whatever is asked of it."""

import time
from typing import ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces


class Leaky(gymnasium.Env):
    """Episodes of ten steps."""

    observation_space = spaces.Box(-10, 10, (3,), np.float32)
    action_space = spaces.Discrete(2)
    started: float | None = None
    """When this process first stepped one."""
    kept: ClassVar[list[np.ndarray]] = []
    megabytes_per_second = 30.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left = 10
        return self.np_random.standard_normal(3).clip(-10, 10).astype(np.float32), {}

    def step(self, action):
        self._left -= 1
        Leaky.started = Leaky.started or time.monotonic()
        due = (time.monotonic() - Leaky.started) * self.megabytes_per_second
        while len(Leaky.kept) < due:
            Leaky.kept.append(np.ones(1_000_000, np.uint8))
        observation = self.np_random.standard_normal(3).clip(-10, 10).astype(np.float32)
        return observation, 1.0, False, self._left == 0, {}
