"""Every experiment of the catalogue runs; the slow ones (`make slow`) reach what they promise."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import srl
from srl import catalog
from srl.api import find_experiment
from srl.core.names import load_object
from srl.core.replay import Replays
from srl.launch.graph.explain import explain

NEEDS = {"pong": "ale_py", "half-cheetah": "mujoco", "atari/breakout": "ale_py"}
NEEDS |= {"half-cheetah-sac": "mujoco", "half-cheetah-td3": "mujoco"}
NEEDS |= {"pong-appo": "ale_py", "pong-rainbow": "ale_py", "pong-apex": "ale_py"}
NEEDS |= {"envpool/Pong-v5": "envpool", "pettingzoo/classic.rps_v2": "pygame"}
"""Recipes that need an extra, and the package by which it is known to be there."""

COPIES = ["cartpole-rainbow", "cartpole-r2d2", "pong-rainbow", "pong-apex"]
"""Recipes whose target network is copied now and then, beside DQN's own."""
RECIPES = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            name in NEEDS and not find_spec(NEEDS[name]), reason=f"{NEEDS.get(name)} is missing"
        ),
    )
    for name in dict.fromkeys(
        (
            *catalog.EXPERIMENTS,
            "gym/MountainCar-v0",
            "gym/Pendulum-v1",
            "toy/recall",
            "toy/masked",
            "toy/match",
            "toy/mortal",
            "toy/pixels",
            *NEEDS,
        )
    )
]


@pytest.mark.parametrize("name", RECIPES)
def test_experiment_explains_itself(name: str) -> None:
    experiment = find_experiment(name)
    text = explain(experiment)
    assert text.startswith(f"{experiment.name}: ")
    assert experiment.env.name in text
    assert ("  replay: " in text) is isinstance(experiment.algorithm, Replays)


@pytest.mark.parametrize("name", RECIPES)
def test_experiment_runs_inline(name: str, tmp_path: Path) -> None:
    algorithm = find_experiment(name).algorithm
    rollout, batch = algorithm.rollout, algorithm.batch_size
    options = {"launcher": "inline", "out": str(tmp_path / "run"), "evaluation__episodes": 2}
    if isinstance(algorithm, Replays):
        batch = 512
        replay = {"capacity": 2048, "batch": 16, "steps": 2, "warm_up": 64, "samples_per_insert": 1}
        options |= {f"algorithm__replay__{option}": value for option, value in replay.items()}
        if name in NEEDS:
            batch = 64
            options |= {"algorithm__rollout": 4, "algorithm__hidden": 32}
            options |= {"evaluation__episodes": 0, "actors__count": 1, "actors__envs": 4}
    elif name in NEEDS:  # they are slow, and a fresh policy may never end a game
        rollout, batch = rollout // 8, batch // 8
        options |= {"algorithm__rollout": rollout, "algorithm__batch_size": batch}
        options |= {"evaluation__episodes": 0}
    options["stop__env_steps"] = 2 * batch
    run = srl.train(name, **options)
    assert run.summary["status"] == "completed"
    assert run.summary["version"] >= 2
    assert run.summary["eval_return"] is not None or name in NEEDS


@pytest.mark.parametrize("name", [name for name in catalog.EXPERIMENTS if "dqn" in name] + COPIES)
def test_target_network_is_copied_often_enough_for_values_to_spread(name: str) -> None:
    experiment = load_object(catalog.EXPERIMENTS[name])()
    algorithm, steps = experiment.algorithm, experiment.stop.env_steps
    assert algorithm.target_rate == 1
    updates = steps * algorithm.replay.samples_per_insert / algorithm.replay.batch
    assert updates / algorithm.target_interval > (200 if "pong" in name else 100)


def test_recipe_follows_the_env() -> None:
    match = find_experiment("toy/match", ["--env.options", '{"agents": 3, "central": true}'])
    assert (match.actors.envs, match.algorithm.batch_size) == (2, 2 * 6 * 128)
    assert match.algorithm.central_value
    assert not find_experiment("toy/match").algorithm.central_value
    large = find_experiment("toy/pixels", ["--env.options", '{"size": 300}'])
    assert large.algorithm.rollout == 64  # a block of 4 lanes has at most 32 MB
    explain(large)


TOPOLOGIES: dict[str, dict[str, Any]] = {
    "inline inference": {"inference": "inline"},
    "one policy worker": {"inference": "shm", "policies__count": 1},
    "two policy workers": {"inference": "shm", "policies__count": 2},
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_cartpole_is_solved(topology: str, seed: int, tmp_path: Path) -> None:
    options = {"launcher": "local", "seed": seed, "out": str(tmp_path / "run")}
    run = srl.train("cartpole", **options, **TOPOLOGIES[topology])
    assert run.summary["eval_return"] >= 475
    assert run.summary["env_steps"] <= 305_000  # a batch or two are under way at the end


PROMISED = {
    "acrobot": -100,
    "acrobot-dqn": -100,
    "recall-gtrxl": 0.9,
    "recall-r2d2": 0.9,
    "pendulum-sac": -200,
    "pendulum-td3": -200,
    "pendulum-ddpg": -200,
    **{name: 475 for name in catalog.EXPERIMENTS if name.startswith("cartpole-")},
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("launcher", ["inline", "local"])
@pytest.mark.parametrize("name", PROMISED)
def test_recipe_reaches_what_it_promises(name: str, launcher: str, tmp_path: Path) -> None:
    run = srl.train(name, launcher=launcher, seed=1, out=str(tmp_path / "run"))
    assert run.summary["eval_return"] >= PROMISED[name]
