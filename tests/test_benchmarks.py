"""Benchmarks that learn: what they would run exists, and one run that fails does not end the others."""

import sys
from pathlib import Path
from typing import Any

import pytest

from srl import catalog
from srl.api import find_experiment
from srl.core.names import load_object

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """They import each other by name, as scripts of one folder do."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    sys.modules.pop("running", None)


def test_algorithms_of_the_table_are_recipes() -> None:
    cases = load_object(f"{FOLDER / 'learn.py'}:SETS")["algorithms"]
    assert set(cases) <= set(catalog.EXPERIMENTS)
    for words in cases.values():
        _, name, *options = words.split()
        find_experiment(name, options)
    steps = find_experiment("half-cheetah-sac", cases["half-cheetah-sac"].split()[2:])
    assert steps.stop.env_steps == 100_000


def test_pong_and_what_is_set_beside_others_are_recipes() -> None:
    for name, command in load_object(f"{FOLDER / 'pong.py'}:RECIPES").items():
        _, _, recipe, *options = command.split()
        assert recipe == name
        assert find_experiment(recipe, options).trainers.device == "cuda"
    cases = load_object(f"{FOLDER / 'beside_sb3.py'}:CASES").values()
    assert {experiment for experiment, _ in cases} <= set(catalog.EXPERIMENTS)


def test_env_steps_that_a_return_took_are_counted() -> None:
    reached = load_object(f"{FOLDER / 'learn.py'}:reached")
    returns = {100: None, 200: 0.0, 300: 480.0, 400: 470.0}
    rows = [{"env_steps": steps, "mean_return": x} for steps, x in returns.items()]
    assert reached(rows, 475) == 300
    assert reached(rows, 490) is None
    assert reached(rows, 0) == 200


def test_a_run_that_fails_leaves_the_others_alone(capsys: pytest.CaptureFixture[str]) -> None:
    run_all, kept = load_object(f"{FOLDER / 'running.py'}:run_all"), []

    def bad() -> dict[str, Any]:
        raise RuntimeError("it went wrong")

    def keep(name: str, found: dict[str, Any]) -> str:
        kept.append((name, found["n"]))
        return f"found {found['n']}"

    jobs = {"a": lambda: {"n": 1}, "b": bad, "c": lambda: {"n": 3}}
    assert run_all(jobs, keep, 2) == 1
    assert sorted(kept) == [("a", 1), ("c", 3)]
    said = capsys.readouterr().out
    assert "b: failed: it went wrong" in said
    assert "3 runs, 1 failed, 2 at a time: 0.0 min" in said


def test_a_curve_keeps_its_last_point() -> None:
    curve = load_object(f"{FOLDER / 'running.py'}:curve")
    rows = [{"env_steps": n, "mean_return": n / 10} for n in range(999)]
    found = curve(rows)
    assert 40 <= len(found) <= 45
    assert found[0] == (0, 0.0)
    assert found[-1] == (998, 99.8)
    assert curve(rows[:1]) == [(0, 0.0)]
    assert curve([]) == []


def test_results_are_written_whole(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    load_object(f"{FOLDER / 'running.py'}:write")(file, {"a": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]
    assert file.read_text() == '{\n "a": 1\n}\n'
