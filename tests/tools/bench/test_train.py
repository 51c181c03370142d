"""A window of a real run: what counts, when it begins, and where the rest went."""

import json

import pytest

from srl import cli
from srl.api import find_experiment
from srl.core.errors import ConfigError, WorkerError
from srl.tools import tune
from srl.tools.bench import report
from srl.tools.bench import train as bench_train
from srl.tools.bench import window as windows
from srl.tools.bench.train import main, missing, missing_in_words, summarise
from srl.tools.bench.window import Window, run_window
from srl.transport.control import Ready, Report

TINY = "--actors.envs 4 --actors.groups 2 --algorithm.rollout 8 --algorithm.batch-size 32"
TINY += " --algorithm.minibatch-size 16 --algorithm.epochs 1 --algorithm.hidden 8"


class FakeTime:
    """A clock that moves when it is told to."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now

    def process_time(self):
        return self.now / 4


def learned(version, env_steps, **seconds):
    update = {"version": version, "consumed_env_steps": env_steps}
    return Report("trainer-0", seconds=seconds, updates=[update])


def test_a_window_lies_between_two_learned_batches(monkeypatch):
    clock = FakeTime()
    monkeypatch.setattr(windows, "time", clock)
    monkeypatch.setattr(windows, "_process", lambda pid: (clock.now / pid, 7))
    monkeypatch.setattr(windows, "_busy_seconds", lambda: 2 * clock.now)
    watch = windows._Watch(warm_up=5.0, window=10.0)

    def at(now, *messages):
        clock.now = now
        return watch.hear(messages)

    ready = [Ready("trainer-0", 4, 0.0, 0.0, True), Ready("actor-0", 2, 0.0, 0.0, False)]
    assert at(100.0, *ready) is None
    assert at(101.0, learned(1, 1_000, learn=1.0)) is None  # the warm-up begins
    assert at(105.0, learned(2, 2_000, learn=2.0)) is None  # not over yet
    assert at(107.0, Report("actor-0", seconds={"env": 3.0})) is None
    assert at(108.0, learned(3, 3_000, learn=4.0, wait_for_batch=1.0)) is None  # it begins
    assert at(117.0, learned(4, 4_000, learn=8.0, wait_for_batch=1.0)) is None  # 9 s are no window
    assert at(127.0, Report("actor-0", seconds={"env": 18.0, "wait_for_credit": 1.0})) is None
    end = learned(6, 7_000, learn=18.0, wait_for_batch=2.0)
    assert at(128.0, end) == "the window is over"
    found = watch.result()
    assert (found.seconds, found.env_steps, found.versions) == (20.0, 4_000, 3)
    assert found.env_steps_per_second == 200.0
    assert found.workers["trainer-0"] == pytest.approx(
        {"learn": 14 / 20, "wait_for_batch": 1 / 20, "other": 5 / 20}
    )
    assert found.workers["actor-0"] == pytest.approx(
        {"env": 15 / 20, "wait_for_credit": 1 / 20, "other": 4 / 20}
    )
    cpu = {"controller": 1 / 4, "trainer-0": 1 / 4, "actor-0": 1 / 2, "node-agent": 1 / 7}
    assert found.cpu == pytest.approx(cpu)
    assert found.elsewhere == pytest.approx(2 - sum(cpu.values()))


def window(**changed):
    facts = {
        "seconds": 10.0,
        "env_steps": 100_000,
        "versions": 5,
        "workers": {
            "actor-0": {"env": 0.8, "wait_for_credit": 0.12, "other": 0.08},
            "trainer-0": {"learn": 0.95, "wait_for_batch": 0.05},
        },
        "cpu": {"controller": 0.02, "actor-0": 0.8, "trainer-0": 0.9},
        "elsewhere": 0.1,
    }
    return Window(**{**facts, **changed})


PARTS = {"env": 50.0, "inference": 10.0, "stage": 1.0, "update": 69.0}
COSTS = {"ideal": {"env_steps_per_second": 2e6 / 130, "core_us_an_env_step": PARTS}}


def test_what_is_missing_adds_up_to_all_cores(monkeypatch):
    monkeypatch.setattr(bench_train, "num_cores", lambda: 2)
    experiment = find_experiment("toy/identity")
    lost = missing(experiment, window(), PARTS)
    assert lost == pytest.approx(
        {
            "idle": 1 - 1.72 / 2 - 0.05,
            "elsewhere": 0.05,
            "controller": 0.01,
            "actor-0": (0.8 - 0.6) / 2,  # 10,000 steps/s of 60 µs are 0.6 cores
            "trainer-0": (0.9 - 0.7) / 2,
        }
    )
    result = summarise(experiment, [window()], COSTS)
    assert result["efficiency"] == pytest.approx(10_000 * 130e-6 / 2)
    assert sum(result["missing"].values()) == pytest.approx(1 - result["efficiency"])
    words = "\n".join(missing_in_words(result))
    assert "actor-0 waits for credit 12% of its time; trainer-0 waits for batch 5%" in words
    assert "missing 10.0% of the cores: actor-0 works slower than alone" in words


def test_the_middle_of_several_windows_counts():
    experiment = find_experiment("toy/identity")
    rates = [30_000, 10_000, 20_000]
    result = summarise(experiment, [window(env_steps=10 * rate) for rate in rates], COSTS)
    assert result["env_steps_per_second"] == 20_000
    assert [w["env_steps_per_second"] for w in result["windows"]] == rates


@pytest.mark.parametrize("words", [[], ["--inference", "shm"]])
def test_a_real_run_is_measured(words):
    found = run_window(
        find_experiment("toy/identity", [*TINY.split(), *words]), warm_up=0, window=0.3
    )
    assert found.seconds >= 0.3
    assert found.versions >= 1
    assert 0 < found.env_steps <= found.versions * 32  # final rows are no steps
    assert {"actor-0", "trainer-0", "controller"} <= set(found.cpu)
    assert found.workers["trainer-0"]["learn"] > 0
    assert ("policy-0" in found.workers) == bool(words)


def test_a_run_that_fails_says_why():
    experiment = find_experiment(
        "toy/identity", [*TINY.split(), "--algorithm.learning-rate", "1e30"]
    )
    with pytest.raises(WorkerError, match="diverged"):
        run_window(experiment, warm_up=0, window=60)


def test_one_process_is_not_measured():
    with pytest.raises(ConfigError, match="launcher local"):
        main(["toy/identity", "--launcher", "inline"])


def test_the_command_takes_costs_and_writes_what_it_prints(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    base = ["toy/identity", *TINY.split()]
    assert cli.main(["bench", "cost", *base, "--seconds", "0.1", "--json", "c.json"]) == 0
    window = ["--warm-up", "0", "--seconds", "0.2", "--cost", "c.json", "--json", "t.json"]
    assert cli.main(["bench", "train", *base, *window]) == 0
    out = capfd.readouterr().out
    result = json.loads((tmp_path / "t.json").read_text())
    cost = json.loads((tmp_path / "c.json").read_text())
    assert result["ideal"] == cost["ideal"]
    assert result["efficiency"] == pytest.approx(
        result["env_steps_per_second"] / cost["ideal"]["env_steps_per_second"]
    )
    assert "bottleneck:" in out
    assert "of the ideal" in out
    assert (tmp_path / "t.svg").exists()
    (tmp_path / "x.json").write_text("{}")
    assert cli.main(["bench", "train", *base, "--cost", "x.json"]) == 2
    assert "srl bench cost" in capfd.readouterr().err


def test_a_tuned_setting_is_measured_where_asked(tmp_path, monkeypatch):
    monkeypatch.setenv("SRL_CACHE", str(tmp_path))
    words = TINY.split()[:2] + TINY.split()[4:]
    place = tune.place_of(find_experiment("toy/identity", words))
    report.write_json(place, {"options": {"actors.groups": "1"}})
    seen = []

    def run(experiment, *, warm_up, window):
        seen.append((experiment.actors.groups, warm_up, window))
        raise WorkerError("enough")

    monkeypatch.setattr(bench_train, "run_window", run)
    monkeypatch.setattr(bench_train, "measure_cost", lambda *_: COSTS)
    with pytest.raises(WorkerError, match="enough"):
        main(["toy/identity", *words, "--auto"])
    assert seen == [(1, 5.0, 20.0)]
