"""An env that breaks in one step of one of its envs: what it shows or gives is then not finite."""

from dataclasses import dataclass

import numpy as np

from srl.algorithms.ppo import PPOConfig
from srl.core.experiment import (
    ActorsConfig,
    CheckpointConfig,
    EnvConfig,
    EvaluationConfig,
    Experiment,
    StopConfig,
)
from srl.envs.toy import Identity
from srl.envs.toy.base import Moment

ENV, EPISODE, STEP = 5, 2, 3


@dataclass(frozen=True, kw_only=True)
class Unfinite(Identity):
    """`fault`: obs or reward; `always`: also in all later episodes."""

    length: int = 6
    fault: str = "obs"
    value: float = float("nan")
    always: bool = False

    def _is_due(self, now: Moment) -> np.ndarray:
        late = now.episode >= EPISODE if self.always else now.episode == EPISODE
        return late & (now.env == ENV) & (now.step == STEP) & (now.agent >= 0)

    def show(self, state: np.ndarray, now: Moment) -> dict[str, np.ndarray]:
        shown = super().show(state, now)
        if self.fault == "obs":
            shown["obs"][self._is_due(now), 1] = self.value
        return shown

    def play(
        self, state: np.ndarray, action: np.ndarray, now: Moment, after: Moment
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        state, reward, ends = super().play(state, action, now, after)
        if self.fault == "reward":
            reward[self._is_due(now)] = self.value
        return state, reward, ends


def experiment() -> Experiment[PPOConfig]:
    """Two actors with four envs each: env 5 is one of the second's."""
    return Experiment(
        name="unfinite",
        env=EnvConfig(name=f"{__file__}:Unfinite"),
        algorithm=PPOConfig(
            rollout=8, batch_size=64, epochs=2, minibatch_size=32, hidden=(8,), learning_rate=1e-3
        ),
        actors=ActorsConfig(count=2, envs=4),
        stop=StopConfig(env_steps=2000),
        checkpoint=CheckpointConfig(seconds=1000.0),
        evaluation=EvaluationConfig(episodes=20),
    )
