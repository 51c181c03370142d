"""CartPole-v1 by PPO: the mean return passes 475 (of 500) after 70k to 145k env steps."""

from srl.algorithms.ppo import PPOConfig
from srl.core.experiment import ActorsConfig, EnvConfig, Experiment, StopConfig


def cartpole() -> Experiment[PPOConfig]:
    """Return 500 at 150k env steps, in about half a minute on two cores (benchmarks/learn.json)."""
    return Experiment(
        name="cartpole",
        env=EnvConfig(name="gym/CartPole-v1"),
        algorithm=PPOConfig(
            # RL Baselines3 Zoo's CartPole-v1 settings (n_steps 32, gamma 0.98, lambda 0.8,
            # 1e-3 and 0.2 falling linearly), with a batch of 1,024 rows and 10 epochs.
            rollout=32,
            batch_size=1024,
            epochs=10,
            minibatch_size=256,
            learning_rate=1e-3,
            learning_rate_schedule="linear",
            clip_schedule="linear",
            discount=0.98,
            gae_lambda=0.8,
            entropy_weight=0.0,
        ),
        actors=ActorsConfig(count=1, envs=32, groups=2),
        # Fixed, so that the schedules end at 0: the last policy is then a steady one.
        stop=StopConfig(env_steps=150_000),
        max_staleness=1,
    )
