"""`srl compare`: which runs are of one method, what is said of them, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest

import srl
from srl import cli

A, B = "ppo algorithm.discount=0.95", "ppo algorithm.discount=0.99"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A real run of a toy, of which the tests make others."""
    out = tmp_path_factory.mktemp("compared") / "run"
    options = {"launcher": "inline", "stop__env_steps": 4000, "evaluation__episodes": 4}
    return srl.train("toy/identity", out=str(out), seed=0, **options).folder


@pytest.fixture
def make(run, tmp_path):
    """Makes a run folder like the real one, but for its seed, options, env and final return."""

    def made(name, *, seed=0, env=None, eval_return=0.0, steps=None, **algorithm):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        shutil.copy(run / "metrics.jsonl", folder)
        config, summary = (
            json.loads((run / f).read_text()) for f in ("config.json", "summary.json")
        )
        config["seed"] = summary["seed"] = seed
        config["env"]["name"] = env or config["env"]["name"]
        config["algorithm"] |= algorithm
        summary["eval_return"] = summary["policies"]["main"]["eval_return"] = eval_return
        summary["env_steps"] = steps or summary["env_steps"]
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "summary.json").write_text(json.dumps(summary))
        return folder

    return made


def compare(tmp_path, *words):
    file = tmp_path / "report.json"
    assert cli.main(["compare", *map(str, words), "--json", str(file)]) == 0
    return json.loads(file.read_text())


def two_methods(make, env=None, factor=1.0, prefix=""):
    for seed, (low, high) in enumerate([(1.0, 3.0), (2.0, 5.0), (6.0, 4.0)]):
        for discount, value in ((0.95, low), (0.99, high)):
            name = f"{prefix}{discount}-{seed}"
            make(name, seed=seed, env=env, eval_return=factor * value, discount=discount)


def test_methods_are_told_apart_by_what_differs(make, tmp_path, capsys):
    two_methods(make)
    report = compare(tmp_path, tmp_path / "runs")
    (task,) = report["tasks"]
    methods = report["tasks"][task]["methods"]
    assert task == "toy/identity"
    assert report["score"] == "eval_return"
    assert sorted(methods) == [A, B]
    assert methods[A]["scores"] == [1, 2, 6]
    assert methods[A]["seeds"] == [0, 1, 2]
    assert (methods[A]["iqm"]["value"], methods[B]["median"]["value"]) == (3, 4)
    low, high = methods[A]["mean"]["interval"]
    assert 1 <= low < 3 < high <= 6
    pairs = {(p["of"], p["over"]): p["value"] for p in report["tasks"][task]["improvement"]}
    assert pairs == pytest.approx({(B, A): 6 / 9, (A, B): 3 / 9})
    shown = report["tasks"][task]["profile"]
    for line in shown["methods"].values():
        assert (line["value"][0], line["value"][-1]) == (1, 0)
        assert all(low <= high for low, high in zip(line["low"], line["high"], strict=True))
    assert report["overall"] is None
    out = capsys.readouterr().out
    assert out.index(B) < out.index(A), "the best is named first"
    assert "note" not in out


def test_recipes_go_by_their_names_and_numbers_are_shown_whole(make, tmp_path, capsys):
    """Where options differ in many ways, these would take the room of the numbers."""
    other = {"discount": 0.5, "rollout": 64, "epochs": 9, "clip": 0.3, "gae_lambda": 0.7}
    for seed in range(2):
        make(f"a{seed}", seed=seed, eval_return=1234.5)
        folder = make(f"b{seed}", seed=seed, eval_return=-9876.5, **other)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(
            json.dumps(config | {"name": "a-recipe-of-a-long-name"})
        )
    report = compare(tmp_path, tmp_path / "runs")
    (found,) = report["tasks"].values()
    assert sorted(found["methods"]) == ["ppo a-recipe-of-a-long-name", "ppo toy/identity"]
    out = capsys.readouterr().out
    assert "-9876 [-9876, -9876]" in out
    assert "…" not in out


def test_by_names_what_tells_them_apart(make, tmp_path):
    two_methods(make)
    report = compare(tmp_path, tmp_path / "runs", "--by", "max-staleness")
    assert list(report["tasks"]["toy/identity"]["methods"]) == ["ppo max-staleness=1"]
    assert any("several runs of seed 0" in note for note in report["notes"])


def test_tasks_are_scaled_before_they_are_taken_together(make, tmp_path, capsys):
    two_methods(make, prefix="a")
    two_methods(make, env="toy/chain", factor=100.0, prefix="b")
    make("lonely", env="toy/chain", eval_return=350.0, discount=0.5)
    report = compare(tmp_path, tmp_path / "runs")
    assert report["overall"]["scales"] == {"toy/identity": [1, 6], "toy/chain": [100, 600]}
    facts = report["overall"]["methods"]
    assert facts.keys() == {A, B}
    assert facts[A]["mean"]["value"] == pytest.approx((0 + 0.2 + 1) / 3)
    assert facts[A]["iqm"]["value"] == pytest.approx((0 + 0.2 + 0.2 + 1) / 4), "of 0 0 .2 .2 1 1"
    assert facts[A]["num_runs"] == 6
    out = capsys.readouterr().out
    assert "is not run on every task" in out
    assert "the lowest and highest return of the runs compared here on toy/identity" in out
    scales = tmp_path / "scales.json"
    scales.write_text('{"toy/identity": [0, 10], "toy/chain": [0, 1000]}')
    report = compare(tmp_path, tmp_path / "runs", "--scales", scales)
    assert report["overall"]["methods"][A]["optimality_gap"] == pytest.approx(1 - 0.3)
    assert not any("lowest and highest" in note for note in report["notes"])


