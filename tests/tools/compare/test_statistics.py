"""Statistics of a few runs: by hand, by their laws, and as rliable computes them."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from srl.tools.compare.statistics import (
    bootstrap_interval,
    interquartile_mean,
    mean,
    median,
    optimality_gap,
    probability_of_improvement,
    profile,
)

RLIABLE = json.loads((Path(__file__).parent / "rliable.json").read_text())
STATISTICS = {
    "iqm": interquartile_mean,
    "mean": mean,
    "median": median,
    "optimality_gap": optimality_gap,
}
one_task = arrays(np.float64, st.integers(1, 9), elements=st.floats(-1e6, 1e6))


def of(*tasks):
    return [np.array(runs, np.float64) for runs in tasks]


def by_task(matrix):
    """`[runs, tasks]` as scores."""
    return list(np.array(matrix).T)


def test_values_by_hand():
    assert interquartile_mean(of([7, 1, 0, 6, 2, 100, 3, 4])) == (2 + 3 + 4 + 6) / 4
    assert interquartile_mean(of([9, 1], [2, 3])) == 2.5, "pooled: 1 2 3 9"
    assert interquartile_mean(of([3, 1, 2])) == 2, "a quarter of three is none"
    assert mean(of([1, 3], [10])) == 6, "tasks count alike, however many runs they have"
    assert median(of([1, 3], [10], [100, 300])) == 10, "of the means 2, 10, 200"
    assert median(of([1, 3, 50])) == 3, "of the runs, where there is one task"
    assert optimality_gap(of([0.5, 2.0], [0.25, 0.25])) == 1 - (0.5 + 1 + 0.25 + 0.25) / 4
    assert probability_of_improvement(of([1, 2]), of([0, 2, 3])) == (1 + 0 + 0 + 1 + 0.5 + 0) / 6
    assert probability_of_improvement(of([1], [0]), of([0], [1])) == 0.5
    found = profile(of([0, 1], [1, 2]), np.array([-1, 0, 1, 2]))
    assert found.tolist() == [1, 0.75, 0.25, 0]


def test_axes_before_the_runs_are_kept():
    scores = [np.arange(24.0).reshape(2, 3, 4), np.arange(12.0).reshape(2, 3, 2)]
    for statistic in STATISTICS.values():
        found = statistic(scores)
        for i, j in np.ndindex(2, 3):
            assert found[i, j] == statistic([x[i, j] for x in scores])
    assert profile(scores, np.array([3.0, 5.0])).shape == (2, 2, 3)
    assert probability_of_improvement(scores, scores[::-1]).shape == (2, 3)


@given(one_task, one_task)
def test_laws(x, y):
    low, high = x.min() - 1e-6, x.max() + 1e-6
    assert all(low <= f([x]) <= high for f in (interquartile_mean, mean, median))
    for f in (interquartile_mean, mean, median):
        np.testing.assert_allclose(f([x[::-1]]), f([x]), rtol=1e-9, atol=1e-6)
    there, back = probability_of_improvement([x], [y]), probability_of_improvement([y], [x])
    assert there + back == pytest.approx(1)
    assert (np.diff(profile([x], np.sort(y))) <= 0).all()


def test_bootstrap_draws_within_each_task():
    low, high = bootstrap_interval(
        mean, of([0, 0, 0], [10, 10]), resamples=500, rng=np.random.default_rng(0)
    )
    assert low == high == 5, "runs of one task never stand for those of another"


def test_bootstrap_is_a_loop_over_resamples():
    x, y = np.random.default_rng(1).normal(size=(2, 6))
    interval = bootstrap_interval(
        probability_of_improvement, [x], [y], resamples=4000, rng=np.random.default_rng(0)
    )
    rng, values = np.random.default_rng(2), []
    for _ in range(4000):
        a, b = rng.choice(x, 6), rng.choice(y, 6)
        values.append(np.mean([(i > j) + (i == j) / 2 for i in a for j in b]))
    np.testing.assert_allclose(interval, np.quantile(values, (0.025, 0.975)), atol=0.04)


def test_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(300):
        low, high = bootstrap_interval(mean, [rng.normal(size=30)], resamples=400, rng=rng)
        covered += low <= 0 <= high
    assert 0.88 < covered / 300 < 0.98


@pytest.mark.parametrize("case", RLIABLE)
def test_values_are_those_of_rliable(case):
    scores, others = by_task(case["scores"]), by_task(case["others"])
    for name, f in STATISTICS.items():
        if name == "median" and len(scores) == 1:
            continue  # rliable takes the mean of the runs there
        assert abs(f(scores) - case["values"][name]) < 1e-9, name
    assert abs(probability_of_improvement(scores, others) - case["values"]["improvement"]) < 1e-9
    found = profile(scores, np.array(case["thresholds"]))
    np.testing.assert_allclose(found, case["profile"], rtol=0, atol=1e-9)


@pytest.mark.parametrize("case", RLIABLE)
def test_intervals_are_those_of_rliable(case):
    scores, others = by_task(case["scores"]), by_task(case["others"])
    for name, wanted in case["intervals"].items():
        if name == "median" and len(scores) == 1:
            continue
        groups = (scores, others) if name == "improvement" else (scores,)
        statistic = STATISTICS.get(name, probability_of_improvement)
        check_interval(wanted, statistic, *groups)


def check_interval(wanted, statistic, *groups):
    """Its ends lie between ours at levels that differ by 1 %: by few runs, ends are few values."""
    (low, high), (lower, higher) = (
        bootstrap_interval(
            statistic, *groups, resamples=10_000, rng=np.random.default_rng(0), size=size
        )
        for size in (0.93, 0.97)
    )
    assert lower - 1e-9 <= wanted[0] <= low + 1e-9, statistic
    assert high - 1e-9 <= wanted[1] <= higher + 1e-9, statistic


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_rliable_itself():
    """Where it is installed: scores that no file holds."""
    library = pytest.importorskip("rliable.library")
    metrics = pytest.importorskip("rliable.metrics")
    x, y = np.random.default_rng().normal(size=(2, 8, 5)).round(1)
    theirs = (metrics.aggregate_iqm, metrics.aggregate_mean, metrics.aggregate_median)
    theirs += (metrics.aggregate_optimality_gap,)
    for ours, its in zip(STATISTICS.values(), theirs, strict=True):
        assert abs(ours(by_task(x)) - its(x)) < 1e-9
    wanted = metrics.probability_of_improvement(x, y)
    assert abs(probability_of_improvement(by_task(x), by_task(y)) - wanted) < 1e-9
    thresholds = np.linspace(-1, 1, 21)
    wanted = library.score_distributions(x, thresholds)
    np.testing.assert_allclose(profile(by_task(x), thresholds), wanted, rtol=0, atol=1e-9)
    _, found = library.get_interval_estimates(
        {"x": x}, lambda s: np.array([metrics.aggregate_iqm(s)]), reps=10_000
    )
    check_interval(found["x"][:, 0], interquartile_mean, by_task(x))
