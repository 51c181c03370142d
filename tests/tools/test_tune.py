"""Tuning: what is tried, what is kept, and how `--auto` uses it."""

import json

import pytest

from srl import cli
from srl.api import find_experiment
from srl.core.errors import ConfigError
from srl.tools import tune as tuning
from srl.tools.bench.window import Window
from srl.tools.tune import Dimension, Search, auto, dimensions_of, fits, place_of, read_tuned, typed

TINY = "--actors.envs 4 --actors.groups 2 --algorithm.rollout 8 --algorithm.batch-size 32"
TINY += " --algorithm.minibatch-size 16 --algorithm.epochs 1 --algorithm.hidden 8"
NAME = "toy/identity"
FREE = ["--algorithm.rollout", "8", "--algorithm.batch-size", "128"]  # 16 envs in 2 groups


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SRL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Runs:
    """Runs that take 5 s each, of a host on which speed is a table."""

    def __init__(self, rates):
        self.rates = rates
        self.now = 0.0
        self.made = []

    def __call__(self, options):
        self.now += 5.0
        self.made.append(tuple(options.values()))
        rate = self.rates[tuple(options.values())]
        return rate.pop(0) if isinstance(rate, list) else rate

    def search(self, dimensions, seconds=120.0, is_possible=lambda options: True):
        return Search(self, is_possible, dimensions, seconds, clock=lambda: self.now).search()


A = Dimension("a", ({"a": "1"}, {"a": "2"}))
B = Dimension("b", ({"b": "x"},))


def test_each_dimension_goes_on_from_the_best_so_far():
    runs = Runs({(): 100, ("1",): 120, ("2",): 110, ("1", "x"): 130})
    found = runs.search([A, B])
    assert runs.made[:4] == [(), ("1",), ("2",), ("1", "x")]
    assert found["options"] == {"a": "1", "b": "x"}
    assert found["comparison"]["median"] == 1.3
    finals = runs.made[4:]
    assert len(finals) == 10
    assert finals[:4] == [(), ("1", "x"), ("1", "x"), ()]  # in turn, each first as often
    assert found["seconds"] == 70.0


def test_defaults_are_kept_unless_they_are_beaten_in_every_final_round():
    rates = {(): 100, ("1",): [200, 101, 140, 140, 140, 140], ("2",): 50, ("1", "x"): 1}
    assert Runs(dict(rates)).search([A, B])["options"] == {"a": "1"}
    rates[("1",)] = [200, 99, 140, 140, 140, 140]
    found = Runs(rates).search([A, B])
    assert found["options"] == {}
    assert found["best_found"] == {"a": "1"}
    assert not found["comparison"]["is_better"]


def test_two_rounds_must_be_won_clearly():
    slow = 24.0  # seconds: 120 s have room for two candidates and two rounds

    def kept(rates):
        runs = Runs({(): 100, ("1",): rates, ("2",): 50, ("1", "x"): 1})
        found = Search(
            runs, lambda options: True, [A, B], 120.0, clock=lambda: runs.now / 5 * slow
        ).search()
        assert len(found["comparison"]["ratios"]) == 2
        return found["options"]

    assert kept([200, 106, 120]) == {"a": "1"}
    assert kept([200, 104, 120]) == {}


def test_what_is_not_faster_is_not_compared():
    runs = Runs({(): 100, ("1",): 101, ("2",): None, ("x",): 90})
    found = runs.search([A, B])
    assert (found["options"], found["comparison"]) == ({}, None)
    assert len(runs.made) == 4


def test_a_setting_that_fails_in_the_end_is_not_kept():
    runs = Runs({(): 100, ("x",): [200, 200, None, 200, 200, 200]})
    assert runs.search([B])["options"] == {}


def test_the_time_is_kept():
    many = Dimension("many", tuple({"n": str(n)} for n in range(50)))
    runs = Runs({(): 100, ("x",): 90, **{(str(n),): 100 + n for n in range(50)}})
    runs.rates |= {(str(n), "x"): 90 for n in range(50)}
    found = runs.search([many, B], seconds=120.0)
    assert found["seconds"] <= 120.0
    assert any(run["stage"] == "b" for run in found["runs"])  # every dimension has its turn
    assert sum(run["stage"] == "final" for run in found["runs"]) >= 6


def test_what_cannot_be_run_is_not_tried():
    runs = Runs({(): 100, ("2",): 150, ("2", "x"): 1})
    runs.search([A, B], is_possible=lambda options: options.get("a") != "1")
    assert ("1",) not in runs.made