def test_returns_over_time_are_those_of_the_metrics(make, run, tmp_path):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    known = [(r["env_steps"], r["mean_return"]) for r in rows if r["mean_return"] is not None]
    (before, value), (after, _) = known[-2:]
    for seed in range(2):
        make(str(seed), seed=seed)
    for at in (before, after - 1):
        report = compare(tmp_path, tmp_path / "runs", "--at", at)
        facts = report["tasks"]["toy/identity"]["methods"]["ppo"]
        assert report["score"] == "mean_return"
        assert facts["scores"] == [value, value]
    curve = report["tasks"]["toy/identity"]["curve"]
    steps, line = curve["env_steps"], curve["methods"]["ppo"]
    assert steps[0] == known[0][0]
    for step, shown in zip(steps, line["value"], strict=True):
        assert shown == pytest.approx([r for s, r in known if s <= step][-1])
    assert line["low"] == pytest.approx(line["value"]), "two runs that are alike"


def test_notes_say_what_to_think_of(make, tmp_path, capsys):
    make("short", steps=1000, eval_return=None)
    make("other", discount=0.5)
    broken = make("broken", seed=1)
    (broken / "summary.json").unlink()
    report = compare(tmp_path, tmp_path / "runs")
    out = capsys.readouterr().out
    assert "note: left out:" in out
    assert "has one seed only: an interval needs two or more" in out
    assert "--at 1000 compares them at one" in out
    assert "compared is mean_return: not every run has an eval_return" in out
    (task,) = report["tasks"].values()
    assert all(facts["iqm"]["interval"] is None for facts in task["methods"].values())


def test_plots_are_written(make, tmp_path):
    pytest.importorskip("matplotlib")
    from PIL import Image

    two_methods(make, prefix="a")
    two_methods(make, env="toy/chain", prefix="b")
    compare(tmp_path, tmp_path / "runs", "--out", tmp_path / "plots")
    files = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert files == ["curves.png", "iqm.png", "profiles.png"]
    for file in files:
        with Image.open(tmp_path / "plots" / file) as image:
            colours = image.convert("RGB").getcolors(1 << 24)
            assert image.width > 500
            assert colours is not None
            assert len(colours) > 50, "something is drawn"


def test_whole_numbers_are_the_same_however_they_are_written(make, tmp_path):
    for seed, weight in ((1, 1), (2, 1.0), (3, 1)):
        folder = make(f"run-{seed}", seed=seed)
        config = json.loads((folder / "config.json").read_text())
        config["algorithm"] |= {"value_weight": weight, "range": [0, weight]}
        (folder / "config.json").write_text(json.dumps(config))
    (task,) = compare(tmp_path, tmp_path / "runs")["tasks"].values()
    assert len(task["methods"]) == 1


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "a run is missing"),
        (["nowhere"], "neither a run folder nor a folder of runs"),
        (["empty"], "there are no run folders in empty"),
        (["runs", "--att", "5"], "did you mean 'at'"),
        (["runs", "--at", "99999"], "before --at 99999"),
        (["runs", "--at", "1"], "has no finite mean_return at 1 env steps"),
        (["runs", "--by", "algorithm.discont"], "did you mean 'algorithm.discount'"),
        (["runs", "--resamples", "1"], "--resamples must be at least 100"),
        (["runs", "--policy", "other"], "has no policy 'other'"),
        (["runs", "--scales", "bad.json"], "the lower one first"),
        (["runs", "--scales", "none.json"], "is not {"),
        (["runs", "--scales", "other.json"], "names 'gym/A'"),
        (["runs", "--out", "bad.json"], "cannot be made"),
    ],
)
def test_bad_input_is_refused(make, tmp_path, monkeypatch, capsys, words, problem):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    make("one")
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.json").write_text('{"toy/identity": [2, 1]}')
    (tmp_path / "other.json").write_text('{"gym/A": [1, 2]}')
    assert cli.main(["compare", *words]) == 2
    assert problem in capsys.readouterr().err


def test_run_without_returns_is_refused_by_name(make, tmp_path, capsys):
    folder = make("one", eval_return=None)
    summary = json.loads((folder / "summary.json").read_text())
    summary["policies"]["main"]["mean_return"] = None
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "metrics.jsonl").unlink()
    assert cli.main(["compare", str(folder)]) == 2
    assert f"{folder} has no returns yet" in capsys.readouterr().err
    assert cli.main(["compare", str(folder.parent)]) == 2
    assert "none of the runs can be compared" in capsys.readouterr().err


def test_missing_matplotlib_is_named_with_its_extra(make, tmp_path, monkeypatch, capsys):
    make("one")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert cli.main(["compare", str(tmp_path / "runs"), "--out", str(tmp_path / "plots")]) == 2
    assert (
        "plots need matplotlib: pip install 'really-scalable-rl[plots]'" in capsys.readouterr().err
    )
    assert not (tmp_path / "plots").exists()
