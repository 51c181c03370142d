"""Inline: the same seed gives the same bits, also across Ctrl-C, a kill and checkpoints."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import srl
from srl.algorithms.ppo import PPOConfig
from srl.core.names import load_object
from srl.learning.checkpoint import list_checkpoints

COMMON = {"launcher": "inline", "checkpoint__seconds": 1000.0}
TOY = {"stop__env_steps": 6_000, "algorithm__hidden": (8,)}
RECALL = TOY | {
    "env__name": "toy/recall",
    "env__options": '{"delay": 3, "jitter": 4}',
    "algorithm__memory_size": 8,
    "algorithm__chunk": 4,
}
CARTPOLE = {
    "stop__env_steps": 6_000,
    "stop__return": 1000,  # out of reach: it runs to its last env step
    "actors__envs": 8,
    "algorithm__batch_size": 256,
    "algorithm__epochs": 2,
}
BAD_ENVS = Path(__file__).parents[1] / "bad_envs.py"
SEPARATE = f"{Path(__file__).parent / 'auditing.py'}:separate"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "identity, staleness 0": ("auditing", TOY | {"seed": 1, "max_staleness": 0}),
    "identity, staleness 1": ("auditing", TOY | {"seed": 2, "stop__env_steps": 10_000}),
    "identity, two actors": (
        "auditing",
        TOY | {"seed": 3, "actors__count": 2, "actors__envs": 8, "max_staleness": 2},
    ),
    "chain": (
        "auditing",
        TOY | {"seed": 4, "env__name": "srl.envs.toy:Chain", "env__options": '{"agents": 2}'},
    ),
    "target": (
        "auditing",
        TOY
        | {
            "seed": 5,
            "env__name": "srl.envs.toy:Target",
            "algorithm__normalise_observations": True,
            "algorithm__normalise_returns": True,
            "algorithm__learning_rate_schedule": "linear",
        },
    ),
    "identity, evaluator": (
        "auditing",
        TOY | {"seed": 8, "evaluation__count": 1, "evaluation__episodes": 8},
    ),
    "chain, evaluator, every third": (
        "auditing",
        TOY
        | {
            "seed": 9,
            "env__name": "srl.envs.toy:Chain",
            "env__options": '{"agents": 2}',
            "evaluation__count": 1,
            "evaluation__episodes": 40,
            "evaluation__every": 3,
            "evaluation__keep": 2,
        },
    ),
    "cartpole, evaluator": (
        "cartpole",
        CARTPOLE | {"seed": 10, "evaluation__count": 1, "evaluation__episodes": 5},
    ),
    # with staleness 0 a block is of one version, and what its memory held can be computed again
    "recall, lstm": (
        "auditing",
        RECALL | {"seed": 12, "max_staleness": 0, "algorithm__memory": "lstm"},
    ),
    "recall, gru, burn-in, evaluator": (
        "auditing",
        RECALL
        | {
            "seed": 13,
            "algorithm__memory": "gru",
            "algorithm__burn_in": 3,
            "evaluation__count": 1,
            "evaluation__episodes": 8,
        },
    ),
    "recall, gtrxl": (
        "auditing",
        RECALL
        | {
            "seed": 19,
            "stop__env_steps": 1_000,
            "max_staleness": 0,
            "algorithm__memory": "gtrxl",
            "algorithm__memory_length": 5,
        },
    ),
    "turns": ("auditing", TOY | {"seed": 16, "env__name": "toy/turns"}),
    "mortal, evaluator": (
        "auditing",
        TOY
        | {
            "seed": 14,
            "env__name": "toy/mortal",
            "algorithm__batch_size": 768,
            "evaluation__count": 1,
            "evaluation__episodes": 8,
        },
    ),
    "masked": ("auditing", TOY | {"seed": 15, "env__name": "toy/masked"}),
    "envs that fail, some parked": (
        "auditing",
        TOY
        | {
            "seed": 12,  # with which the first episodes, that are probed, are whole
            "env__name": f"{BAD_ENVS}:Failing",
            "env__options": '{"every": 8, "length": 9, "counts": false}',
            "env__max_failures": 3,
        },
    ),
    "batch that breaks": (
        "auditing",
        TOY | {"seed": 18, "env__name": f"{BAD_ENVS}:Breaking", "env__options": '{"at": 70}'},
    ),
    "match, two policies": (SEPARATE, TOY | {"seed": 11, "max_staleness": 1}),
    "cartpole, staleness 0": ("cartpole", CARTPOLE | {"seed": 6, "max_staleness": 0}),
    "cartpole, staleness 1": ("cartpole", CARTPOLE | {"seed": 7, "stop__env_steps": 10_000}),
}
RUNS = Path(__file__).parents[1] / "runs.py"
metrics, summary, differences = (
    load_object(f"{RUNS}:{name}") for name in ("metrics", "summary", "differences")
)

every_case = pytest.mark.parametrize("case", CASES)
SIMPLER = ("chain", "target", "turns", "masked", "identity, two actors", "cartpole, evaluator")
"""Cases of which others show the same: they are left to `make slow`."""
most_cases = pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=[pytest.mark.slow] if c in SIMPLER else []) for c in CASES],
)


@pytest.fixture(scope="module")
def reference(auditing: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a case's uninterrupted run, made once."""

    @cache
    def run(case: str) -> Path:
        return train(case, auditing, tmp_path_factory.mktemp("reference") / "run")

    return run


