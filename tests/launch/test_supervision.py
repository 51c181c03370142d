"""Who starts again, when, and when it is enough: told by a clock of the test's own."""

from types import SimpleNamespace
from typing import Any

import pytest

from srl.core.experiment import RestartsConfig
from srl.launch.supervision import Supervisor, Verdict
from srl.transport.control import Failure

RANKS = ("trainer-0", "trainer-1")


def plan_of(*names: str) -> Any:
    """As much of a plan as a supervisor reads."""
    kinds = [(name, name.partition("-")[0]) for name in names]
    # policy-other-0 is of a policy `other`
    policies = {n: n.split("-")[1] if k == "policy" and n.count("-") > 1 else "" for n, k in kinds}
    workers = [SimpleNamespace(name=n, kind=k, policy=policies[n]) for n, k in kinds]
    ranks_of = lambda name: [n for n in names if n in RANKS] if name in RANKS else [name]  # noqa: E731
    return SimpleNamespace(workers=workers, ranks_of=ranks_of)


def make(*names: str, least: dict[str, int] | None = None, **options: Any) -> Supervisor:
    return Supervisor(plan_of(*names), RestartsConfig(**options), least or {})


def died(
    supervisor: Supervisor, worker: str, life: int, message: str, now: float, **facts: Any
) -> Verdict:
    return supervisor.died(Failure(worker, message, "", life, **facts), now)


def test_workers_that_have_not_come_do_not_count_as_living():
    names = ("actor-0", "actor-1", "actor-2")
    for joins, goes_on in ((False, False), (True, True)):
        config, least = RestartsConfig(actors=0), {"actor": 2}
        supervisor = Supervisor(plan_of(*names), config, least, late=["actor-2"])
        if joins:
            supervisor.joined("actor-2")
        verdict = died(supervisor, "actor-0", 1, "killed", 1.0)
        assert (verdict.reason is None) == goes_on


