"""One factor at a time: what is tried, in which order, and what is made of it."""

import json

import pytest

from srl import cli
from srl.core.errors import ConfigError, WorkerError
from srl.tools.bench import ablate
from srl.tools.bench.ablate import FACTORS, levels_of, main, measure, summarise
from srl.tools.bench.command import find
from srl.tools.bench.window import Window

TINY = "--actors.envs 4 --actors.groups 2 --algorithm.rollout 8 --algorithm.batch-size 32"
TINY += " --algorithm.minibatch-size 16 --algorithm.epochs 1 --algorithm.hidden 8"
NAME = "toy/identity"


def levels(factors, *words):
    arguments = [*TINY.split(), *words]
    base = find(NAME, arguments)
    return base, list(levels_of(base, NAME, arguments, factors))


def test_levels_are_the_others_than_the_experiments_own():
    base, found = levels(["groups", "inference", "staleness", "allocator"])
    assert [level.label for level in found] == [
        "actors.groups 1",
        "actors.groups 4",
        "inference shm",
        "max-staleness 0",
        "allocator default",
    ]
    for level in found:
        assert level.experiment is not None
        assert level.experiment != base
    assert found[0].experiment.actors.groups == 1


def test_what_cannot_be_run_says_why(monkeypatch):
    monkeypatch.setitem(FACTORS, "magic", ("magic", ("on", "off")))
    _, found = levels(["groups", "magic"], "--actors.envs", "2")
    reasons = {level.label: level.reason for level in found if level.experiment is None}
    assert "multiple of actors.groups" in reasons["actors.groups 4"]
    assert reasons["magic on/off"] == "there is no such option"


def test_acting_is_a_factor_where_there_is_a_choice():
    _, found = levels(["acting"])
    assert [level.label for level in found] == ["acting torch"]
    assert found[0].experiment is not None
    _, found = levels(["acting"], "--algorithm.memory", "gru", "--algorithm.chunk", "8")
    assert [level.experiment for level in found] == [None]
    assert "no other policy than torch's" in found[0].reason


def test_rounds_are_interleaved_and_a_failure_is_not_repeated(monkeypatch):
    base, found = levels(["groups"])
    order = []

    def run(experiment, *, warm_up, window):
        order.append(experiment.actors.groups)
        if experiment.actors.groups == 4:
            raise WorkerError("no")
        steps = {2: 100, 1: 150}[experiment.actors.groups] * len(order)
        return Window(1.0, steps, 1, {}, {}, None)

    monkeypatch.setattr(ablate, "run_window", run)
    rates = {"base": []}
    for _ in measure(base, found, rates, repeats=2, warm_up=0, window=0):
        pass
    assert order == [2, 1, 4, 1, 2]  # the second round begins one place later
    assert rates == {
        "base": [100.0, 500.0],
        "actors.groups 1": [300.0, 600.0],
        "actors.groups 4": [None, None],
    }
    one, four = summarise(found, rates)["levels"]
    assert one["ratios"] == [3.0, 1.2]
    assert one["median"] == pytest.approx(2.1)
    assert one["interval"][0] < 1 < one["interval"][1]
    assert four["median"] is None


def test_a_base_that_fails_ends_it(monkeypatch):
    base, found = levels(["groups"])

    def run(experiment, **_):
        raise WorkerError("no")

    monkeypatch.setattr(ablate, "run_window", run)
    with pytest.raises(WorkerError):
        list(measure(base, found, {"base": []}, repeats=1, warm_up=0, window=0))


def test_an_unknown_factor_is_refused():
    with pytest.raises(ConfigError, match="--factors speed"):
        main([NAME, "--factors", "speed"])


@pytest.mark.slow
def test_the_command_writes_what_it_prints(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    words = ["bench", "ablate", NAME, *TINY.split(), "--factors", "groups", "--repeats", "1"]
    words += ["--seconds", "0.1", "--warm-up", "0", "--actors.envs", "2", "--json", "a.json"]
    assert cli.main(words) == 0
    out = capfd.readouterr().out
    assert "not tried: actors.groups 4" in out
    result = json.loads((tmp_path / "a.json").read_text())
    assert len(result["base"]) == 1
    tried = [row for row in result["levels"] if not row["not_tried"]]
    assert [row["level"] for row in tried] == ["actors.groups 1"]
    assert tried[0]["median"] == pytest.approx(tried[0]["rates"][0] / result["base"][0], abs=1e-4)
    assert (tmp_path / "a.svg").exists()