def train(case: str, auditing: str, folder: Path, **options: Any) -> Path:
    experiment, own = CASES[case]
    name = auditing if experiment == "auditing" else experiment
    srl.train(name, out=str(folder), **(COMMON | own | options))
    return folder


def as_typed(case: str) -> list[str]:
    """A case's options for the command line."""
    words = []
    for name, value in (COMMON | CASES[case][1]).items():
        values = value if isinstance(value, tuple) else (value,)
        option = name.replace("__", ".").replace("_", "-")
        words += [f"--{option}", *(str(v) for v in values)]
    return words


def assert_same(one: Path, other: Path) -> None:
    """Every array of the last checkpoints, every metric, version and counter are equal."""
    assert differences(one, other) == []


def interrupt_after(rows: int, path: Path, seed: int) -> threading.Thread:
    """Sends this process Ctrl-C a random moment after `rows` rows of metrics are there."""

    def interrupt() -> None:
        while not path.exists() or path.read_text().count("\n") < rows:
            time.sleep(0.002)
        time.sleep(random.Random(seed).uniform(0, 0.03))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread


@pytest.mark.parametrize("case", ["identity, two actors", "cartpole, staleness 1"])
def test_run_with_the_same_seed_is_the_same(
    case: str, reference: Any, auditing: str, tmp_path: Path
) -> None:
    assert_same(reference(case), train(case, auditing, tmp_path / "run"))


@most_cases
def test_rows_are_what_the_trainer_computes_again_and_as_fresh_as_asked(
    case: str, reference: Any
) -> None:
    if "burn-in" not in case:  # it brings states up to date with newer weights than acted
        rows = metrics(reference(case))
        assert all(row.get("audit_max_difference", 0) < 1e-5 for row in rows)
    assert summary(reference(case))["staleness_max"] <= CASES[case][1].get("max_staleness", 1)


@pytest.mark.parametrize(
    ("case", "parks"), [("envs that fail, some parked", True), ("batch that breaks", False)]
)
def test_envs_failed_as_the_case_says(case: str, parks: bool, reference: Any) -> None:
    facts = summary(reference(case))
    assert facts["status"] == "completed"
    assert facts["env_failures"] >= 8
    assert facts["env_failures"] == facts["env_rebuilds"] + facts["envs_parked"]
    assert (0 < facts["envs_parked"] < 16) if parks else facts["envs_parked"] == 0


def test_run_with_another_seed_differs(reference: Any, auditing: str, tmp_path: Path) -> None:
    case = "identity, staleness 1"
    other = train(case, auditing, tmp_path / "run", seed=99)

    assert metrics(reference(case)) != metrics(other)


