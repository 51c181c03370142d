"""Two agents, three ways: one policy for both, one each, and one against a frozen opponent.

Each is shown one of four symbols; whoever names its own where the other does not wins the step, and
being right pays 0.1 besides. An episode has 16 steps: two that learned get 1.6 each, one that
learned about 12 from one that mostly guesses.
"""

from dataclasses import replace
from pathlib import Path

from srl.algorithms.ppo import PPOConfig
from srl.core.experiment import ActorsConfig, EnvConfig, Experiment, Route, StopConfig

OPPONENT = Path("runs/match-opponent")
"""A run that hardly began: its policy guesses."""


def shared() -> Experiment[PPOConfig]:
    """Red and blue play by one policy, which learns from both."""
    return Experiment(
        name="match-shared",
        env=EnvConfig(name="toy/match"),
        algorithm=PPOConfig(
            rollout=16,
            batch_size=512,
            epochs=4,
            minibatch_size=128,
            learning_rate=3e-3,
            learning_rate_schedule="linear",
            hidden=(16,),
        ),
        actors=ActorsConfig(envs=16, groups=2),
        stop=StopConfig(env_steps=20_000),
    )


def opponent() -> Experiment[PPOConfig]:
    """One batch of `shared`."""
    return replace(shared(), name="match-opponent", stop=StopConfig(env_steps=256))


def separate() -> Experiment[PPOConfig]:
    """Red and blue have a policy and a trainer each."""
    routes = (Route(agents="red_*", policy="red"), Route(agents="blue_*", policy="blue"))
    return replace(shared(), name="match-separate", routes=routes, algorithm=_half())


def against() -> Experiment[PPOConfig]:
    """Red learns; blue plays by a policy of another run."""
    blue = Route(agents="blue_*", policy="blue", frozen=(str(OPPONENT),))
    routes = (Route(agents="red_*", policy="red"), blue)
    return replace(shared(), name="match-against", routes=routes, algorithm=_half())


def _half() -> PPOConfig:
    """A policy of one agent an env gets half as many rows."""
    return replace(shared().algorithm, batch_size=256)
