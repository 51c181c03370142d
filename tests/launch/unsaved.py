"""PPO whose state cannot always be written: what a full disk does, without one."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from srl.algorithms.ppo import PPO, PPOConfig
from srl.core.experiment import ActorsConfig, EnvConfig, EvaluationConfig, Experiment, StopConfig


@dataclass(frozen=True, kw_only=True)
class Config(PPOConfig):
    mark: str = ""
    """While this file is there, nothing can be written."""

    def make_learner(self, agent, *, seed, compute, ranks):
        return Unsaved(self, agent, seed=seed, compute=compute, ranks=ranks)


class Unsaved(PPO):
    def __init__(self, config, agent, **kwargs):
        super().__init__(config, agent, **kwargs)
        self._mark = Path(config.mark)

    def save(self):
        return super().save() | ({"odd": np.array(["text"])} if self._mark.exists() else {})


def experiment():
    return Experiment(
        name="unsaved",
        env=EnvConfig(name="toy/identity"),
        algorithm=Config(hidden=(8,), rollout=16, batch_size=256),
        actors=ActorsConfig(envs=8),
        stop=StopConfig(env_steps=10_000_000),
        evaluation=EvaluationConfig(episodes=0),
    )
