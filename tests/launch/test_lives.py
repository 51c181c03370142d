"""Actors that come later: who is told of them, and when."""

from srl import api
from srl.launch.graph.plan import make_plan
from srl.launch.lives import Lives
from srl.launch.supervision import Verdict
from srl.transport.control import Enlist, Failure, Ready, Restart, Retire


def ready(worker: str, life: int = 1) -> Ready:
    return Ready(worker, 1, 0.0, 0.0, False, life)


def test_trainers_hear_of_actors_that_come_later_in_each_of_their_lives() -> None:
    words = {"launcher": "ray", "actors__count": 1, "actors__max": 3}
    experiment = api.find_experiment("toy/identity", api._to_arguments(words))
    lives = Lives(experiment, make_plan(experiment))
    for worker in ("trainer-0", "actor-0"):
        lives.hear(ready(worker))
    assert lives.orders(None, 0.0) == []
    lives.hear(ready("actor-2"))
    assert lives.orders(None, 0.0) == [Enlist(2)]
    lives.died(Failure("actor-2", "killed", ""), 0.0)
    lives.orders(None, 0.0)
    lives.hear(ready("actor-2", 2))
    assert lives.orders(None, 0.0) == []  # its trainers know it
    lives.died(Failure("trainer-0", "killed", ""), 0.0)
    lives.orders(None, 0.0)
    lives.hear(ready("trainer-0", 2))
    assert lives.orders(None, 0.0) == [Enlist(2)]


def test_taker_without_an_actor_left_ends_the_run() -> None:
    for count, ends in ((2, True), (4, False)):
        words = {"launcher": "local", "actors__count": count, "actors__min": 1}
        words |= {"trainers__count": 2, "restarts__actors": 0, "algorithm__batch_size": 4096}
        experiment = api.find_experiment("toy/identity", api._to_arguments(words))
        lives = Lives(experiment, make_plan(experiment))
        verdict = lives.died(Failure("actor-0", "killed", ""), 0.0)
        assert (verdict.reason is not None) == ends
        if ends:
            assert "the last actor is gone that sends to trainer-0" in str(verdict.reason)


def test_who_has_no_host_is_waited_for_where_a_taker_has_no_other_actor() -> None:
    words = {"launcher": "local", "actors__count": 4, "actors__min": 1}
    words |= {"trainers__count": 2, "restarts__actors": 1, "algorithm__batch_size": 4096}
    experiment = api.find_experiment("toy/identity", api._to_arguments(words))
    lives = Lives(experiment, make_plan(experiment))

    def died(actor: int, life: int) -> Verdict:
        return lives.died(Failure(f"actor-{actor}", "no host", "", life, is_homeless=True), 0.0)

    assert died(1, 1).given_up == ("actor-1",)
    assert died(3, 1) == Verdict(note="actor-3: no host; actor-3 starts again now")
    assert lives.orders(None, 0.0) == [Retire(1), Restart(["actor-3"], 2, None)]
    assert "the last actor is gone that sends to trainer-1" in str(died(3, 2).reason)
