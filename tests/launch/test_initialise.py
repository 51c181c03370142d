"""A run that begins with the weights of another: so do the networks that follow them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from srl.core.arrays import Arrays, subset
from srl.core.collective import Alone
from srl.core.compute import Compute
from srl.core.experiment import Experiment
from srl.experiments.cartpole_dqn import cartpole_dqn
from srl.experiments.cartpole_on_policy import cartpole_appo
from srl.experiments.pendulum import pendulum_sac, pendulum_td3
from srl.launch.graph.initialise import fresh_sections
from srl.launch.graph.plan import make_plan
from srl.learning.checkpoint import Checkpoint


def proximal() -> Experiment[Any]:
    """APPO whose proximal policy has weights of its own."""
    experiment = cartpole_appo()
    return replace(experiment, algorithm=replace(experiment.algorithm, proximal_decay=0.9))


def begun(experiment: Experiment[Any], **weights: float) -> tuple[Arrays, Arrays]:
    """What a donor with these weights has, and with what a run that takes them over begins."""
    plan = make_plan(experiment)
    learner = experiment.algorithm.make_learner(
        plan.routes[0].agent_spec(), seed=123, compute=Compute(), ranks=Alone()
    )
    for name, value in weights.items():
        learner.policy.tensors[name].data.fill_(value)
    donated = {f"learner.{name}": array for name, array in learner.save().items()}
    donor = Checkpoint(Path("donor"), {}, {"trainer-0": donated})
    sections = fresh_sections(experiment, plan, donor)
    return subset(donated, "learner."), subset(sections["trainer-0"], "learner.")


@pytest.mark.parametrize(
    ("make", "follower"),
    [(cartpole_dqn, "target"), (pendulum_td3, "target_actor"), (proximal, "proximal")],
    ids=["dqn", "td3", "appo"],
)
def test_followers_begin_with_the_weights(
    make: Callable[[], Experiment[Any]], follower: str
) -> None:
    donated, state = begun(make())
    followers = subset(state, f"{follower}/")
    assert followers
    for name, array in followers.items():
        np.testing.assert_array_equal(array, state[f"weights/{name}"], err_msg=name)
        if name not in ("epsilon", "explores"):
            np.testing.assert_array_equal(array, donated[f"weights/{name}"], err_msg=name)


def test_target_critics_are_the_critics_which_are_fresh() -> None:
    donated, state = begun(pendulum_sac())
    for name, array in subset(state, "critics/").items():
        np.testing.assert_array_equal(array, state[f"target_critics/{name}"])
    assert any((donated[name] != state[name]).any() for name in state if "critics/" in name)


@pytest.mark.parametrize(
    ("make", "name", "late"),
    [(cartpole_dqn, "epsilon", 0.05), (pendulum_sac, "explores", 0.0)],
    ids=["dqn", "sac"],
)
def test_exploration_begins_anew(
    make: Callable[[], Experiment[Any]], name: str, late: float
) -> None:
    _, state = begun(make(), **{name: late})
    assert state[f"weights/{name}"] == 1.0
