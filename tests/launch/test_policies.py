"""Several policies in one run: each has its trainer, its ledger and its account, in any launcher."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import srl
from srl.core.errors import ConfigError
from srl.learning.checkpoint import latest_checkpoint, read_checkpoint

HERE = Path(__file__).parent / "auditing.py"
SEPARATE, SHARED = f"{HERE}:separate", f"{HERE}:shared"
LAUNCHERS = {
    "inline": {"launcher": "inline"},
    "local": {"launcher": "local", "actors__count": 2, "actors__envs": 8},
    "local, policy workers": {"launcher": "local", "inference": "shm", "policies__count": 2},
}


def rows_of(folder: Path, policy: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["policy"] == policy]


@pytest.fixture(
    scope="module",
    params=[
        "inline",
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("local", "local, policy workers")),
    ],
)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> srl.Run:
    folder = tmp_path_factory.mktemp("separate") / "run"
    return srl.train(SEPARATE, seed=1, out=str(folder), **LAUNCHERS[request.param])


def test_both_policies_learn(run: srl.Run) -> None:
    assert run.summary["status"] == "completed"
    for policy in ("red", "blue"):
        # a learned one gets 0.1 x 16 from an equal, and 1.6 - 12 (1 - p) if it is right p often
        assert run.summary["policies"][policy]["mean_return"] == pytest.approx(1.6, abs=1.5)
    assert run.summary["mean_return"] > 1.4  # guessing gives 0.4
    assert run.summary["eval_return"] > 1.5


def test_ledger_of_each_policy_and_of_all_adds_up(run: srl.Run, assert_ledger_adds_up: Any) -> None:
    policies = run.summary["policies"]
    assert list(policies) == ["red", "blue"]
    for facts in (run.summary, *policies.values()):
        assert_ledger_adds_up(facts)
        assert facts["blocks_lost"] == 0
    for name in ("sent", "consumed", "dropped", "in_flight"):
        total = sum(facts[f"blocks_{name}"] for facts in policies.values())
        assert run.summary[f"blocks_{name}"] == total


def test_account_of_each_policy_is_its_own(run: srl.Run) -> None:
    for name, facts in run.summary["policies"].items():
        rows = rows_of(run.folder, name)
        assert [row["version"] for row in rows] == list(range(1, len(rows) + 1))
        assert facts["version"] == len(rows)
        assert facts["updates"] == rows[-1]["updates"]
        assert facts["train_samples"] == sum(row["train_samples"] for row in rows)
        assert facts["staleness_max"] == max(row["staleness_max"] for row in rows) <= 1
        assert facts["episodes"] >= rows[-1]["episodes"] > 0
        assert not facts["frozen"]
        assert max(row["audit_max_difference"] for row in rows) < 1e-4
    policies = run.summary["policies"].values()
    assert run.summary["version"] == max(facts["version"] for facts in policies)
    for name in ("updates", "train_samples", "episodes"):
        assert run.summary[name] == sum(facts[name] for facts in policies)


def test_checkpoint_holds_both(run: srl.Run) -> None:
    checkpoint = read_checkpoint(latest_checkpoint(run.folder / "checkpoints"))
    facts = run.summary["policies"]
    assert checkpoint.manifest["versions"] == {p: facts[p]["version"] for p in ("red", "blue")}
    assert {"trainer-red-0", "trainer-blue-0"} <= set(checkpoint.sections)
    weights = [checkpoint.sections[f"trainer-{p}-0"] for p in ("red", "blue")]
    assert any((weights[0][name] != weights[1][name]).any() for name in weights[0])


def test_each_policy_can_be_loaded(run: srl.Run) -> None:
    for policy in ("red", "blue"):
        loaded = srl.load(run.folder, policy=policy)
        assert [loaded.act([float(i == k) for i in range(4)]) for k in range(4)] == [0, 1, 2, 3]
    assert srl.load(run.folder).act([0, 0, 1, 0]) == 2
    with pytest.raises(ConfigError, match="no policy 'green', but red, blue"):
        srl.load(run.folder, policy="green")


@pytest.mark.parametrize("launcher", [pytest.param("inline", marks=pytest.mark.slow), "local"])
def test_one_policy_for_all_learns_from_both_sides(
    launcher: str, tmp_path: Path, assert_ledger_adds_up: Any
) -> None:
    run = srl.train(SHARED, seed=1, launcher=launcher, out=str(tmp_path / "run"))
    assert list(run.summary["policies"]) == ["main"]
    assert run.summary["mean_return"] > 1.4
    assert run.summary["agent_steps"] == 2 * run.summary["env_steps"]
    assert_ledger_adds_up(run.summary)


@pytest.mark.slow
def test_local_run_of_two_policies_is_resumed(tmp_path: Path, assert_ledger_adds_up: Any) -> None:
    folder = tmp_path / "run"
    options = {"launcher": "local", "evaluation__episodes": 0}
    first = srl.train(SEPARATE, out=str(folder), stop__env_steps=3000, **options).summary
    wanted = first["env_steps"] + 3000  # a fast host does far more than the first 3000
    again = srl.resume(folder, stop__env_steps=wanted).summary
    assert again["status"] == "completed"
    assert again["env_steps"] >= wanted
    assert_ledger_adds_up(again)
    for policy in ("red", "blue"):
        before, facts = first["policies"][policy], again["policies"][policy]
        assert facts["version"] > before["version"]
        assert facts["episodes"] > before["episodes"]
        assert facts["blocks_consumed"] > before["blocks_consumed"]
        assert_ledger_adds_up(facts)
        versions = [row["version"] for row in rows_of(folder, policy)]
        assert versions == list(range(1, facts["version"] + 1))


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["trainer-red-0", "trainer-blue-0"])
def test_run_fails_when_one_of_two_trainers_is_killed(
    victim: str, start_run: Any, assert_ledger_adds_up: Any
) -> None:
    run = start_run(
        SEPARATE,
        "--restarts.trainers",
        "0",
        "--launcher",
        "local",
        "--stop.env-steps",
        "100000000",
        "--checkpoint.seconds",
        "0.5",
    )
    run.wait_for_rows(6)
    os.kill(run.pid_of(victim), signal.SIGKILL)
    assert run.wait() == 3
    assert run.summary["status"] == "failed"
    assert f"{victim} was killed by SIGKILL" in run.summary["reason"]
    assert_ledger_adds_up(run.summary)
    for facts in run.summary["policies"].values():
        assert_ledger_adds_up(facts)
    run.assert_nothing_left()
    assert not list((run.folder / "checkpoints").glob(".*"))  # half a checkpoint is none


@pytest.mark.parametrize("name", ["", "a/b", "a b", "..", "-a", "a" * 65])
def test_policy_whose_name_cannot_be_a_file_is_refused(name: str) -> None:
    from srl.core.experiment import Route

    with pytest.raises(ConfigError, match="no name of a policy"):
        Route(policy=name)
