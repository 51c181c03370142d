"""Runs of `srl train`, several at a time, whose results accumulate in a file: what learning benchmarks share."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from srl.tools.bench.report import host

HOST = host()
_LONGEST_SECONDS = 4 * 3600
_POINTS = 40
"""Of a curve that is kept."""


class Trained(NamedTuple):
    """What became of a run."""

    summary: dict[str, Any]
    rows: list[dict[str, Any]]
    """Of its metrics."""
    code: int


def train(words: Sequence[str], seed: int) -> Trained:
    """`srl WORDS` in a folder that is gone afterwards; raises RuntimeError where it did not come to its end."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "srl.cli", *words, "--seed", str(seed), "--out", str(out)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LONGEST_SECONDS, check=False
        )
        if not (out / "summary.json").exists():
            raise RuntimeError(done.stderr[-800:])
        summary = json.loads((out / "summary.json").read_text())
        if summary["status"] != "completed":
            raise RuntimeError(f"{summary['status']}: {summary['reason']}")
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return Trained(summary, rows, done.returncode)


def curve(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, float | None]]:
    """Mean returns over env steps, some of them and the last."""
    points = [(row["env_steps"], row["mean_return"]) for row in rows]
    return points[: -1 : max(1, len(points) // _POINTS)] + points[-1:]


def write(file: Path, results: Any) -> None:
    """Whole or not at all, whenever it is cut off."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps(results, indent=1) + "\n")
    new.replace(file)


def run_all(
    jobs: Mapping[str, Callable[[], dict[str, Any]]],
    keep: Callable[[str, dict[str, Any]], str],
    parallel: int,
) -> int:
    """Do all jobs, so many at a time, and say how each went and how long it takes.

    Args:
        jobs: name to what is to be done, in threads of this process.
        keep: is told, one at a time, of each that is done, and says in words what it has found.
        parallel: how many at a time.

    Returns:
        How many failed; they are to be tried again.
    """
    began, failed = time.monotonic(), 0
    pool = ThreadPoolExecutor(parallel)
    try:
        futures = {pool.submit(job): name for name, job in jobs.items()}
        for number, future in enumerate(as_completed(futures), 1):
            name = futures[future]
            try:
                words = keep(name, future.result())
            except (RuntimeError, OSError, ValueError, subprocess.SubprocessError) as error:
                failed += 1
                words = f"failed: {error}"
            print(f"{number} of {len(jobs)}, {_minutes(began)}: {name}: {words}", flush=True)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    print(f"{len(jobs)} runs, {failed} failed, {parallel} at a time: {_minutes(began)}", flush=True)
    return failed


def _minutes(since: float) -> str:
    return f"{(time.monotonic() - since) / 60:.1f} min"
