"""Every algorithm: learns a toy in every launcher, by its flag alone, and goes on whatever dies."""

import importlib.util
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import srl
from srl.core.names import load_object
from srl.testing.chaos.real import run_real

TOYS = Path(__file__).with_name("toys.py")
LEARNED = load_object(f"{TOYS}:LEARNED")
OF_ITS_FAMILY = ("impala", "dqn", "pictures", "sac")
"""What shows, inline, in `make test`, that its family learns; `make test-all` has all of them."""
LAUNCHERS: dict[str, list[pytest.MarkDecorator]] = {
    "inline": [],
    "local": [pytest.mark.slow],
    "ray": [
        pytest.mark.slow,
        pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray"),
        pytest.mark.filterwarnings("ignore"),
        pytest.mark.xdist_group("ray"),
    ],
}


def slow_but(*names: str) -> list[Any]:
    """All algorithms, those that are not named left to `make test-all`."""
    return [
        pytest.param(name, marks=[] if name in names else [pytest.mark.slow]) for name in LEARNED
    ]


@pytest.mark.parametrize(
    "launcher", [pytest.param(name, marks=marks) for name, marks in LAUNCHERS.items()]
)
@pytest.mark.parametrize("name", slow_but(*OF_ITS_FAMILY))
def test_toy_is_learned(
    name: str, launcher: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    options = {"launcher": launcher, "seed": 1, "out": str(tmp_path / "run")}
    if launcher == "ray":
        options["ray__address"] = request.getfixturevalue("cluster").address
    run = srl.train(f"{TOYS}:{name}", **options)
    assert run.summary["status"] == "completed"
    assert run.summary["eval_return"] >= LEARNED[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNED)
def test_run_goes_on_when_an_actor_is_killed(
    name: str, start_run: Any, assert_ledger_adds_up: Any
) -> None:
    options = ("--launcher", "local", "--stop.env-steps", "100000000", "--actors.count", "2")
    run = start_run(f"{TOYS}:{name}", *options)
    run.wait_for_rows(3)
    killed = run.pid_of("actor-0")
    os.kill(killed, signal.SIGKILL)
    run.wait_for_new_life("actor-0", killed)
    run.wait_for_rows(len(run.rows()) + 5)
    run.popen.send_signal(signal.SIGTERM)

    assert run.wait() == 0
    summary = run.summary
    assert summary["status"] == "interrupted"
    assert summary["worker_restarts"] == 1
    versions = [row["version"] for row in run.rows()]
    assert versions == sorted(set(versions))
    assert_ledger_adds_up(summary)
    run.assert_nothing_left()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(LEARNED)), ids=list(LEARNED))
def test_its_chaos_run_is_clean(number: int) -> None:
    """One topology and one kind of breaking envs each, by the number."""
    outcome = run_real(number, seconds=8.0, experiment=f"{TOYS}:{list(LEARNED)[number]}")
    told = [f"seed {number}, {outcome.topology}: {outcome.faults}", *map(str, outcome.violations)]
    assert not outcome.violations, "\n".join(told)
    assert len(outcome.faults) >= 3
