"""Pendulum-v1 by SAC, TD3 and DDPG."""

from srl.algorithms.sac import SACConfig
from srl.algorithms.td3 import TD3Config
from srl.core.experiment import ActorsConfig, EnvConfig, Experiment, StopConfig
from srl.core.replay import ReplayConfig

# One optimiser step for every env step, eight of each in turn.
REPLAY = ReplayConfig(
    capacity=20_000, batch=256, steps=8, warm_up=200, samples_per_insert=256, tolerance=8 * 256
)
ACTORS = ActorsConfig(count=1, envs=1, groups=1)


def pendulum_sac() -> Experiment[SACConfig]:
    """20k env steps."""
    return Experiment(
        name="pendulum-sac",
        env=EnvConfig(name="gym/Pendulum-v1"),
        # RL Baselines3 Zoo's Pendulum-v1 settings (1e-3, the rest by default), without gSDE.
        algorithm=SACConfig(rollout=8, replay=REPLAY, learning_rate=1e-3),
        actors=ACTORS,
        stop=StopConfig(env_steps=20_000),
    )


def pendulum_td3() -> Experiment[TD3Config]:
    """20k env steps."""
    return Experiment(
        name="pendulum-td3",
        env=EnvConfig(name="gym/Pendulum-v1"),
        # RL Baselines3 Zoo's Pendulum-v1 settings: 1e-3, discount 0.98, noise 0.1.
        algorithm=TD3Config(rollout=8, replay=REPLAY, learning_rate=1e-3, discount=0.98),
        actors=ACTORS,
        stop=StopConfig(env_steps=20_000),
    )


def pendulum_ddpg() -> Experiment[TD3Config]:
    """20k env steps, by TD3 without what made it TD3."""
    return Experiment(
        name="pendulum-ddpg",
        env=EnvConfig(name="gym/Pendulum-v1"),
        # RL Baselines3 Zoo's Pendulum-v1 settings: 1e-3, discount 0.98, noise 0.1.
        algorithm=TD3Config(
            rollout=8,
            replay=REPLAY,
            learning_rate=1e-3,
            discount=0.98,
            critics=1,
            policy_delay=1,
            target_noise=0.0,
        ),
        actors=ACTORS,
        stop=StopConfig(env_steps=20_000),
    )
