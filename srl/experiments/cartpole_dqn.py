"""CartPole-v1 by DQN, by Rainbow and by R2D2: what is kept and drawn again makes few steps enough."""

from srl.algorithms.dqn import DQNConfig
from srl.core.experiment import ActorsConfig, EnvConfig, Experiment, StopConfig
from srl.core.replay import ReplayConfig

# A tenth of CartPole's rewards: values of up to 10, which a fresh network is near to.
ENV = EnvConfig(name="gym/CartPole-v1", scale_rewards=0.1)
ACTORS = ActorsConfig(count=1, envs=8, groups=2)


def cartpole_dqn() -> Experiment[DQNConfig]:
    """Return >= 475 at 60k env steps."""
    return Experiment(
        name="cartpole-dqn",
        env=ENV,
        algorithm=DQNConfig(
            # As often as in RL Baselines3 Zoo (32 draws a step, batches of 64, the target network
            # copied every 128 updates); returns of 3 steps, and a step size that falls to 0.
            rollout=8,
            replay=ReplayConfig(
                capacity=100_000, batch=64, steps=8, warm_up=1000, samples_per_insert=32
            ),
            n_step=3,
            huber=10.0,
            learning_rate=2e-3,
            learning_rate_schedule="linear",
            target_interval=128,
            target_rate=1.0,
            epsilon_end=0.02,
        ),
        actors=ACTORS,
        stop=StopConfig(env_steps=60_000),
    )


def cartpole_rainbow() -> Experiment[DQNConfig]:
    """Return >= 475 at 80k env steps; Rainbow is all of DQN's options together."""
    return Experiment(
        name="cartpole-rainbow",
        env=ENV,
        algorithm=DQNConfig(
            rollout=8,
            replay=ReplayConfig(
                kind="prioritised",
                capacity=100_000,
                batch=64,
                steps=8,
                warm_up=1000,
                samples_per_insert=16,
                priority_exponent=0.5,
            ),
            dueling=True,
            n_step=3,
            distribution="c51",
            # Twice what returns can be, so that those of a good policy do not end at the last atom.
            value_range=(0.0, 20.0),
            noisy=0.2,
            learning_rate=1e-3,
            learning_rate_schedule="linear",
            target_interval=128,
            target_rate=1.0,
        ),
        actors=ACTORS,
        stop=StopConfig(env_steps=80_000),
    )


def cartpole_r2d2() -> Experiment[DQNConfig]:
    """Return >= 475 at 100k env steps; R2D2's memory is not needed here."""
    return Experiment(
        name="cartpole-r2d2",
        env=ENV,
        algorithm=DQNConfig(
            rollout=8,
            replay=ReplayConfig(
                kind="prioritised",
                # Not all of the run: states of the memory that were recorded long ago are of another network.
                capacity=30_000,
                batch=32,
                steps=8,
                warm_up=2000,
                samples_per_insert=4,
            ),
            dueling=True,
            # The paper's five, and a copy of the target network every 400 env steps, 250 in all: rewards
            # move back by 1,250 steps in a run, where values need some hundred to be known.
            n_step=5,
            huber=10.0,
            rescale=True,
            memory="lstm",
            memory_size=64,
            chunk=8,
            burn_in=4,
            hidden=(64,),
            learning_rate=1e-3,
            learning_rate_schedule="linear",
            target_interval=50,
            target_rate=1.0,
            epsilon_end=0.1,
            ladder=2.0,
        ),
        actors=ACTORS,
        stop=StopConfig(env_steps=100_000),
    )
