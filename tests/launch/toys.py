"""A toy for every algorithm, learned in seconds: `FILE:NAME` is an experiment for `srl train`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from srl.algorithms.a2c import A2CConfig
from srl.algorithms.appo import APPOConfig
from srl.algorithms.dqn import DQNConfig
from srl.algorithms.impala import ImpalaConfig
from srl.algorithms.ppg import PPGConfig
from srl.algorithms.ppo import PPOConfig
from srl.algorithms.sac import SACConfig
from srl.algorithms.td3 import TD3Config
from srl.core.experiment import ActorsConfig, EnvConfig, Experiment, StopConfig
from srl.core.names import load_object
from srl.core.replay import ReplayConfig
from srl.nets.continuous import ContinuousConfig
from srl.nets.on_policy import OnPolicyConfig

LEARNED = {
    **dict.fromkeys(("ppo", "a2c", "impala", "appo", "ppg"), 15.0),  # of 16; a guess gets 4
    **dict.fromkeys(("dqn", "rainbow", "quantiles", "apex", "r2d2"), 1.0),  # it is walked, or not
    "pictures": 15.0,  # of 16; a guess gets 4
    **dict.fromkeys(("sac", "td3", "ddpg"), -2.0),  # of 0; who does nothing gets -8
}
"""Algorithm to the return that shows it has learned."""
BATCH: dict[str, Any] = {"rollout": 8, "batch_size": 128, "learning_rate": 3e-3}
PRIORITISED = ReplayConfig(
    kind="prioritised", capacity=5000, batch=32, steps=4, warm_up=256, samples_per_insert=4
)
EVERY_STEP = ReplayConfig(
    capacity=2000, batch=32, steps=8, warm_up=64, samples_per_insert=32, tolerance=256
)
"""One optimiser step for every env step."""


def ppo() -> Experiment[Any]:
    return identity(PPOConfig(**BATCH, minibatch_size=64))


def a2c() -> Experiment[Any]:
    return replace(identity(A2CConfig(**BATCH, minibatch_size=128)), max_staleness=0)


def impala() -> Experiment[Any]:
    return identity(ImpalaConfig(**BATCH, minibatch_size=128))


def appo() -> Experiment[Any]:
    return identity(APPOConfig(**BATCH, minibatch_size=64))


def ppg() -> Experiment[Any]:
    return identity(PPGConfig(**BATCH, minibatch_size=64, auxiliary_every=8))


def identity(algorithm: OnPolicyConfig) -> Experiment[Any]:
    """Name the symbol that is shown, 16 times."""
    return Experiment(
        name="identity",
        env=EnvConfig(name="toy/identity"),
        algorithm=algorithm,
        actors=ActorsConfig(envs=16, groups=1),
        stop=StopConfig(env_steps=12_000),
        max_staleness=2,
    )


def dqn() -> Experiment[Any]:
    return chain()


def rainbow() -> Experiment[Any]:
    parts = {"dueling": True, "n_step": 3, "distribution": "c51", "noisy": 0.5}
    return chain(replay=PRIORITISED, value_range=(0.0, 1.0), **parts)


def pictures() -> Experiment[Any]:
    """The same from pictures: name the symbol that is shown, 16 times."""
    often = replace(PRIORITISED, batch=64, samples_per_insert=8)
    return Experiment(
        name="pictures",
        env=EnvConfig(name="toy/pixels"),
        algorithm=DQNConfig(
            rollout=8,
            replay=often,
            discount=0.5,
            n_step=3,
            dueling=True,
            distribution="c51",
            atoms=21,
            value_range=(0.0, 3.0),
            noisy=0.3,  # with 0.1 one of four seeds never tried one of the actions
            hidden=(64,),
            learning_rate=1e-3,
            target_interval=20,
            target_rate=1.0,
        ),
        actors=ActorsConfig(envs=16, groups=1),
        stop=StopConfig(env_steps=5000),
    )


def quantiles() -> Experiment[Any]:
    return chain(distribution="quantiles", atoms=16)


def apex() -> Experiment[Any]:
    explores = {"ladder": 3.0, "epsilon_end": 0.4}
    return chain(replay=PRIORITISED, dueling=True, n_step=3, **explores)


def r2d2() -> Experiment[Any]:
    memory = {"memory": "lstm", "memory_size": 16, "chunk": 8, "burn_in": 4}
    often = replace(PRIORITISED, samples_per_insert=2)  # sequences: of each row 16 times
    return chain(replay=often, n_step=3, rescale=True, **memory)


def chain(**options: Any) -> Experiment[DQNConfig]:
    """A walk of seven steps to the right."""
    made = load_object(f"{Path(__file__).with_name('replays.py')}:chain")()
    return replace(made, algorithm=replace(made.algorithm, **options))


def sac() -> Experiment[Any]:
    return target(SACConfig())


def td3() -> Experiment[Any]:
    return target(TD3Config())


def ddpg() -> Experiment[Any]:
    return target(TD3Config(critics=1, policy_delay=1, target_noise=0.0))


def target(algorithm: ContinuousConfig) -> Experiment[Any]:
    """Answer the number that is shown, 16 times, at most 2 off each time."""
    small = {"rollout": 8, "replay": EVERY_STEP, "hidden": (32, 32)}
    return Experiment(
        name="target",
        env=EnvConfig(name="toy/target"),
        algorithm=replace(algorithm, **small, discount=0.5, learning_rate=3e-3),
        actors=ActorsConfig(envs=1, groups=1),
        stop=StopConfig(env_steps=1000),
    )
