"""srl versions, and playing what was kept."""

from pathlib import Path

import numpy as np
import pytest

import srl
from srl import cli
from srl.learning.versions import VersionStore

EXPERIMENT = f"{Path(__file__).parents[1] / 'launch' / 'auditing.py'}:experiment"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return srl.train(
        EXPERIMENT,
        launcher="inline",
        stop__env_steps=4000,
        evaluation__count=1,
        evaluation__episodes=8,
        evaluation__keep=4,
        algorithm__hidden=(8,),
        out=str(tmp_path_factory.mktemp("versions") / "run"),
    ).folder


def shown(capfd, *words):
    assert cli.main(["versions", *map(str, words)]) == 0
    return [line.split() for line in capfd.readouterr().out.splitlines()]


def refused(capfd, *words):
    assert cli.main(["versions", *map(str, words)]) == 2
    return capfd.readouterr().err


def test_table_shows_versions_and_tags(run, capfd):
    head, *rows = shown(capfd, run)
    assert head[:4] == ["version", "env", "steps", "seconds"]
    numbers = [int(row[0]) for row in rows]
    assert numbers == sorted(numbers, reverse=True)
    store = VersionStore(run / "versions")
    assert numbers == [v.version for v in store.newest("main", 100)]
    tags = store.tags("main")
    assert rows[0][-1] == "eval" or rows[0][-2:] == ["best", "eval"]
    (best,) = [row for row in rows if "best" in row]
    assert int(best[0]) == tags["best"]
    assert len(shown(capfd, run, "--newest", "2")) == 3
    lowest = min(v.eval_return for v in store.newest("main", 100))
    assert len(shown(capfd, run, "--where", f"eval_return < {lowest}")) == 1


def test_tag_is_set_and_loads(run, capfd):
    oldest = int(shown(capfd, run)[-1][0])
    rows = shown(capfd, run, "--tag", f"mine={oldest}")
    assert rows[-1][0] == str(oldest)
    assert rows[-1][-1] == "mine"
    one, two = srl.load(run, version="mine"), srl.load(run, version=oldest)
    seen = np.zeros(one.act.__self__._agent.observations[0].shape, np.int64)
    assert one.act(seen) == two.act(seen)


def test_evaluation_of_a_kept_version_is_what_was_found(run, capfd):
    best = VersionStore(run / "versions").tagged("best", policy="main")
    found = srl.evaluate_run(run, episodes=8, version="best")
    assert found.mean == best.eval_return
    assert cli.main(["eval", str(run), "--version=best", "--episodes", "8"]) == 0
    assert f'"eval_return": {best.eval_return}' in capfd.readouterr().out
    latest = srl.evaluate_run(run, episodes=8, version="latest")
    assert latest.returns == srl.evaluate_run(run, episodes=8).returns


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--where", "eval_return > 1 or 1"), "is no condition"),
        (("--newest", "0"), "at least 1"),
        (("--newest", "x"), "whole number"),
        (("--tag", "mine"), "NAME=VERSION"),
        (("--tag", "mine=99999"), "is not kept"),
        (("--tag", "best=0"), "set by the run itself"),
        (("--policy", "mainn"), "did you mean 'main'"),
        (("--nweest", "2"), "did you mean 'newest'"),
        (("--where",), "needs a value"),
    ],
)
def test_bad_input_is_refused(run, capfd, words, said):
    assert said in refused(capfd, run, *words)


def test_run_without_versions_says_so(tmp_path, capfd):
    run = srl.train(
        EXPERIMENT,
        launcher="inline",
        stop__env_steps=300,
        evaluation__episodes=0,
        out=str(tmp_path / "run"),
    )
    assert "there are no versions in" in refused(capfd, run.folder)
    assert "is not a run folder" in refused(capfd, tmp_path)


def test_weights_of_another_network_are_refused(run, tmp_path, capfd):
    other = srl.train(
        EXPERIMENT,
        launcher="inline",
        stop__env_steps=300,
        evaluation__episodes=4,
        algorithm__hidden=(4,),
        out=str(tmp_path / "run"),
    )
    best = VersionStore(run / "versions").tagged("best", policy="main")
    theirs = VersionStore(other.folder / "versions")
    (theirs.folder / best.file).write_bytes((run / "versions" / best.file).read_bytes())
    theirs.repair()
    assert cli.main(["eval", str(other.folder), "--version", str(best.version)]) == 2
    assert "does not fit the policy" in capfd.readouterr().err
