"""What rliable says of a few seeded scores, for the tests of `srl compare` (tests/tools/compare).

rliable (https://github.com/google-research/rliable, Agarwal et al. 2021) needs a venv of its own:

    python3 -m venv rliable && rliable/bin/pip install rliable 'pandas<3'
    rliable/bin/python benchmarks/rliable_fixtures.py
"""

import json
from pathlib import Path

import numpy as np
from rliable import library, metrics

TARGET = Path(__file__).parents[1] / "tests" / "tools" / "compare" / "rliable.json"
SHAPES = ((3, 1), (5, 1), (5, 6), (10, 3), (7, 4))
"""Runs and tasks."""
RESAMPLES = 10_000
PAIRED_RESAMPLES = 2_000
"""Each is a test of SciPy's: milliseconds."""


def drawn(number: int, runs: int, tasks: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores `[runs, tasks]` of two methods; some of them are equal."""
    rng = np.random.default_rng(number)
    one = rng.normal(0.5, 0.3, (runs, tasks)).round(2)
    other = rng.normal(rng.uniform(0.3, 0.7, tasks), 0.2, (runs + 1, tasks)).round(2)
    return one, other


def interval(scores, function, resamples=RESAMPLES) -> list[float]:
    generator = np.random.RandomState(0)
    given = {"x": scores}
    _, found = library.get_interval_estimates(
        given, lambda *x: np.array([function(*x)]), reps=resamples, random_state=generator
    )
    return [float(end) for end in found["x"][:, 0]]


def facts(one: np.ndarray, other: np.ndarray) -> dict:
    statistics = {
        "iqm": metrics.aggregate_iqm,
        "mean": metrics.aggregate_mean,
        "median": metrics.aggregate_median,
        "optimality_gap": metrics.aggregate_optimality_gap,
    }
    better = metrics.probability_of_improvement
    thresholds = np.linspace(0, 1, 11)
    return {
        "scores": one.tolist(),
        "others": other.tolist(),
        "values": {name: float(f(one)) for name, f in statistics.items()}
        | {"improvement": float(better(one, other))},
        "intervals": {name: interval(one, f) for name, f in statistics.items()}
        | {"improvement": interval([one, other], better, PAIRED_RESAMPLES)},
        "thresholds": thresholds.tolist(),
        "profile": library.score_distributions(one, thresholds).tolist(),
    }


if __name__ == "__main__":
    found = [facts(*drawn(number, *shape)) for number, shape in enumerate(SHAPES)]
    TARGET.write_text(json.dumps(found) + "\n")
