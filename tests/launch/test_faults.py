"""Real kills and signals: the run ends as promised, its ledger adds up, nothing is left behind."""

import os
import random
import signal
import time
from typing import Any

import pytest

from srl.launch.folder import RunFolder
from srl.learning.checkpoint import read_checkpoint

LONG = ("--launcher", "local", "--inference", "shm", "--stop.env-steps", "100000000")
KILL_SECONDS = 10.0


def slow(value: str) -> Any:
    return pytest.param(value, marks=pytest.mark.slow)


def slow_case(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


KINDS = ("actors", "policies", "trainers", "evaluators")
NEVER_AGAIN = tuple(word for kind in KINDS for word in (f"--restarts.{kind}", "0"))


@pytest.fixture(scope="module")
def moments() -> random.Random:
    """Random moments; the seed is printed, and can be given back as SRL_TEST_SEED."""
    seed = int(os.environ.get("SRL_TEST_SEED", time.time_ns() % 10**6))
    print(f"SRL_TEST_SEED={seed}")
    return random.Random(seed)


@pytest.mark.parametrize("victim", ["actor-0", slow("policy-0"), "trainer-0", "node-agent"])
def test_run_fails_when_one_process_is_killed(
    victim: str, auditing: str, start_run: Any, moments: random.Random, assert_ledger_adds_up: Any
) -> None:
    run = start_run(auditing, *LONG, *NEVER_AGAIN, "--evaluation.count", "1")
    run.wait_for_rows(3)
    time.sleep(moments.uniform(0, 0.5))

    os.kill(run.pid_of(victim), signal.SIGKILL)

    assert run.wait(KILL_SECONDS) == 3
    assert run.summary["status"] == "failed"
    assert victim in run.summary["reason"]
    assert "SIGKILL" in run.summary["reason"]
    assert victim in run.output
    assert (run.folder / "errors" / f"{victim}.txt").exists()
    assert_ledger_adds_up(run.summary)
    if victim != "node-agent":  # which owns the table that the ledger is read from
        assert run.summary["blocks_consumed"] >= 2 * 3
    run.assert_nothing_left()


@pytest.mark.parametrize("victim", ["actor-0", "policy-0", "trainer-0", slow("evaluator-0")])
def test_run_goes_on_when_a_worker_is_killed(
    victim: str, auditing: str, start_run: Any, moments: random.Random, assert_ledger_adds_up: Any
) -> None:
    options = ("--evaluation.count", "1", "--checkpoint.seconds", "0.5")
    if victim == "trainer-0":  # a new life does not know the weights of versions it did not learn
        options += ("--algorithm.audits", "False")
    run = start_run(auditing, *LONG, *options)
    for _ in range(2):
        before = len(run.rows())
        run.wait_for_rows(before + 3)
        time.sleep(moments.uniform(0, 0.5))
        killed = run.pid_of(victim)
        os.kill(killed, signal.SIGKILL)
        run.wait_for_new_life(victim, killed)
    run.wait_for_rows(len(run.rows()) + 3)
    run.popen.send_signal(signal.SIGTERM)

    assert run.wait() == 0
    summary = run.summary
    assert summary["status"] == "interrupted"
    assert summary["worker_restarts"] == 2
    assert f"{victim} was killed by SIGKILL" in run.output
    versions = [row["version"] for row in run.rows()]
    assert versions == sorted(set(versions))  # they never go back
    assert max(row["staleness_max"] for row in run.rows()) <= 1
    env_steps = [row["env_steps"] for row in run.rows()]
    assert env_steps == sorted(env_steps)
    assert all(row["audit_max_difference"] < 1e-4 for row in run.rows())
    assert_ledger_adds_up(summary)
    assert (summary["blocks_rolled_back"] > 0) <= (victim == "trainer-0")
    assert summary["blocks_consumed"] >= summary["blocks_rolled_back"]
    run.assert_nothing_left()


@pytest.mark.parametrize("told", ["node-agent", slow("actor-0"), "trainer-0"])
def test_sigterm_to_any_process_ends_the_run_with_a_checkpoint(
    told: str, auditing: str, start_run: Any, assert_ledger_adds_up: Any
) -> None:
    run = start_run(auditing, *LONG)
    run.wait_for_rows(3)

    os.kill(run.pid_of(told), signal.SIGTERM)

    assert run.wait() == 0
    assert run.summary["status"] == "interrupted"
    assert run.summary["reason"] == f"stopped by SIGTERM to {told}"
    assert len(list((run.folder / "checkpoints").iterdir())) == 1
    assert_ledger_adds_up(run.summary)
    run.assert_nothing_left()


def test_everything_ends_when_the_controller_is_killed(
    auditing: str,
    start_run: Any,
    moments: random.Random,
    assert_ledger_adds_up: Any,
    wait_until: Any,
) -> None:
    run = start_run(auditing, *LONG)
    run.wait_for_rows(3)
    wait_until(lambda: run.rows()[-1]["env_steps"] > 0, "a report of the actor")
    assert len(run.pids()) == 5
    time.sleep(moments.uniform(0, 0.5))

    run.popen.kill()

    assert run.wait(KILL_SECONDS) == -signal.SIGKILL
    run.assert_nothing_left()
    (checkpoint,) = (run.folder / "checkpoints").iterdir()  # the agent had it written
    found = read_checkpoint(checkpoint)
    version, env_steps, samples = found.sections["trainer-0"]["counters"].tolist()
    progress = found.manifest["progress"]
    assert found.manifest["versions"]["main"] == progress["policies"]["main"]["version"] == version
    assert version >= 3
    assert progress["policies"]["main"]["train_samples"] == samples
    assert progress["totals"]["env_steps"] >= env_steps
    assert_ledger_adds_up(run.summary)
    assert run.summary["status"] == "running"
    assert RunFolder(run.folder).settle() is not None
    assert run.summary["status"] == "failed"
    assert run.summary["env_steps"] == run.rows()[-1]["env_steps"] > 0


def test_ctrl_c_leaves_a_checkpoint(
    auditing: str, start_run: Any, assert_ledger_adds_up: Any
) -> None:
    run = start_run(auditing, *LONG)
    run.wait_for_rows(3)

    run.popen.send_signal(signal.SIGINT)

    assert run.wait() == 130
    assert run.summary["status"] == "interrupted"
    assert "SIGINT" in run.summary["reason"]
    assert_ledger_adds_up(run.summary)
    assert len(list((run.folder / "checkpoints").iterdir())) == 1
    run.assert_nothing_left()


def test_sigterm_exits_0_and_can_be_resumed(
    auditing: str, start_run: Any, assert_ledger_adds_up: Any
) -> None:
    run = start_run(auditing, *LONG)
    run.wait_for_rows(3)
    run.popen.send_signal(signal.SIGTERM)
    assert run.wait() == 0
    first = run.summary
    assert first["status"] == "interrupted"
    assert "SIGTERM" in first["reason"]
    run.assert_nothing_left()

    steps = first["env_steps"] + 1000
    again = start_run("", "--stop.env-steps", str(steps), command="resume")

    assert again.wait() == 0
    last = again.summary
    assert last["status"] == "completed"
    assert last["env_steps"] >= steps
    assert last["version"] > first["version"]
    assert [row["version"] for row in again.rows()] == list(range(1, last["version"] + 1))
    assert last["blocks_consumed"] >= 2 * last["version"]  # of both lives
    assert_ledger_adds_up(last)
    again.assert_nothing_left()


def test_ctrl_c_twice_ends_at_once(auditing: str, start_run: Any, wait_until: Any) -> None:
    run = start_run(auditing, *LONG)
    run.wait_for_rows(3)
    os.kill(run.pid_of("trainer-0"), signal.SIGSTOP)  # which the first Ctrl-C would wait for
    run.popen.send_signal(signal.SIGINT)
    time.sleep(0.5)  # one Ctrl-C after the other: signals that are pending are merged

    run.popen.send_signal(signal.SIGINT)

    assert run.wait(5) == 130
    assert run.summary["status"] == "interrupted"
    run.assert_nothing_left()


MEMORY = (
    *("--env.name", "toy/recall", "--env.options", '{"delay": 3, "jitter": 4}'),
    *("--algorithm.memory", "gru", "--algorithm.chunk", "4", "--algorithm.burn-in", "3"),
    *("--algorithm.learning-rate", "1e-9"),  # states of one version can be computed again
)


@pytest.mark.parametrize(
    "options",
    [pytest.param((), marks=pytest.mark.slow, id="plain"), pytest.param(MEMORY, id="memory")],
)
def test_rows_are_sound_when_a_policy_worker_sleeps(
    auditing: str, start_run: Any, wait_until: Any, options: tuple[str, ...]
) -> None:
    run = start_run(auditing, *LONG, *options, "--policies.count", "2")
    run.wait_for_rows(5)
    sleeper = run.pid_of("policy-0")
    os.kill(sleeper, signal.SIGSTOP)
    asleep_since, rows_before = time.monotonic(), len(run.rows())

    wait_until(
        lambda: time.monotonic() > asleep_since + 5 and len(run.rows()) >= rows_before + 5,
        "versions learned while a policy worker sleeps",
    )
    os.kill(sleeper, signal.SIGCONT)
    run.wait_for_rows(len(run.rows()) + 20)
    run.popen.send_signal(signal.SIGINT)

    assert run.wait() == 130
    assert max(row["audit_max_difference"] for row in run.rows()) < 1e-4
    run.assert_nothing_left()


@pytest.mark.parametrize(
    ("victim", "options"),
    [
        ("actor-1", ("--actors.count", "2", "--actors.min", "1")),
        slow_case("policy-1", ("--policies.count", "2", "--policies.min", "1")),
        slow_case("evaluator-0", ("--evaluation.count", "1")),
    ],
)
def test_run_goes_on_without_a_worker_that_it_can_do_without(
    victim: str, options: tuple[str, ...], auditing: str, start_run: Any, assert_ledger_adds_up: Any
) -> None:
    run = start_run(auditing, *LONG, *NEVER_AGAIN, *options)
    run.wait_for_rows(3)
    os.kill(run.pid_of(victim), signal.SIGKILL)
    run.wait_for_rows(len(run.rows()) + 20)
    run.popen.send_signal(signal.SIGTERM)
    assert run.wait() == 0
    assert f"{victim} died 1 times in a row without progress and is given up" in run.output
    assert run.summary["worker_restarts"] == 0
    assert_ledger_adds_up(run.summary)
    run.assert_nothing_left()
