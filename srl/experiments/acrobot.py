"""Acrobot-v1 by PPO: the mean return passes -100 after about 130k env steps."""

from srl.algorithms.ppo import PPOConfig
from srl.core.experiment import ActorsConfig, EnvConfig, Experiment, StopConfig


def acrobot() -> Experiment[PPOConfig]:
    """Return >= -100, Gymnasium's threshold, at 300k env steps; about a minute on two cores."""
    return Experiment(
        name="acrobot",
        env=EnvConfig(name="gym/Acrobot-v1"),
        algorithm=PPOConfig(
            # RL Baselines3 Zoo's Acrobot-v1 settings (n_steps 256, gamma 0.99, lambda 0.94,
            # 4 epochs, normalised observations), with larger batches.
            rollout=128,
            batch_size=4096,
            epochs=4,
            minibatch_size=256,
            learning_rate=1e-3,
            learning_rate_schedule="linear",
            discount=0.99,
            gae_lambda=0.94,
            entropy_weight=0.0,
            normalise_observations=True,
        ),
        actors=ActorsConfig(count=1, envs=32, groups=2),
        stop=StopConfig(env_steps=300_000),
        max_staleness=1,
    )
