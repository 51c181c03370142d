"""CartPole-v1 by DQN, and by Rainbow."""

from srl.algorithms.dqn import DQNConfig
from srl.core.experiment import ActorsConfig, EnvConfig, Experiment, StopConfig
from srl.core.replay import ReplayConfig


def cartpole_dqn() -> Experiment[DQNConfig]:
    """DQN."""
    return Experiment(
        name="cartpole-dqn",
        env=EnvConfig(name="gym/CartPole-v1"),
        algorithm=DQNConfig(
            rollout=8,
            replay=ReplayConfig(
                capacity=50_000, batch=128, steps=8, warm_up=1000, samples_per_insert=32
            ),
            learning_rate=5e-4,
            learning_rate_schedule="linear",
            epsilon_fraction=0.16,
            epsilon_end=0.04,
        ),
        actors=ActorsConfig(count=1, envs=8, groups=2),
        stop=StopConfig(env_steps=50_000),
    )
