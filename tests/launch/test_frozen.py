"""Frozen opponents: they play by pinned weights, send nothing, count for nothing."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import srl
from srl.algorithms.ppo import PPOConfig
from srl.core.errors import CheckpointError, ConfigError
from srl.core.experiment import Experiment, Route
from srl.core.names import load_object
from srl.launch.graph.opening import find_opponent
from srl.learning.checkpoint import latest_checkpoint, read_checkpoint

HERE = Path(__file__).parent / "auditing.py"
SHARED = f"{HERE}:shared"
LAUNCHERS = {
    "inline": {"launcher": "inline"},
    "local": {"launcher": "local", "actors__count": 2, "actors__envs": 8},
    "local, policy workers": {"launcher": "local", "inference": "shm", "policies__count": 2},
}


def against(*frozen: str) -> Experiment[Any]:
    """Red learns against blue, which does not."""
    routes = (
        Route(agents="red_*", policy="red"),
        Route(agents="blue_*", policy="blue", frozen=frozen),
    )
    return replace(load_object(f"{HERE}:separate")(), routes=routes)


@pytest.fixture(scope="module")
def strong(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a run that has learned to be right."""
    folder = tmp_path_factory.mktemp("strong") / "run"
    return str(srl.train(SHARED, launcher="inline", seed=1, out=str(folder)).folder)