def test_waits_double_until_there_is_progress():
    supervisor = make("actor-0", actors=9, wait_seconds=1.0)
    waits = []
    for life in range(1, 8):
        assert died(supervisor, "actor-0", life, "killed", 100.0).reason is None
        times = [0.0, 1.0, 1.5, 2.0, 4.0, 8.0, 16.0, 30.0]
        due = next(t for t in times if supervisor.due(100.0 + t))
        waits.append(due)
        assert supervisor.incarnation("actor-0") == life + 1
        assert not supervisor.due(1e9), "once"
    assert waits == [0.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    supervisor.progressed("actor-0", 8)
    died(supervisor, "actor-0", 8, "killed", 100.0)
    assert supervisor.due(100.0)
    assert supervisor.restarts == 8


def test_too_many_deaths_in_a_row_end_the_run_and_say_so():
    supervisor = make("actor-0", actors=2)
    for life in (1, 2):
        assert died(supervisor, "actor-0", life, "it broke", 0.0).reason is None
        supervisor.due(1e9)
    verdict = died(supervisor, "actor-0", 3, "it broke", 0.0)
    assert verdict.reason is not None
    assert "it broke" in verdict.reason
    assert "3 times in a row" in verdict.reason
    assert "--restarts.actors 2" in verdict.reason


def test_with_no_lives_to_spare_the_reason_is_the_death_alone():
    assert died(make("policy-0", policies=0), "policy-0", 1, "killed", 0.0).reason == "killed"


def test_a_bug_ends_the_run_and_does_not_come_again():
    supervisor = make("actor-0")
    assert (
        died(supervisor, "actor-0", 1, "KeyError: 3", 0.0, is_raised=True).reason == "KeyError: 3"
    )


def test_an_exception_of_a_worker_that_has_worked_is_survived():
    supervisor = make("actor-0")
    supervisor.progressed("actor-0", 1)
    assert died(supervisor, "actor-0", 1, "KeyError: 3", 0.0, is_raised=True).reason is None


def test_what_the_user_must_mend_ends_the_run():
    supervisor = make("actor-0")
    supervisor.progressed("actor-0", 1)
    verdict = died(supervisor, "actor-0", 1, "no such env", 0.0, is_raised=True, is_final=True)
    assert verdict.reason == "no such env"


def test_enough_others_let_the_run_go_on():
    supervisor = make("actor-0", "actor-1", "actor-2", actors=0, least={"actor": 2})
    verdict = died(supervisor, "actor-1", 1, "killed", 0.0)
    assert verdict.reason is None
    assert verdict.given_up == ("actor-1",)
    assert "goes on with 2" in (verdict.note or "")
    assert died(supervisor, "actor-2", 1, "killed", 0.0).reason == "killed"


def test_trainers_of_a_policy_are_one_unit():
    supervisor = make(*RANKS, "actor-0")
    assert died(supervisor, "trainer-1", 1, "killed", 5.0).note
    other = died(supervisor, "trainer-0", 1, "lost the other", 5.1)
    assert (other.reason, other.note) == (None, None)
    (restart,) = supervisor.due(5.2)
    assert (restart.kind, restart.workers, restart.incarnation) == ("trainer", RANKS, 2)
    late = died(supervisor, "trainer-0", 1, "news of an earlier life", 6.0)
    assert (late.reason, late.note) == (None, None)
    assert not supervisor.due(1e9)


@pytest.mark.parametrize("incarnation", [1, 2])
def test_progress_of_an_earlier_life_is_none(incarnation: int):
    supervisor = make("actor-0", actors=1)
    died(supervisor, "actor-0", 1, "killed", 0.0)
    supervisor.progressed("actor-0", 1)  # a late report of the dead one
    supervisor.due(1e9)
    supervisor.progressed("actor-0", incarnation)
    verdict = died(supervisor, "actor-0", 2, "killed", 0.0)
    assert (verdict.reason is None) == (incarnation == 2)


def test_lives_that_hang_nearly_all_the_time_are_without_progress():
    supervisor = make("actor-0", actors=2, wait_seconds=0.0)
    now, reasons = 0.0, []
    for life in range(1, 4):
        supervisor.progressed("actor-0", life)
        now += 33.0  # of which it hung 30
        verdict = died(supervisor, "actor-0", life, "it hangs", now, hung_seconds=30.0)
        reasons.append(verdict.reason)
        supervisor.due(now)
    assert reasons[:2] == [None, None]  # when the first life began is not known: it worked
    assert reasons[2] is not None
    assert "3 times in a row" in reasons[2]


def test_lives_that_work_for_a_while_before_they_hang_may_be_many():
    supervisor = make("actor-0", actors=1, wait_seconds=0.0)
    now = 0.0
    for life in range(1, 10):
        supervisor.progressed("actor-0", life)
        now += 34.0
        assert died(supervisor, "actor-0", life, "it hangs", now, hung_seconds=30.0).reason is None
        supervisor.due(now)


@pytest.mark.parametrize("facts", [{}, {"is_final": True}, {"is_raised": True}])
def test_run_goes_on_without_its_evaluator(facts: dict[str, Any]):
    supervisor = make("evaluator-0", "actor-0", least={"evaluator": 0}, evaluators=0)
    verdict = died(supervisor, "evaluator-0", 1, "it broke", 0.0, **facts)
    assert verdict.reason is None
    assert verdict.given_up == ("evaluator-0",)
    assert "it broke" in str(verdict.note)
    assert died(supervisor, "actor-0", 1, "it broke", 0.0, is_final=True).reason == "it broke"


def test_who_has_no_host_is_given_up_at_once_where_enough_others_live():
    supervisor = make("actor-0", "actor-1", "actor-2", least={"actor": 2}, actors=5)
    assert died(supervisor, "actor-0", 1, "host 1 is lost", 0.0).given_up == ()
    assert supervisor.due(0.0)
    verdict = died(supervisor, "actor-0", 2, "host 1 did not come", 60.0, is_homeless=True)
    assert verdict.given_up == ("actor-0",)
    assert verdict.reason is None
    verdict = died(supervisor, "actor-1", 1, "host 1 did not come", 60.0, is_homeless=True)
    assert verdict.given_up == (), "two are needed, and its host may still come"
    assert supervisor.due(60.0)


def test_policy_workers_are_enough_for_each_policy_by_itself():
    names = ("policy-a-0", "policy-a-1", "policy-b-0", "policy-b-1")
    supervisor = make(*names, least={"policy": 1}, policies=1)
    verdict = died(supervisor, "policy-a-0", 1, "no host", 0.0, is_homeless=True)
    assert verdict.given_up == ("policy-a-0",)
    assert verdict.note == (
        "policy-a-0 has no host and is given up (no host); the run goes on with 1"
    )
    assert died(supervisor, "policy-a-1", 1, "no host", 0.0, is_homeless=True).given_up == ()
    assert supervisor.due(0.0), "it is waited for"
    assert died(supervisor, "policy-a-1", 2, "no host", 60.0, is_homeless=True).reason is not None
    verdict = died(supervisor, "policy-b-0", 1, "no host", 60.0, is_homeless=True)
    assert verdict.given_up == ("policy-b-0",)


def test_without_a_least_number_who_has_no_host_is_waited_for_by_its_budget():
    supervisor = make("actor-0", "actor-1", actors=1)
    assert died(supervisor, "actor-0", 1, "no host", 0.0, is_homeless=True).reason is None
    assert supervisor.due(0.0)
    assert died(supervisor, "actor-0", 2, "no host", 60.0, is_homeless=True).reason is not None
