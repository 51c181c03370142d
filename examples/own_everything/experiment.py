"""Catch by REINFORCE: a perfect return of 1 in about 15k env steps, a few seconds."""

from pathlib import Path

from reinforce import ReinforceConfig

from srl.core.experiment import ActorsConfig, EnvConfig, Experiment, StopConfig

HERE = Path(__file__).parent


def experiment() -> Experiment[ReinforceConfig]:
    """Mean return >= 0.95 (of 1) within 60k env steps."""
    return Experiment(
        name="catch",
        env=EnvConfig(name=f"{HERE / 'env.py'}:Catch"),
        algorithm=ReinforceConfig(),
        actors=ActorsConfig(count=1, envs=32, groups=1),
        stop=StopConfig(env_steps=60_000, return_=0.95),
        max_staleness=0,  # REINFORCE does not correct for an older policy
    )
