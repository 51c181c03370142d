"""Pong from pixels by Rainbow and by Ape-X: meant for a GPU host (`--trainers.device cuda`)."""

from srl.algorithms.dqn import DQNConfig
from srl.core.experiment import ActorsConfig, Experiment, StopConfig
from srl.core.replay import ReplayConfig
from srl.experiments.pong import ENV


def pong_rainbow() -> Experiment[DQNConfig]:
    """2M env steps, 8M frames; a million of them are kept, which takes 8 GB."""
    return Experiment(
        name="pong-rainbow",
        env=ENV,
        algorithm=DQNConfig(
            # Hessel et al. 2018, table 1, with batches of 256 in the place of 32, and the
            # step size with the root of that.
            rollout=16,
            replay=ReplayConfig(
                kind="prioritised",
                capacity=1_000_000,
                batch=256,
                steps=4,
                warm_up=20_000,
                samples_per_insert=8,
                priority_exponent=0.5,
                saved=False,
            ),
            dueling=True,
            n_step=3,
            distribution="c51",
            value_range=(-10.0, 10.0),
            noisy=0.5,
            hidden=(512,),
            learning_rate=1.8e-4,
            adam_epsilon=1.5e-4,
            target_interval=1000,
            target_rate=1.0,
        ),
        actors=ActorsConfig(count=4, envs=16, groups=2),
        stop=StopConfig(env_steps=2_000_000),
    )


def pong_apex() -> Experiment[DQNConfig]:
    """10M env steps, 40M frames, of 14 actors, whose episodes explore from much to hardly at all."""
    return Experiment(
        name="pong-apex",
        env=ENV,
        algorithm=DQNConfig(
            # Horgan et al. 2018, appendix C: batches of 512, the target network copied every 2500 updates,
            # random actions 0.4 ** (1 + 7x).
            rollout=16,
            replay=ReplayConfig(
                kind="prioritised",
                capacity=1_000_000,
                batch=512,
                steps=4,
                warm_up=50_000,
                samples_per_insert=4,
                saved=False,
            ),
            dueling=True,
            n_step=3,
            hidden=(512,),
            learning_rate=1e-4,
            adam_epsilon=1.5e-4,
            max_grad_norm=40.0,
            target_interval=2500,
            target_rate=1.0,
            epsilon_start=0.4,
            epsilon_end=0.4,
            ladder=7.0,
        ),
        actors=ActorsConfig(count=14, envs=16, groups=2),
        stop=StopConfig(env_steps=10_000_000),
    )
