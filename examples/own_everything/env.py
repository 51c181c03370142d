"""Catch: a ball falls, a paddle moves below it. A plain Gymnasium env that knows nothing of SRL."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Catch(gymnasium.Env):
    """Reward 1 for a ball that is caught, -1 for one that is not; then the episode is over."""

    def __init__(self, width: int = 5, height: int = 6) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = spaces.Discrete(3)  # left, stay, right
        self._width = width
        self._height = height

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Drop a ball somewhere, above a paddle somewhere else."""
        super().reset(seed=seed)
        self._row = 0
        self._ball, self._paddle = (int(n) for n in self.np_random.integers(self._width, size=2))
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move the paddle; the ball falls by one row."""
        self._paddle = int(np.clip(self._paddle + action - 1, 0, self._width - 1))
        self._row += 1
        landed = self._row == self._height - 1
        reward = (1.0 if self._ball == self._paddle else -1.0) if landed else 0.0
        return self._observation(), reward, landed, False, {}

    def _observation(self) -> np.ndarray:
        """Height of the ball, its place and the paddle's, each in -1..1."""
        places = [self._row / (self._height - 1), *(self._columns() / (self._width - 1))]
        return np.array(places, np.float32) * 2 - 1

    def _columns(self) -> np.ndarray:
        return np.array([self._ball, self._paddle])
