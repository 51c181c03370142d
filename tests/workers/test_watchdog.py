"""A call of an env that does not come back: noticed, named, and told with what shows it again."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from srl.core.env import episode_seed
from srl.core.names import load_object
from srl.core.repro import Repro
from srl.core.telemetry import Telemetry
from srl.transport.control import Failure, Noted
from srl.workers.watchdog import Watchdog, Watched, watch

TESTS = Path(__file__).parents[1]
ROLLOUT, FAILING = (
    load_object(f"{TESTS / 'rollout' / 'test_quarantine.py'}:{name}")
    for name in ("Rollout", "failing")
)
BREAKING = load_object(f"{TESTS / 'bad_envs.py'}:Breaking")
SECONDS = 0.5


class Caught:
    """Keeps what a watchdog finds, and lets go what hangs."""

    def __init__(self):
        self.hangs, self.release = [], threading.Event()

    def __call__(self, hang):
        self.hangs.append(hang)
        self.release.set()


def hang_in(made, caught, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: caught.release.wait(60))
    with watch([Watched("actor-0", made.actor.telemetry)], SECONDS, caught):
        made.blocks(1)
    (hang,) = caught.hangs
    return hang


def test_hang_names_env_lane_seed_step_and_row_and_holds_a_repro_file(monkeypatch):
    seed, caught = episode_seed(3, 11, 1), Caught()
    made = ROLLOUT(FAILING, rollout=16, of=[seed], how="hang")
    hang = hang_in(made, caught, monkeypatch)
    assert "env 'own' did not come back for 0.5 s (--env.timeout-seconds)" in hang.message
    assert f"env 11 of the run (lane 1 of its batch), seed {seed}, episode 1" in hang.message
    assert hang.message.endswith("row 6 of its block")
    assert "in _fail" in hang.stack
    noted, failure = hang.messages()
    assert isinstance(noted, Noted)
    assert isinstance(failure, Failure)
    assert failure.message == hang.message
    assert failure.traceback == hang.stack
    ((name, text),) = noted.note.files
    assert name in noted.note.message
    repro = Repro.from_json(text)
    assert (repro.kind, repro.first_env, repro.episode, repro.step) == ("hang", 11, 1, 2)


def test_hang_in_a_reset_is_found_too(monkeypatch):
    caught = Caught()
    made = ROLLOUT(FAILING, rollout=4, of=[episode_seed(3, 10, 0)], how="hang", at=0)
    hang = hang_in(made, caught, monkeypatch)
    assert "env 10 of the run (lane 0 of its batch)" in hang.message
    assert Repro.from_json(hang.files[0][1]).actions == {"agent_0": []}


def test_hang_of_a_batch_names_all_of_its_envs(monkeypatch):
    class Sleeping(BREAKING):
        def step(self, actions, outcome, out):
            if self.steps == 3:
                time.sleep(1000)
            super().step(actions, outcome, out)

    caught = Caught()
    made = ROLLOUT(Sleeping.make_batch, rollout=8)
    hang = hang_in(made, caught, monkeypatch)
    assert "envs 10 to 11 of the run" in hang.message
    repro = Repro.from_json(hang.files[0][1])
    assert (repro.is_batch, repro.num_envs, repro.step) == (True, 2, 4)


def test_many_short_calls_are_no_hang_and_nothing_is_left():
    telemetry, caught = Telemetry(), Caught()
    before = threading.active_count()
    with watch([Watched("actor-0", telemetry)], 0.1, caught):
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            with telemetry.time("env"):
                pass
    assert not caught.hangs
    assert threading.active_count() == before


def test_time_between_calls_and_of_other_names_is_not_watched():
    telemetry, caught = Telemetry(), Caught()
    with watch([Watched("actor-0", telemetry)], 0.1, caught), telemetry.time("inference"):
        time.sleep(0.5)
    assert not caught.hangs


def test_call_of_something_that_cannot_say_which_env_is_told_all_the_same():
    telemetry, caught = Telemetry(), Caught()
    with watch([Watched("evaluator-0", telemetry)], 0.2, caught), telemetry.time("play"):
        assert caught.release.wait(60)
    (hang,) = caught.hangs
    assert hang.message == "an env did not come back for 0.2 s (--env.timeout-seconds), in 'play'"
    assert hang.files == ()
    assert [type(m) for m in hang.messages()] == [Failure]


def test_time_in_which_the_process_stood_still_is_not_the_envs():
    telemetry, caught = Telemetry(), Caught()
    watched = Watchdog([Watched("actor-0", telemetry)], 10.0, caught)
    clock = iter([0.0, 1000.0, 2000.0, 3000.0])
    looks = iter([False, False, False, True])
    watched._stopping.wait = lambda _: next(looks)  # three looks, then it is told to stop
    with pytest.MonkeyPatch.context() as patch, telemetry.time("env"):
        patch.setattr("srl.workers.watchdog.time.monotonic", lambda: next(clock))
        watched._run()
    assert not caught.hangs


@pytest.mark.parametrize("workers", [[], [Watched("a", Telemetry())]])
def test_nothing_is_watched_where_nothing_is_asked_for(workers):
    with watch(workers, None if workers else 1.0, lambda _: None) as watching:
        assert watching is None


def test_call_that_lets_nobody_run_ends_the_process_even_if_it_is_the_first():
    script = (
        "import re\n"
        "from srl.core.telemetry import Telemetry\n"
        "from srl.workers.watchdog import Watched, watch\n"
        "telemetry = Telemetry()\n"
        "with watch([Watched('actor-0', telemetry)], 1.0, print, is_alone=True):\n"
        "    with telemetry.time('env'):\n"
        "        re.match(r'(a+)+$', 'a' * 60 + 'b')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "Timeout (" in done.stderr
