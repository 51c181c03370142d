"""Catch by REINFORCE: a return of 1, which is perfect, in a few seconds."""

from pathlib import Path

from reinforce import ReinforceConfig

from srl.core.experiment import ActorsConfig, EnvConfig, Experiment, StopConfig

HERE = Path(__file__).parent


def experiment() -> Experiment[ReinforceConfig]:
    """Return >= 0.95 (of 1) at 40k env steps."""
    return Experiment(
        name="catch",
        env=EnvConfig(name=f"{HERE / 'env.py'}:Catch"),
        algorithm=ReinforceConfig(),
        actors=ActorsConfig(count=1, envs=32, groups=1),
        stop=StopConfig(env_steps=40_000),
        max_staleness=0,  # REINFORCE does not correct for an older policy
    )
