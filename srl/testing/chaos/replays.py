"""Runs with replay whose envs break when somebody pulls a lever (`broken`)."""

from srl.algorithms.dqn import DQNConfig
from srl.core.experiment import EnvConfig, Experiment
from srl.core.replay import ReplayConfig
from srl.testing.chaos.broken import ENVS


def single() -> Experiment[DQNConfig]:
    """Envs that break alone."""
    return _experiment("single")


def batch() -> Experiment[DQNConfig]:
    """Envs that break as a whole."""
    return _experiment("batch")


def _experiment(envs: str) -> Experiment[DQNConfig]:
    replay = ReplayConfig(
        kind="prioritised", capacity=4096, batch=64, steps=2, warm_up=256, samples_per_insert=1
    )
    return Experiment(
        name=f"replay-{envs}",
        env=EnvConfig(name=ENVS[envs]),
        algorithm=DQNConfig(rollout=16, hidden=(16,), replay=replay, discount=0.0),
    )
