"""An env that goes wrong in a chosen way after a chosen number of steps: `Faulty`."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from srl.algorithms.ppo import PPOConfig
from srl.core.experiment import ActorsConfig, EnvConfig, Experiment, StopConfig


class Faulty(gymnasium.Env):
    """Shows noise; each episode has ten steps. `fault` happens once `after` steps are done."""

    observation_space = spaces.Box(-10, 10, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, fault: str = "none", after: int = 0) -> None:
        self._fault = fault
        self._after = after
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if self._is_due("reset"):
            raise RuntimeError("the simulator is on fire")
        self._left = 10
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        self._left -= 1
        if self._is_due("step"):
            raise RuntimeError("the simulator is on fire")
        if self._is_due("exit"):
            raise SystemExit(0)
        reward = float("nan") if self._is_due("reward") else 1.0
        return self._observation(), reward, False, self._left == 0, {}

    def _observation(self) -> Any:
        observation = self.np_random.standard_normal(3).clip(-10, 10).astype(np.float32)
        if self._is_due("nan"):
            observation[1] = np.nan
        if self._is_due("shape"):
            return observation[:2]
        return observation.astype(np.float64) if self._is_due("dtype") else observation

    def _is_due(self, fault: str) -> bool:
        return fault == self._fault and self._steps >= self._after


def experiment() -> Experiment[PPOConfig]:
    """Faulty, a few thousand steps of it."""
    return Experiment(
        name="faulty",
        env=EnvConfig(name=f"{__file__}:Faulty"),
        algorithm=PPOConfig(rollout=8, batch_size=64, epochs=1, hidden=(8,)),
        actors=ActorsConfig(count=1, envs=8, groups=1),
        stop=StopConfig(env_steps=4000),
    )
