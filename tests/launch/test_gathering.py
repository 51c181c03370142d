"""Reports of actors on their way through an agent: fewer, and nothing of them is lost or late for a death."""

from srl.launch.host import gathering
from srl.launch.host.gathering import Gathering
from srl.transport.control import Failure, Ready, Report, Reports


def report(worker="actor-0", steps=1, episodes=()):
    return Report(worker, counters={"env_steps": steps}, episodes=list(episodes))


def test_of_several_reports_the_last_counts_and_all_episodes_do():
    found = Gathering(8)
    for steps in (1, 2, 3):
        message = report(steps=steps, episodes=[(float(steps), 7, "main")])
        assert found.take("actor-0", "actor", message) == []
    assert found.take("actor-1", "actor", report("actor-1")) == []
    (told,) = found.due()
    assert isinstance(told, Reports)
    first, second = told.reports
    assert first.counters == {"env_steps": 3}
    assert [e[0] for e in first.episodes] == [1.0, 2.0, 3.0]
    assert second.worker == "actor-1"
    assert found.rest() == []


def test_what_an_actor_said_before_it_died_comes_before_its_death():
    found = Gathering(8)
    found.take("actor-0", "actor", report(steps=5))
    found.take("actor-1", "actor", report("actor-1"))
    death = Failure("actor-0", "killed", "")
    assert found.take("actor-0", "actor", death) == [Reports([report(steps=5)]), death]
    assert found.rest() == [Reports([report("actor-1")])]


def test_others_than_actors_are_heard_at_once():
    found = Gathering(8)
    for kind, message in (
        ("trainer", report("trainer-0")),
        ("actor", Ready("actor-0", 1, 0, 0, False)),
    ):
        assert found.take(message.worker, kind, message) == [message]


def test_of_many_actors_the_controller_hears_so_many_a_second_as_of_some(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(gathering.time, "monotonic", lambda: now)
    for num_actors in (100, 1000, 15_000):
        found, heard = Gathering(num_actors), 0
        for _ in range(400):  # 100 s, and a report each 0.25 s of one host's ten actors
            now += 0.25
            for actor in range(10):
                found.take(f"actor-{actor}", "actor", report(f"actor-{actor}"))
            heard += sum(len(m.reports) for m in found.due() if isinstance(m, Reports))
        of_all = heard / 100 * num_actors / 10
        assert of_all <= 4100
        assert heard >= 10 * 20  # and of each at least every 5 s
