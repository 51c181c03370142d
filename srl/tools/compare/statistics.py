"""What can be said of a few runs (Agarwal et al. 2021, https://arxiv.org/abs/2108.13264).

Scores are a list with an array for each task, `[..., n]`: of `n` runs, whose numbers may differ
between tasks. Axes before the last (points in time, resamples) are kept.
"""

from collections.abc import Callable, Sequence

import numpy as np

Scores = Sequence[np.ndarray]
_TRIMMED = 0.25
"""Of the runs, at either end."""


def mean(scores: Scores) -> np.ndarray:
    """`[...]` mean over the tasks of the mean of their runs."""
    return np.mean([x.mean(-1) for x in scores], axis=0)


def median(scores: Scores) -> np.ndarray:
    """`[...]` median over the tasks of the mean of their runs; of one task, that of its runs."""
    if len(scores) == 1:
        return np.median(scores[0], axis=-1)
    return np.median([x.mean(-1) for x in scores], axis=0)


def interquartile_mean(scores: Scores) -> np.ndarray:
    """`[...]` mean of the middle half of all runs: no outlier moves it, and few runs are enough."""
    pooled = np.sort(np.concatenate(scores, axis=-1), axis=-1)
    n = pooled.shape[-1]
    cut = int(_TRIMMED * n)
    return pooled[..., cut : n - cut].mean(-1)


def optimality_gap(scores: Scores, target: float = 1.0) -> np.ndarray:
    """`[...]` by how much runs fall short of `target`, in the mean; more than that is of no use."""
    return target - np.minimum(np.concatenate(scores, axis=-1), target).mean(-1)


def probability_of_improvement(scores: Scores, others: Scores) -> np.ndarray:
    """`[...]` how likely a run is better than one of the others, over the tasks; alike: half so."""
    return np.mean([_better(x, y) for x, y in zip(scores, others, strict=True)], axis=0)


def _better(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """`[..., n]` and `[..., m]` to `[...]`."""
    each, other = x[..., :, None], y[..., None, :]
    return ((each > other) + 0.5 * (each == other)).mean((-2, -1))


def profile(scores: Scores, thresholds: np.ndarray) -> np.ndarray:
    """`[T, ...]` the part of all runs whose score is above each of T thresholds."""
    pooled = np.concatenate(scores, axis=-1)
    return np.stack([(pooled > threshold).mean(-1) for threshold in thresholds])


def bootstrap_interval(
    statistic: Callable[..., np.ndarray],
    *groups: Scores,
    resamples: int,
    rng: np.random.Generator,
    size: float = 0.95,
) -> tuple[np.ndarray, np.ndarray]:
    """Ends, `[...]` each, of the interval in which a statistic lies, by the stratified bootstrap.

    Args:
        statistic: of the scores of every group.
        groups: scores of each; the runs of each task are drawn anew, with replacement.
        resamples: how often.
        rng: draws.
        size: of the interval.
    """
    drawn = [[_drawn(x, resamples, rng) for x in scores] for scores in groups]
    tail = (1 - size) / 2
    low, high = np.quantile(statistic(*drawn), (tail, 1 - tail), axis=-1)
    return low, high


def _drawn(x: np.ndarray, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """`[..., n]` to `[..., resamples, n]`; all that leads is drawn together."""
    n = x.shape[-1]
    return x[..., rng.integers(0, n, (resamples, n))]
