"""CartPole-v1 by the other on-policy algorithms."""

from srl.algorithms.a2c import A2CConfig
from srl.algorithms.appo import APPOConfig
from srl.algorithms.impala import ImpalaConfig
from srl.algorithms.ppg import PPGConfig
from srl.core.experiment import ActorsConfig, EnvConfig, Experiment, StopConfig


def cartpole_a2c() -> Experiment[A2CConfig]:
    """A2C: each batch is of the policy of now, and learned once, in eight steps (the paper: one)."""
    return Experiment(
        name="cartpole-a2c",
        env=EnvConfig(name="gym/CartPole-v1"),
        algorithm=A2CConfig(
            rollout=32,
            batch_size=512,
            minibatch_size=64,
            learning_rate=1e-3,
            learning_rate_schedule="linear",
            discount=0.99,
            gae_lambda=0.95,
            entropy_weight=0.0,
            normalise_returns=True,
            normalise_advantages=True,
        ),
        actors=ActorsConfig(count=1, envs=16, groups=1),
        stop=StopConfig(env_steps=200_000),
        max_staleness=0,
    )


def cartpole_impala() -> Experiment[ImpalaConfig]:
    """IMPALA: each batch may be one version old, and is learned once, in eight steps (the paper: one)."""
    return Experiment(
        name="cartpole-impala",
        env=EnvConfig(name="gym/CartPole-v1"),
        algorithm=ImpalaConfig(
            rollout=32,
            batch_size=512,
            minibatch_size=64,
            learning_rate=1e-3,
            learning_rate_schedule="linear",
            discount=0.99,
            gae_lambda=0.95,
            entropy_weight=0.0,
            normalise_returns=True,
            normalise_advantages=True,
        ),
        actors=ActorsConfig(count=1, envs=32, groups=2),
        stop=StopConfig(env_steps=200_000),
        max_staleness=1,
    )


def cartpole_appo() -> Experiment[APPOConfig]:
    """APPO: PPO's recipe, from batches that may be four versions old."""
    return Experiment(
        name="cartpole-appo",
        env=EnvConfig(name="gym/CartPole-v1"),
        algorithm=APPOConfig(
            rollout=32,
            batch_size=1024,
            epochs=10,
            minibatch_size=256,
            learning_rate=1e-3,
            learning_rate_schedule="linear",
            clip_schedule="linear",
            discount=0.98,
            gae_lambda=0.9,
            entropy_weight=0.0,
        ),
        actors=ActorsConfig(count=1, envs=32, groups=2),
        stop=StopConfig(env_steps=150_000),
        max_staleness=4,
    )


def cartpole_ppg() -> Experiment[PPGConfig]:
    """PPG: PPO with four epochs a batch, and an auxiliary phase every 16 batches."""
    return Experiment(
        name="cartpole-ppg",
        env=EnvConfig(name="gym/CartPole-v1"),
        algorithm=PPGConfig(
            rollout=32,
            batch_size=512,
            epochs=4,
            minibatch_size=128,
            learning_rate=1e-3,
            learning_rate_schedule="linear",
            clip_schedule="linear",
            discount=0.98,
            gae_lambda=0.95,
            entropy_weight=0.0,
            normalise_returns=True,
            auxiliary_every=16,
            auxiliary_epochs=6,
        ),
        actors=ActorsConfig(count=1, envs=32, groups=2),
        stop=StopConfig(env_steps=150_000),
        max_staleness=1,
    )
