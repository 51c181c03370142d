"""Acrobot-v1 by DQN."""

from srl.algorithms.dqn import DQNConfig
from srl.core.experiment import ActorsConfig, EnvConfig, Experiment, StopConfig
from srl.core.replay import ReplayConfig


def acrobot_dqn() -> Experiment[DQNConfig]:
    """Return >= -100, Gymnasium's threshold, at 60k env steps."""
    return Experiment(
        name="acrobot-dqn",
        env=EnvConfig(name="gym/Acrobot-v1", scale_rewards=0.1),
        algorithm=DQNConfig(
            rollout=8,
            replay=ReplayConfig(
                capacity=100_000, batch=64, steps=8, warm_up=1000, samples_per_insert=16
            ),
            n_step=3,
            huber=10.0,
            learning_rate=1e-3,
            learning_rate_schedule="linear",
            target_interval=128,
            target_rate=1.0,
            epsilon_end=0.02,
        ),
        actors=ActorsConfig(count=1, envs=8, groups=2),
        stop=StopConfig(env_steps=60_000),
    )
