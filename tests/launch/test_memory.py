"""Memory of workers: what ends them, and how that is told."""

import signal
from pathlib import Path

import pytest

from srl.launch.host import memory
from srl.launch.host.memory import MemoryWatch

SIGKILL = -signal.SIGKILL


class Host:
    """Sizes of processes and a counter of kills, as the kernel would tell them."""

    def __init__(self, monkeypatch):
        self.sizes, self.kills, self.now = {10: 30.0, 11: 170.0}, 5, 100.0
        monkeypatch.setattr(memory.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(memory.cgroup, "memory_limit", lambda: 2_000_000_000)

    def watch(self, limit=None):
        return MemoryWatch(
            limit, "toy/leaky", measure=self.sizes.get, count_kills=lambda: self.kills
        )


@pytest.fixture
def host(monkeypatch):
    return Host(monkeypatch)


def test_workers_are_looked_at_now_and_then(host):
    watch, pids = host.watch(), {"actor-0": 10, "trainer-0": 11, "policy-0": 12}
    assert watch.look(pids) == {"actor-0": 30.0, "trainer-0": 170.0}  # the third has ended
    host.now += 1.0
    assert watch.look(pids) == {}
    host.now += 1.0
    assert watch.look(pids) != {}


def test_actor_above_its_limit_is_ended_and_named(host):
    watch = host.watch(limit=100.0)
    host.sizes[10] = 100.0
    watch.look({"actor-0": 10, "trainer-0": 11})
    assert not watch.is_too_large("actor-0", "actor", 10)
    assert not watch.is_too_large("trainer-0", "trainer", 11)  # it is no actor
    host.sizes[10], host.now = 612.0, host.now + 2.0
    watch.look({"actor-0": 10})
    assert watch.is_too_large("actor-0", "actor", 10)
    words = watch.explain("actor-0", 10, SIGKILL)
    assert words == (
        "actor-0 took 612 MB, more than actors.memory-limit-mb 100, and was ended: does its env "
        "toy/leaky keep what it should free?"
    )
    assert watch.explain("actor-0", 10, SIGKILL) is None  # the next life, should it have the pid


def test_without_a_limit_nobody_is_ended(host):
    watch = host.watch()
    host.sizes[10] = 1e6
    watch.look({"actor-0": 10})
    assert not watch.is_too_large("actor-0", "actor", 10)


def test_kill_by_the_kernel_is_told_from_others(host):
    watch = host.watch()
    watch.look({"actor-0": 10, "trainer-0": 11})
    assert watch.explain("actor-0", 10, SIGKILL) is None  # by a person, or another program
    host.kills += 1
    assert watch.explain("actor-0", 10, -signal.SIGSEGV) is None
    words = watch.explain("actor-0", 10, SIGKILL)
    assert words is not None
    assert words.startswith(
        "actor-0 was killed by the kernel for lack of memory (it had 30 MB when"
    )
    assert "the control group may have 2000 MB" in words
    assert watch.explain("trainer-0", 11, SIGKILL) is None  # one kill explains one death


def test_every_kill_of_several_at_once_is_told(host):
    watch = host.watch()
    host.kills += 2
    told = [watch.explain(f"actor-{i}", 20 + i, SIGKILL) for i in range(3)]
    assert [words is not None for words in told] == [True, True, False]


def test_kernel_says_how_many_it_killed():
    assert memory.oom_kills() >= 0


def test_host_without_control_groups_counts_for_itself(monkeypatch, tmp_path):
    monkeypatch.setattr(memory.cgroup, "oom_kills", lambda: None)
    assert memory.oom_kills() >= 0
    file = tmp_path / "vmstat"
    file.write_text("pgfault 7\noom_kill 3\n")
    monkeypatch.setattr(memory, "Path", lambda _: file)
    assert memory.oom_kills() == 3


LEAKY = f"{Path(__file__).parent / 'leaky.py'}:Leaky"


@pytest.mark.slow
def test_run_with_a_leaking_env_goes_on_and_names_it(start_run, wait_until):
    run = start_run(
        LEAKY,
        *("--launcher", "local", "--actors.count", "1", "--actors.memory-limit-mb", "1200"),
        *("--evaluation.episodes", "0", "--stop.seconds", "600"),
    )
    wait_until(lambda: "has grown by" in run.output, "a note on the growth")
    wait_until(lambda: "more than actors.memory-limit-mb 1200" in run.output, "its end")
    run.wait_for_rows(len(run.rows()) + 5)
    run.popen.send_signal(signal.SIGINT)
    assert run.wait() == 130
    assert run.summary["status"] == "interrupted"
    assert run.summary["worker_restarts"] >= 1
    assert "leaky.py:Leaky keep what it should free?" in run.output
    assert "took" in (run.folder / "errors" / "actor-0.txt").read_text()
    memory = run.summary["memory"]
    assert list(memory["growing"]) == ["actor-0"]
    assert memory["growing"]["actor-0"] > 1
    assert memory["largest"]["trainer"]["megabytes"] > 50
    assert run.rows()[-1]["time"]["memory_megabytes"] > 100
    run.assert_nothing_left()