def test_candidates_leave_what_is_learned_alone():
    base = find_experiment("cartpole")
    dimensions = dimensions_of(base, 4, 0)
    names = {name for dimension in dimensions for options in dimension.options for name in options}
    assert names == {
        "actors.count",
        "actors.envs",
        "actors.groups",
        "trainers.threads",
        "inference",
    }
    actors = next(d.options for d in dimensions if d.name == "actors")
    assert {"actors.count": "4", "actors.envs": "8"} in actors  # as many envs in all
    assert {"actors.count": "1", "actors.envs": "32"} not in actors  # the defaults
    assert {"trainers.threads": "1"} not in [o for d in dimensions for o in d.options]


def test_gpus_are_tried_first():
    devices = dimensions_of(find_experiment("cartpole"), 16, 1)[0]
    assert devices.options[0] == {"trainers.device": "cuda"}
    assert devices.options[1]["policies.device"] == "cuda"


def test_only_what_fits_the_batch_and_never_waits_is_tried():
    assert fits(NAME, FREE, {"actors.groups": "4"})
    assert not fits(NAME, FREE, {"actors.envs": "6"})  # 128 rows are no multiple of 8 x 3
    assert not fits(NAME, FREE, {"actors.count": "8"})  # more groups than blocks under way


def test_typed_options_are_not_tuned():
    assert typed({"actors.count": "2", "actors.envs": "8"}, ["--actors.envs=4"])
    assert typed({"actors.count": "2"}, ["--actors.count", "3"])
    assert not typed({"actors.count": "2"}, ["--actors.envs", "4"])


def test_a_setting_is_kept_by_experiment_and_host(monkeypatch, cache):
    words = TINY.split()
    place = place_of(find_experiment(NAME, words))
    assert place.parent == cache / "tuned"
    assert place == place_of(find_experiment(NAME, [*words, "--seed", "3", "--stop.seconds", "9"]))
    assert place != place_of(find_experiment(NAME, [*words, "--algorithm.epochs", "2"]))
    monkeypatch.setattr(tuning, "num_cores", lambda: 99)
    assert place != place_of(find_experiment(NAME, words))


def test_auto_tunes_once_and_typed_options_win(monkeypatch, capsys):
    made = []

    def run(experiment, *, warm_up, window):
        made.append(experiment)
        steps = 100 * experiment.actors.groups + (experiment.trainers.threads or 0)
        return Window(1.0, steps, 1, {}, {}, None)

    monkeypatch.setattr(tuning, "run_window", run)
    words = [*FREE, "--actors.count", "1"]
    arguments = auto(NAME, words)
    assert arguments == ["--actors.groups", "4", *words]
    assert all(experiment.actors.count == 1 for experiment in made)
    assert "--auto: --actors.groups 4" in capsys.readouterr().out
    assert find_experiment(NAME, arguments).actors.groups == 4
    once = len(made)
    assert auto(NAME, words) == arguments
    assert len(made) == once
    file = place_of(find_experiment(NAME, words))
    assert read_tuned(file) == {"actors.groups": "4"}
    other = ["--actors.groups", "1", *FREE]
    assert auto(NAME, other, str(file)) == other


def test_files_of_others_and_one_process_are_refused(tmp_path):
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(ConfigError, match="was not written by srl tune"):
        auto(NAME, [], str(tmp_path / "x.json"))
    with pytest.raises(ConfigError, match="launcher local"):
        auto(NAME, ["--launcher", "inline"])
    with pytest.raises(ConfigError, match="launcher local"):
        tuning.main([NAME, "--launcher", "inline"])


def test_tune_measures_writes_and_train_uses_it(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    words = [NAME, *TINY.split()]
    assert cli.main(["tune", *words, "--seconds", "0.5", "--out", "t.json"]) == 0
    result = json.loads((tmp_path / "t.json").read_text())
    assert result["options"] == {}  # no time for more than the defaults
    assert result["runs"][0]["rate"] > 0
    result["options"] = {"actors.groups": "1"}
    (tmp_path / "t.json").write_text(json.dumps(result))
    words = [NAME, *TINY.split()[:2], *TINY.split()[4:]]
    train = ["--auto=t.json", "--stop.env-steps", "64", "--evaluation.episodes", "0", "--out", "r"]
    assert cli.main(["train", *words, *train]) == 0
    assert "--auto: --actors.groups 1 (t.json)" in capfd.readouterr().out
    config = json.loads((tmp_path / "r" / "config.json").read_text())
    assert config["actors"]["groups"] == 1


def test_what_the_host_cannot_hold_does_not_fit(monkeypatch):
    assert fits("cartpole", [], {"actors.count": "1"})
    monkeypatch.setattr("srl.launch.host.limits.available_memory", lambda: 1000)
    assert not fits("cartpole", [], {"actors.count": "1"})
