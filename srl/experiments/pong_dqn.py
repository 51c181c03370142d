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
            # As Hessel et al. 2018, but: batches of 256 in the place of 32, with a step size four times as large,
            # a layer of 512 before both streams, with which the encoder ends, and noise of 0.1, not 0.5. Their ε of
            # 1.5e-4 is for gradients of 32: those of 256 were 5e-5 a weight (root mean square) in a run that was
            # still at -21 after 1.2M steps. The target network is copied every 32,000 frames, as
            # there: an update is of 32 env steps, so 250 of them. The run has 62,000, and values spread
            # only as fast as there are copies.
            rollout=16,
            replay=ReplayConfig(
                kind="prioritised",
                capacity=1_000_000,
                batch=256,
                steps=8,
                warm_up=20_000,
                samples_per_insert=8,
                priority_exponent=0.5,
                saved=False,
            ),
            dueling=True,
            n_step=3,
            distribution="c51",
            value_range=(-10.0, 10.0),
            noisy=0.1,
            hidden=(512,),
            learning_rate=2.5e-4,
            adam_epsilon=1e-6,
            target_interval=250,
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
            # As Horgan et al. 2018 with returns of 3 steps and random actions 0.4 ** (1 + 7x), but with Adam, a
            # layer of 512 before both streams, batches of 256 in the place of 512, and twice as many draws
            # for each row. There the target network is copied every 2500 updates, here every 250: values
            # spread only as fast as there are copies.
            rollout=16,
            replay=ReplayConfig(
                kind="prioritised",
                capacity=1_000_000,
                batch=256,
                steps=8,
                warm_up=50_000,
                samples_per_insert=8,
                saved=False,
            ),
            dueling=True,
            n_step=3,
            hidden=(512,),
            learning_rate=2e-4,
            adam_epsilon=1e-6,
            max_grad_norm=40.0,
            target_interval=250,
            target_rate=1.0,
            epsilon_start=0.4,
            epsilon_end=0.4,
            ladder=7.0,
        ),
        actors=ActorsConfig(count=14, envs=16, groups=2),
        stop=StopConfig(env_steps=10_000_000),
    )
