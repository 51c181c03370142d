"""Pong by PPO and by APPO, from pixels: meant for a GPU host (`--trainers.device cuda`)."""

from srl.algorithms.appo import APPOConfig
from srl.algorithms.ppo import PPOConfig
from srl.core.experiment import ActorsConfig, EnvConfig, Experiment, StopConfig

ENV = EnvConfig(name="atari/pong", reseed="start", clip_rewards=1.0)


def pong() -> Experiment[PPOConfig]:
    """10M env steps, 40M frames; rewards are clipped to ±1, which Pong's are anyhow."""
    return Experiment(
        name="pong",
        env=ENV,
        algorithm=PPOConfig(
            # CleanRL's ppo_atari_envpool: 8 envs of 128 steps, 4 minibatches, 4 epochs, clipped
            # values; actor and critic share all but their last layer.
            rollout=128,
            batch_size=1024,
            epochs=4,
            minibatch_size=256,
            learning_rate=2.5e-4,
            learning_rate_schedule="linear",
            discount=0.99,
            gae_lambda=0.95,
            clip=0.1,
            value_clip=0.1,
            entropy_weight=0.01,
            hidden=(),
        ),
        actors=ActorsConfig(count=1, envs=8, groups=2),
        stop=StopConfig(env_steps=10_000_000),
        max_staleness=1,
    )


def pong_appo() -> Experiment[APPOConfig]:
    """The same by APPO, from batches that may be four versions old."""
    return Experiment(
        name="pong-appo",
        env=ENV,
        algorithm=APPOConfig(
            rollout=128,
            batch_size=1024,
            epochs=4,
            minibatch_size=256,
            learning_rate=2.5e-4,
            learning_rate_schedule="linear",
            discount=0.99,
            gae_lambda=0.95,
            clip=0.1,
            entropy_weight=0.01,
            hidden=(),
        ),
        actors=ActorsConfig(count=1, envs=8, groups=2),
        stop=StopConfig(env_steps=10_000_000),
        max_staleness=4,
    )
