"""Real processes that stand still: the run says who, keeps all stacks, and goes on or ends."""

import os
import signal
from typing import Any

import pytest

RUN = ("--launcher", "local", "--inference", "shm", "--stop.env-steps", "100000000")
HANGS = ("--hangs.seconds", "4", "--checkpoint.seconds", "1", "--algorithm.audits", "False")


@pytest.mark.parametrize("victim", ["policy-0", pytest.param("trainer-0", marks=pytest.mark.slow)])
def test_worker_that_stands_still_is_named_and_starts_again(
    victim: str, auditing: str, start_run: Any, wait_until: Any, assert_ledger_adds_up: Any
) -> None:
    run = start_run(auditing, *RUN, *HANGS)
    run.wait_for_rows(3)
    os.kill(run.pid_of(victim), signal.SIGSTOP)
    wait_until(lambda: "stopped by a signal" in run.output, "the hang to be told")
    run.wait_for_rows(len(run.rows()) + 3)
    run.popen.send_signal(signal.SIGTERM)
    assert run.wait() == 0
    text = (run.folder / "errors" / "hang-1.txt").read_text()
    assert f"{victim} has been stopped by a signal for" in text.splitlines()[0]
    assert "actor-0: waits for" in text
    assert "samples/main:" in text
    assert "parameters/main: version" in text
    assert "in poll" in text, "the stacks of those that wait"
    assert run.summary["worker_restarts"] >= 1
    assert_ledger_adds_up(run.summary)
    run.assert_nothing_left()


@pytest.mark.slow
def test_run_ends_by_the_hang_where_that_is_asked_for(auditing: str, start_run: Any) -> None:
    run = start_run(auditing, *RUN, *HANGS, "--hangs.action", "stop")
    run.wait_for_rows(3)
    os.kill(run.pid_of("policy-0"), signal.SIGSTOP)
    assert run.wait() == 3
    assert "policy-0: policy-0 has been stopped by a signal for" in run.summary["reason"]
    run.assert_nothing_left()


@pytest.mark.slow
def test_node_agent_that_stands_still_is_named_and_ends_the_run(
    auditing: str, start_run: Any
) -> None:
    run = start_run(auditing, *RUN, *HANGS)
    run.wait_for_rows(3)
    os.kill(run.pid_of("node-agent"), signal.SIGSTOP)
    assert run.wait() == 3
    assert "the node agent has not answered" in run.summary["reason"]
    run.assert_nothing_left()
