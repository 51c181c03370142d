"""An env that wears out: it crashes, hangs and leaks, each as often as it is told to."""

import time
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces


class Worn(gymnasium.Env):
    """Noise for 50 steps.

    Crashes and hangs are drawn from the episode's own generator: its seed and actions bring them
    back. What leaks is a matter of time, and of the whole process.
    """

    observation_space = spaces.Box(-10, 10, (3,), np.float32)
    action_space = spaces.Discrete(2)
    started: ClassVar[float] = 0.0
    """When this process first stepped one."""
    kept: ClassVar[list[np.ndarray]] = []

    def __init__(
        self, crash_every: int = 0, hang_every: int = 0, megabytes_per_second: float = 0.0
    ) -> None:
        """Crash once in so many steps, hang once in so many episodes, and leak."""
        self._crash = 1 / crash_every if crash_every else 0.0
        self._hang = 1 / hang_every if hang_every else 0.0
        self._leak = megabytes_per_second

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._left, self._hangs = 50, self.np_random.random() < self._hang
        return self._noise(), {}

    def step(self, action: Any) -> Any:
        self._left -= 1
        self._keep()
        if self.np_random.random() < self._crash:
            raise RuntimeError("a gear broke")
        if self._hangs and self._left == 40:
            time.sleep(1e6)
        return self._noise(), 1.0, False, self._left == 0, {}

    def _noise(self) -> np.ndarray:
        return self.np_random.standard_normal(3).clip(-10, 10).astype(np.float32)

    def _keep(self) -> None:
        if not self._leak:
            return
        Worn.started = Worn.started or time.monotonic()
        due = (time.monotonic() - Worn.started) * self._leak
        while len(Worn.kept) < due:
            Worn.kept.append(np.ones(1_000_000, np.uint8))