@pytest.fixture(scope="module")
def weak(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a run that guesses."""
    folder = tmp_path_factory.mktemp("weak") / "run"
    options = {"launcher": "inline", "stop__env_steps": 200, "evaluation__episodes": 0}
    return str(srl.train(SHARED, seed=2, out=str(folder), algorithm__hidden=8, **options).folder)


@pytest.fixture(
    scope="module",
    params=[
        "inline",
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("local", "local, policy workers")),
    ],
)
def run(
    request: pytest.FixtureRequest, strong: str, tmp_path_factory: pytest.TempPathFactory
) -> srl.Run:
    folder = tmp_path_factory.mktemp("frozen") / "run"
    return srl.train(against(strong), seed=1, out=str(folder), **LAUNCHERS[request.param])


def test_policy_learns_against_a_frozen_one(run: srl.Run) -> None:
    red, blue = (run.summary["policies"][p] for p in ("red", "blue"))
    assert run.summary["status"] == "completed"
    assert run.summary["eval_return"] == red["eval_return"] > 1.0  # of 1.6; guessing: -11.6
    assert (red["frozen"], blue["frozen"]) == (False, True)
    assert (blue["version"], blue["updates"], blue["eval_return"]) == (0, 0, None)
    assert blue["episodes"] > 0
    assert run.summary["mean_return"] == red["mean_return"]
    assert run.summary["episodes"] == red["episodes"]


def test_frozen_policy_sends_nothing(run: srl.Run, assert_ledger_adds_up: Any) -> None:
    assert_ledger_adds_up(run.summary)
    for facts in run.summary["policies"].values():
        assert_ledger_adds_up(facts)
    assert run.summary["policies"]["blue"]["blocks_sent"] == 0
    assert run.summary["policies"]["red"]["blocks_sent"] == run.summary["blocks_sent"] > 0
    rows = [json.loads(x) for x in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert {row["policy"] for row in rows} == {"red"}


def test_frozen_policy_plays_by_the_weights_it_was_pinned_with(run: srl.Run) -> None:
    blue = run.summary["policies"]["blue"]
    # zero-sum but for 0.1 a right answer: what red lost while it learned, blue won
    assert blue["mean_return"] + run.summary["mean_return"] > 2.5
    assert (run.folder / "pinned" / "blue" / "0" / "weights.safetensors").is_file()


def test_run_against_a_frozen_policy_can_be_played(run: srl.Run) -> None:
    result = srl.evaluate_run(run.folder, episodes=10)
    assert list(result.by_policy) == ["red"]
    assert len(result.returns) == 10
    assert srl.load(run.folder).act([0, 0, 1, 0]) == 2
    with pytest.raises(ConfigError, match="no policy 'blue', but red"):
        srl.load(run.folder, policy="blue")


def ids_of(folder: Path) -> list[int]:
    """Which opponent each lane plays at the end of an inline run."""
    sections = read_checkpoint(latest_checkpoint(folder / "checkpoints")).sections
    actors = [state for name, state in sections.items() if name.startswith("actor")]
    return [int(i) for s in actors for k in s if k.endswith("opponents.ids") for i in s[k]]


def test_run_against_several_is_the_same_when_it_is_interrupted(
    strong: str, weak: str, tmp_path: Path
) -> None:
    options = {"launcher": "inline", "seed": 3, "evaluation__episodes": 0}
    sources = [
        shutil.copytree(strong, tmp_path / "strong"),
        shutil.copytree(weak, tmp_path / "weak"),
    ]
    experiment = against(*(str(path) for path in sources))
    whole = srl.train(experiment, out=str(tmp_path / "a"), stop__env_steps=4000, **options)
    srl.train(experiment, out=str(tmp_path / "b"), stop__env_steps=1700, **options)
    for path in sources:
        shutil.rmtree(path)  # what is needed was pinned

    again = srl.resume(tmp_path / "b", stop__env_steps=4000)

    assert set(ids_of(whole.folder)) == {0, 1}
    one, two = (
        read_checkpoint(latest_checkpoint(run.folder / "checkpoints")) for run in (whole, again)
    )
    assert one.sections.keys() == two.sections.keys()
    for section, arrays in one.sections.items():
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, two.sections[section][name], f"{section}/{name}")
    assert again.summary["policies"] == whole.summary["policies"]


@pytest.mark.slow
@pytest.mark.parametrize("inference", ["inline", "shm"])
def test_local_run_against_several_is_resumed(
    inference: str, strong: str, weak: str, tmp_path: Path, assert_ledger_adds_up: Any
) -> None:
    options = {"launcher": "local", "inference": inference, "evaluation__episodes": 4}
    options |= {"evaluation__count": 1}
    folder = tmp_path / "run"
    srl.train(against(strong, weak), out=str(folder), stop__env_steps=2000, **options)
    summary = srl.resume(folder, stop__env_steps=4000).summary
    assert summary["status"] == "completed"
    assert summary["env_steps"] >= 4000
    assert_ledger_adds_up(summary)
    assert summary["policies"]["blue"]["episodes"] > 0


@pytest.mark.parametrize(
    "launcher", ["inline", pytest.param("local, policy workers", marks=pytest.mark.slow)]
)
def test_opponents_of_different_algorithms_play_together(
    launcher: str, weak: str, tmp_path: Path
) -> None:
    options = {"stop__env_steps": 600, "evaluation__episodes": 4}
    remembering = replace(
        against(),
        routes=(Route(),),
        algorithm=PPOConfig(
            rollout=16, batch_size=256, minibatch_size=128, memory="gru", memory_size=4, chunk=8
        ),
    )
    source = srl.train(remembering, launcher="inline", out=str(tmp_path / "gru"), **options)
    experiment = against(weak, str(source.folder))
    run = srl.train(experiment, out=str(tmp_path / "run"), **(options | LAUNCHERS[launcher]))
    assert run.summary["status"] == "completed"
    assert run.summary["policies"]["blue"]["episodes"] > 0


def test_version_of_a_run_can_be_named(strong: str, tmp_path: Path) -> None:
    newest = latest_checkpoint(Path(strong) / "checkpoints")
    options = {"launcher": "inline", "stop__env_steps": 300, "evaluation__episodes": 0}
    for number, version in enumerate((str(int(newest.name)), "best")):
        experiment = against(f"{strong}@{version}")
        run = srl.train(experiment, out=str(tmp_path / str(number)), **options)
        assert run.summary["policies"]["blue"]["episodes"] > 0


def test_version_that_is_named_is_one_of_the_policy_that_plays(tmp_path: Path) -> None:
    # Policies of one checkpoint may be a few versions apart.
    two = (Route(agents="red_*", policy="red"), Route(agents="blue_*", policy="blue"))
    options: dict[str, Any] = {
        "launcher": "inline",
        "stop__env_steps": 300,
        "evaluation__episodes": 0,
    }
    run = srl.train(replace(against("x"), routes=two), out=str(tmp_path / "two"), **options)
    manifest = latest_checkpoint(run.folder / "checkpoints") / "manifest.json"
    facts = json.loads(manifest.read_text())
    facts["versions"]["red"] += 1
    manifest.write_text(json.dumps(facts))
    here, other = facts["versions"]["blue"], facts["versions"]["red"]

    assert find_opponent(f"{run.folder}@{here}", "blue").weights
    assert find_opponent(f"{run.folder}@{other}", "red").weights
    assert find_opponent(f"{run.folder}@{other}", "green").weights  # the first that learns: red
    with pytest.raises(ConfigError, match="no versions"):
        find_opponent(f"{run.folder}@{other}", "blue")


def test_opponent_that_does_not_fit_is_refused_before_the_start(
    strong: str, tmp_path: Path
) -> None:
    experiment = against(strong)
    other = replace(experiment, env=replace(experiment.env, options='{"choices": 5}'))
    with pytest.raises(ConfigError, match=r"cannot play for policy 'blue': field 'obs' is float32"):
        srl.train(other, launcher="inline", out=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("source", ["nowhere", "@3"])
def test_opponent_that_is_not_there_is_refused(source: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a run folder"):
        srl.train(against(source), out=str(tmp_path / "run"))


def test_version_that_was_not_kept_is_refused(strong: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, CheckpointError), match="99999"):
        srl.train(against(f"{strong}@99999"), out=str(tmp_path / "run"))


def test_run_in_which_nobody_learns_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one policy must learn"):
        replace(against("x"), routes=(Route(frozen=("x",)),))
