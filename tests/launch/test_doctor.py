"""Who holds a run up, found by a clock of the test's own and what workers would have said."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from srl.launch.doctor import Doctor, Finding
from srl.transport.control import Examination, Examined, Failure, Ready, Report

SECONDS = 100.0
MEETING = (
    'Thread 0x1 (most recent call first):\n  File "/x/srl/learning/parallel.py", line 9 in gather\n'
)
CALL = 'Thread 0x2 (most recent call first):\n  File "/x/env.py", line 7 in sleep\n  File "b", line 1 in f'


def plan_of(trainers: int = 1, policies: int = 1, actors: int = 2, buffers: int = 0) -> Any:
    """As much of a plan as a doctor reads."""
    counts = {"trainer": trainers, "policy": policies, "actor": actors, "buffer": buffers}
    workers = [
        SimpleNamespace(name=f"{kind}-{i}", kind=kind, index=i, policy="main")
        for kind, count in counts.items()
        for i in range(count)
    ]
    of_kind = lambda kind: [w for w in workers if w.kind == kind]  # noqa: E731
    return SimpleNamespace(
        workers=workers,
        replay_seconds=0.0,
        all_hosts=[0],
        of_kind=of_kind,
        worker=lambda name: next(w for w in workers if w.name == name),
        ranks_of=lambda name: (
            [w.name for w in of_kind("trainer")] if name.startswith("trainer") else [name]
        ),
    )


class Ward:
    """A doctor and the workers it hears of, second by second."""

    def __init__(self, **counts: int) -> None:
        self.plan = plan_of(**counts)
        self.now = 1000.0
        self.doctor = Doctor(self.plan, SECONDS, self.now)
        self.names = [worker.name for worker in self.plan.workers]
        self.steps = 0
        for name in self.names:
            self.doctor.hear(Ready(name, 1, 0.0, 0.0, has_torch=False), self.now)

    def hear(self, report: Report) -> None:
        self.doctor.hear(report, self.now)

    def pass_time(self, seconds: int, say: Callable[[str], Report | None]) -> bool:
        """Let every worker report as `say` has it; whether the workers are to be examined."""
        for _ in range(seconds):
            self.now += 1.0
            for name in self.names:
                if (report := say(name)) is not None:
                    self.hear(report)
            if self.doctor.look(self.now):
                return True
        return False

    def works(self, name: str) -> Report:
        self.steps += 1
        counters = dict.fromkeys(("env_steps", "requests", "draws"), self.steps)
        updates = [{"version": 1.0}] if name == "trainer-0" else []
        return Report(name, counters=counters, updates=updates)

    def stands_still(self, waits: dict[str, str]) -> Callable[[str], Report | None]:
        """Those with something to wait for report that; the others say nothing."""
        frozen = dict(zip(self.names, range(9), strict=False))

        def say(name: str) -> Report | None:
            if name not in waits:
                return None
            counters = dict.fromkeys(("env_steps", "requests", "draws"), frozen[name])
            return Report(name, counters=counters, waits_in=waits[name])

        return say

    def diagnose(self, unread: int = 0, **seen: tuple[str, float, str]) -> Finding | None:
        workers = {name: Examination(1, "S", 0.0, "") for name in self.names}
        for name, (state, busy, stack) in seen.items():
            workers[name.replace("_", "-")] = Examination(2, state, busy, stack)
        return self.doctor.diagnose(Examined(workers, {"main": unread}, ["depths"]), self.now)


WAITING = {
    "actor-0": "wait_for_action",
    "actor-1": "wait_for_action",
    "trainer-0": "wait_for_batch",
}


def test_run_that_goes_on_is_left_alone():
    ward = Ward()
    assert not ward.pass_time(1000, ward.works)


def test_policy_worker_that_says_nothing_is_named_with_those_that_wait_for_it():
    ward = Ward()
    ward.pass_time(10, ward.works)
    assert ward.pass_time(110, ward.stands_still(WAITING))
    found = ward.diagnose(policy_0=("S", 0.0, CALL))
    assert found is not None
    assert found.culprit == "policy-0"
    assert "policy-0 hangs in a call for 101 s: it is in sleep (/x/env.py:7)" in found.sentence
    assert "uses no CPU" in found.sentence
    assert "trainer-0, actor-0 and actor-1 wait" in found.sentence
    assert found.failure is not None
    assert (found.failure.worker, found.failure.incarnation) == ("policy-0", 1)
    assert found.failure.hung_seconds == 101.0
    assert not found.failure.is_final
    assert "actor-0: waits for an answer of policy-0" in found.text
    assert "depths" in found.text


@pytest.mark.parametrize(("state", "words"), [("T", "stopped by a signal"), ("D", "for a disk")])
def test_what_the_kernel_says_of_a_process_is_told(state, words):
    ward = Ward()
    ward.pass_time(10, ward.works)
    ward.pass_time(110, ward.stands_still(WAITING))
    found = ward.diagnose(policy_0=(state, 0.0, ""))
    assert found is not None
    assert words in found.sentence


def test_one_actor_of_many_that_hangs_is_found_though_the_others_go_on():
    ward = Ward()
    ward.pass_time(10, ward.works)
    assert ward.pass_time(110, lambda name: None if name == "actor-1" else ward.works(name))
    found = ward.diagnose(actor_1=("R", 1.0, CALL))
    assert found is not None
    assert found.culprit == "actor-1"
    assert "computes" in found.sentence
    assert "wait" not in found.sentence


def test_rank_that_waits_for_another_is_not_the_one():
    ward = Ward(trainers=2, policies=0)
    ward.pass_time(10, ward.works)
    waits = {"actor-0": "wait_for_credit", "actor-1": "wait_for_credit"}
    assert ward.pass_time(110, ward.stands_still(waits))
    found = ward.diagnose(trainer_0=("S", 0.0, MEETING), trainer_1=("S", 0.0, CALL))
    assert found is not None
    assert found.culprit == "trainer-1"


def test_rank_without_a_batch_is_not_the_one_either_but_its_actor():
    ward = Ward(trainers=2, policies=0)
    ward.pass_time(10, ward.works)
    waits = {"actor-1": "wait_for_credit", "trainer-0": "wait_for_batch"}
    assert ward.pass_time(110, ward.stands_still(waits))
    found = ward.diagnose(trainer_1=("S", 0.0, MEETING), actor_0=("S", 0.0, CALL))
    assert found is not None
    assert found.culprit == "actor-0"


UNDRAWN = {
    "trainer-0": "wait_for_batch",
    "actor-0": "wait_for_credit",
    "actor-1": "wait_for_credit",
}


def test_buffer_that_hangs_is_the_one_and_not_who_waits_on_either_side_of_it():
    ward = Ward(policies=0, buffers=2)
    ward.pass_time(10, ward.works)
    waits = {**UNDRAWN, "buffer-0": "wait_for_leave"}
    assert ward.pass_time(110, ward.stands_still(waits))
    found = ward.diagnose(buffer_1=("S", 0.0, CALL))
    assert found is not None
    assert found.culprit == "buffer-1"
    assert "trainer-0: waits for draws of buffer-0 and buffer-1" in found.text
    assert "actor-0: waits for leave to begin a block from buffer-0 and buffer-1" in found.text
    assert "buffer-0: waits for leave to draw from trainer-0" in found.text


def test_buffer_without_blocks_is_not_the_one_but_its_actor():
    ward = Ward(policies=0, buffers=1)
    ward.pass_time(10, ward.works)
    waits = {"trainer-0": "wait_for_batch", "buffer-0": "wait_for_blocks"}
    assert ward.pass_time(110, ward.stands_still({**waits, "actor-0": "wait_for_credit"}))
    found = ward.diagnose(actor_1=("S", 0.0, CALL))
    assert found is not None
    assert found.culprit == "actor-1"


def test_lost_answer_is_told_as_one():
    ward = Ward()
    ward.pass_time(10, ward.works)
    waits = {**WAITING, "policy-0": "wait_for_requests"}
    assert ward.pass_time(110, ward.stands_still(waits))
    found = ward.diagnose()
    assert found is not None
    assert found.culprit == "actor-0"
    assert "a message between them was lost" in found.sentence


def test_one_actor_without_an_answer_is_found_though_its_policy_worker_answers_others():
    ward = Ward()
    ward.pass_time(10, ward.works)
    still = ward.stands_still({"actor-1": "wait_for_action"})
    assert ward.pass_time(110, lambda name: still(name) or ward.works(name))
    found = ward.diagnose()
    assert found is not None
    assert found.culprit == "actor-1"


def test_actors_and_trainer_that_wait_for_each_other():
    waits = dict.fromkeys(("actor-0", "actor-1"), "wait_for_credit")
    for unread, culprit in ((0, "actor-0"), (3, "trainer-0")):
        ward = Ward(policies=0)
        ward.pass_time(10, ward.works)
        assert ward.pass_time(110, ward.stands_still({**waits, "trainer-0": "wait_for_batch"}))
        found = ward.diagnose(unread=unread)
        assert found is not None
        assert found.culprit == culprit


def test_slow_envs_are_no_hang_and_not_told_again_and_again():
    ward = Ward(policies=0)
    ward.pass_time(10, ward.works)

    def plays(name: str) -> Report:
        report = ward.works(name)
        return Report(name, waits_in="wait_for_batch") if name == "trainer-0" else report

    assert ward.pass_time(110, plays)
    found = ward.diagnose()
    assert found is not None
    assert found.culprit is None
    assert found.failure is None
    assert "has learned nothing for 101 s, but no worker hangs: actors play" in found.sentence
    assert not ward.pass_time(90, plays)
    assert ward.pass_time(20, plays), "after twice the time"
    ward.diagnose()
    assert not ward.pass_time(150, plays)


def test_actor_that_always_waits_for_leave_while_others_learn_is_left_alone():
    ward = Ward(policies=0)
    still = ward.stands_still({"actor-1": "wait_for_credit"})
    assert not ward.pass_time(500, lambda name: still(name) or ward.works(name))


def test_dead_and_starting_workers_are_not_blamed_for_those_that_wait():
    ward = Ward()
    ward.pass_time(10, ward.works)
    ward.doctor.hear(Failure("policy-0", "killed", ""), ward.now)
    assert ward.pass_time(110, ward.stands_still(WAITING))
    found = ward.diagnose()
    assert found is not None
    assert found.culprit is None
    assert "policy worker is being started again" in found.sentence


def test_reports_of_an_earlier_life_are_not_heard():
    ward = Ward()
    ward.doctor.restarting("policy-0", 2, ward.now)
    still = ward.stands_still({"policy-0": "wait_for_requests"})
    assert ward.pass_time(130, lambda name: still(name) or ward.works(name))
    found = ward.diagnose(policy_0=("S", 0.0, CALL))
    assert found is not None
    assert found.sentence == "policy-0 did not get ready within 120 s: it is in sleep (/x/env.py:7)"
    assert found.failure is not None
    assert not found.failure.is_final, "it may get ready in another life"


def test_worker_that_never_gets_ready_at_the_start_ends_the_run():
    ward = Ward()
    ward.doctor = Doctor(ward.plan, SECONDS, ward.now)
    ward.names.remove("trainer-0")
    for name in ward.names:
        ward.doctor.hear(Ready(name, 1, 0.0, 0.0, has_torch=False), ward.now)
    assert ward.pass_time(130, lambda name: Report(name, counters=ward.works(name).counters))
    found = ward.diagnose()
    assert found is not None
    assert found.failure is not None
    assert found.failure.is_final
    assert found.culprit == "trainer-0"


def test_what_has_passed_meanwhile_is_not_told():
    ward = Ward()
    ward.pass_time(10, ward.works)
    assert ward.pass_time(110, ward.stands_still(WAITING))
    assert not ward.pass_time(1, ward.works)
    assert ward.diagnose() is None
    assert not ward.pass_time(50, ward.works)


def test_agent_that_does_not_look_is_named():
    ward = Ward()
    assert ward.pass_time(110, lambda _: None)
    assert ward.doctor.unanswered() is None
    assert not ward.pass_time(14, lambda _: None)
    assert ward.doctor.unanswered() is None
    ward.pass_time(3, lambda _: None)
    failure = ward.doctor.unanswered()
    assert failure is not None
    assert failure.worker == "node-agent"


def test_controller_that_was_stopped_itself_blames_nobody():
    ward = Ward()
    ward.pass_time(10, ward.works)
    ward.now += 10_000.0
    assert not ward.doctor.look(ward.now)
    assert not ward.pass_time(60, ward.works)


def test_actor_that_was_given_up_is_not_waited_for():
    ward = Ward(policies=0)
    ward.pass_time(10, ward.works)
    ward.doctor.hear(Failure("actor-1", "killed", ""), ward.now)
    ward.doctor.given_up(["actor-1"])
    ward.names.remove("actor-1")
    waits = {"actor-0": "wait_for_credit", "trainer-0": "wait_for_batch"}
    assert ward.pass_time(110, ward.stands_still(waits))
    found = ward.diagnose()
    assert found is not None
    assert found.culprit == "actor-0"


def test_suspect_that_started_again_while_it_was_looked_at_is_not_blamed():
    ward = Ward()
    ward.pass_time(10, ward.works)
    assert ward.pass_time(110, ward.stands_still(WAITING))
    ward.doctor.restarting(ward.doctor._suspicion.worker, 2, ward.now)
    assert ward.doctor._suspect() is not None, "others stand still, too"
    assert ward.diagnose() is None