@pytest.mark.parametrize("case", [case for case in CASES if "evaluator" in case])
def test_evaluator_changes_nothing_but_its_own(
    case: str, reference: Any, auditing: str, tmp_path: Path
) -> None:
    without = train(case, auditing, tmp_path / "run", evaluation__count=0)

    rows = metrics(reference(case), "evaluations.jsonl")
    versions = [row["version"] for row in rows]
    assert len(rows) > 2, "the final evaluation alone"
    assert versions == sorted(set(versions))
    every = CASES[case][1].get("evaluation__every", 1)
    apart = pairwise(versions[:-1])  # the last one is the final evaluation
    assert all(later - earlier >= every for earlier, later in apart)
    assert metrics(reference(case)) == metrics(without)
    mine, theirs = summary(reference(case)), summary(without)
    assert mine.pop("best")["eval_return"] == max(row["eval_return"] for row in rows)
    assert theirs.pop("best") == {k: rows[-1][k] for k in ("version", "eval_return")}
    assert mine == theirs
    steps = {row["version"]: row["env_steps"] for row in metrics(without)} | {0: 0}
    assert [row["env_steps"] for row in rows] == [steps[version] for version in versions]


@most_cases
def test_run_that_takes_checkpoints_is_the_same(
    case: str, reference: Any, auditing: str, tmp_path: Path
) -> None:
    often = train(case, auditing, tmp_path / "run", checkpoint__seconds=0.1, checkpoint__keep=1000)

    assert len(list_checkpoints(often / "checkpoints")) > 1
    assert_same(reference(case), often)


@every_case
def test_run_interrupted_and_resumed_is_the_same(
    case: str, reference: Any, auditing: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    half = len(metrics(reference(case))) // 2
    thread = interrupt_after(half, folder / "metrics.jsonl", seed=len(case))
    train(case, auditing, folder)
    thread.join()
    assert summary(folder)["status"] == "interrupted"

    srl.resume(folder)

    assert_same(reference(case), folder)


def test_checkpoint_whose_actions_torch_drew_is_resumed_with_new_draws(
    auditing: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(PPOConfig, "small_policy", lambda *_: None)
        train("identity, staleness 1", auditing, folder, stop__env_steps=3_000)
    assert not caplog.text
    before = metrics(folder)

    srl.resume(folder, stop__env_steps=6_000)

    assert caplog.text.count("begins anew") == 1
    assert summary(folder)["status"] == "completed"
    assert metrics(folder)[: len(before)] == before
    assert len(metrics(folder)) > len(before)
    assert all(row["audit_max_difference"] < 1e-5 for row in metrics(folder))


def test_run_interrupted_again_and_again_is_the_same(
    reference: Any, auditing: str, tmp_path: Path
) -> None:
    case, folder = "identity, two actors", tmp_path / "run"
    total = len(metrics(reference(case)))
    for part in range(1, 5):
        thread = interrupt_after(part * total // 6, folder / "metrics.jsonl", seed=part)
        srl.resume(folder) if folder.exists() else train(case, auditing, folder)
        thread.join()
        assert summary(folder)["status"] == "interrupted"

    srl.resume(folder)

    assert_same(reference(case), folder)


@pytest.mark.parametrize(
    "case",
    ["identity, staleness 1", pytest.param("cartpole, staleness 1", marks=pytest.mark.slow)],
)
def test_process_interrupted_by_ctrl_c_and_resumed_is_the_same(
    case: str, reference: Any, auditing: str, start_run: Any
) -> None:
    experiment = auditing if CASES[case][0] == "auditing" else CASES[case][0]
    run = start_run(experiment, *as_typed(case))
    run.wait_for_rows(len(metrics(reference(case))) // 3)
    run.popen.send_signal(signal.SIGINT)
    assert run.wait() == 130
    assert run.summary["status"] == "interrupted"
    run.assert_nothing_left()

    again = start_run("", command="resume")
    assert again.wait() == (1 if "cartpole" in case else 0)  # cartpole: the return is not reached

    assert_same(reference(case), run.folder)


@pytest.mark.parametrize(
    "case", [pytest.param("identity, staleness 1", marks=pytest.mark.slow), "identity, evaluator"]
)
def test_process_killed_after_a_checkpoint_and_resumed_is_the_same(
    case: str, reference: Any, auditing: str, start_run: Any, wait_until: Any
) -> None:
    run = start_run(auditing, *as_typed(case), "--checkpoint.seconds", "0.1")
    checkpoints = run.folder / "checkpoints"
    wait_until(
        lambda: checkpoints.exists() and len(list_checkpoints(checkpoints)) >= 2, "a checkpoint"
    )
    run.popen.kill()
    assert run.wait() == -signal.SIGKILL
    assert run.summary["status"] == "running"

    srl.resume(run.folder)

    assert_same(reference(case), run.folder)
