"""Experiments that learn from a replay buffer, in seconds."""

from dataclasses import replace
from typing import Any

from srl.algorithms.dqn import DQNConfig
from srl.core.experiment import ActorsConfig, EnvConfig, EvaluationConfig, Experiment, StopConfig
from srl.core.replay import ReplayConfig


def chain() -> Experiment[DQNConfig]:
    """A walk of seven steps to the right pays 1; by chance hardly anybody comes there."""
    return Experiment(
        name="chain",
        env=EnvConfig(name="toy/chain"),
        algorithm=DQNConfig(
            rollout=8,
            replay=ReplayConfig(
                capacity=5000, batch=32, steps=4, warm_up=256, samples_per_insert=4
            ),
            learning_rate=3e-3,
            discount=0.9,
            hidden=(32,),
            target_rate=0.02,
            epsilon_fraction=0.5,
        ),
        actors=ActorsConfig(count=1, envs=8, groups=2),
        evaluation=EvaluationConfig(episodes=20),
        stop=StopConfig(env_steps=6000),
    )


def masked() -> Experiment[DQNConfig]:
    """16 of 16 right answers, of those that are allowed."""
    algorithm = replace(chain().algorithm, discount=0.0, hidden=(64, 64))
    return replace(
        chain(),
        name="masked",
        env=EnvConfig(name="toy/masked"),
        algorithm=algorithm,
        stop=StopConfig(env_steps=20_000),
    )


def pay_for_the_left(windows: Any, _: Any) -> None:
    """For `relabel`: the other way is the right one."""
    windows["reward"][...] = windows["action"] == 0
