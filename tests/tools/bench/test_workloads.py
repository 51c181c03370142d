"""Workloads: named, complete, and the same work for everyone."""

import importlib.util

import pytest

from srl.core.errors import ConfigError
from srl.launch.graph.plan import make_plan
from srl.tools.bench.command import find, main, read_words
from srl.tools.bench.workloads import WORKLOADS

NEEDS = {
    "pong-4": "ale_py",
    "pong-1": "ale_py",
    "pong-lstm": "ale_py",
    "cartpole-envpool": "envpool",
    "cheetah-envpool": "envpool",
    "cheetah-gym": "mujoco",
    "knights": "pygame",
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_can_be_planned_and_has_its_numbers(name):
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"needs {NEEDS[name]}")
    workload = WORKLOADS[name]
    experiment = find(name)
    plan = make_plan(experiment)
    algorithm = experiment.algorithm
    assert (algorithm.rollout, algorithm.epochs) == (workload.rollout, workload.epochs)
    assert algorithm.minibatch_size == workload.minibatch
    assert algorithm.hidden == workload.hidden
    assert not algorithm.normalise_observations
    assert not algorithm.normalise_returns
    lanes = workload.envs * workload.agents
    assert [route.lanes for route in plan.routes] == [lanes]
    assert plan.routes[0].batch == 1
    assert algorithm.batch_size == workload.rollout * lanes


def test_options_override_a_workload():
    experiment = find("cartpole-gym", ["--algorithm.epochs", "2", "--actors.groups=4"])
    assert (experiment.algorithm.epochs, experiment.actors.groups) == (2, 4)
    assert experiment.algorithm.minibatch_size == 2048


def test_own_options_are_told_from_those_of_the_experiment():
    own = {"json": str, "seconds": float, "quick": None}
    words = ["pong-1", "--json=f.json", "--algorithm.epochs", "2", "--seconds", "3", "--quick"]
    name, found, rest = read_words(words, "usage", own)
    assert name == "pong-1"
    assert found == {"json": "f.json", "seconds": 3.0, "quick": True}
    assert rest == ["--algorithm.epochs", "2"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "a name is missing"),
        (["--seconds", "3"], "a name is missing"),
        (["x", "--seconds"], "needs a value"),
        (["x", "--seconds", "soon"], "needs a number, got 'soon'"),
        (["x", "--quick=1"], "takes no value"),
    ],
)
def test_bad_words_are_refused(words, reason):
    with pytest.raises(ConfigError, match=reason):
        read_words(words, "usage", {"seconds": float, "quick": None})


def test_an_unknown_command_is_refused():
    with pytest.raises(ConfigError, match="trian"):
        main(["trian", "pong-1"])
