"""Every experiment of the catalogue runs; the slow ones (`make slow`) reach what they promise."""

from pathlib import Path
from typing import Any

import pytest

import srl
from srl import catalog
from srl.api import find_experiment
from srl.launch.explain import explain

RECIPES = [*catalog.EXPERIMENTS, "gym/MountainCar-v0", "gym/Pendulum-v1"]


@pytest.mark.parametrize("name", RECIPES)
def test_experiment_explains_itself(name: str) -> None:
    experiment = find_experiment(name)
    text = explain(experiment)
    assert text.startswith(f"{experiment.name}: ")
    assert experiment.env.name in text


@pytest.mark.parametrize("name", RECIPES)
def test_experiment_runs_inline(name: str, tmp_path: Path) -> None:
    batch = find_experiment(name).algorithm.batch_size
    run = srl.train(name, launcher="inline", stop__env_steps=2 * batch, out=str(tmp_path / "run"))
    assert run.summary["status"] == "completed"
    assert run.summary["version"] >= 2
    assert run.summary["eval_return"] is not None


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


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("launcher", ["inline", "local"])
def test_acrobot_is_solved(launcher: str, tmp_path: Path) -> None:
    run = srl.train("acrobot", launcher=launcher, seed=1, out=str(tmp_path / "run"))
    assert run.summary["eval_return"] >= -100
