"""The example of a Slurm job, on a real Slurm of one node: `make test-slurm`, as root."""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from srl.learning.checkpoint import list_checkpoints
from srl.testing.slurm import Slurm, missing_for_slurm

MISSING = missing_for_slurm()
pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "cluster" / "slurm.sbatch"
CORES = 4
CARTPOLE = [
    "cartpole",
    "--actors.count",
    "1",
    "--stop.return",
    "None",
    "--evaluation.episodes",
    "0",
]
CARTPOLE += ["--checkpoint.seconds", "1", "--algorithm.epochs", "1"]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    if MISSING:
        pytest.fail(MISSING)
    made = Slurm(CORES)
    yield made
    made.close()


class Job:
    """The example, submitted."""

    def __init__(self, slurm: Slurm, place: Path, env_steps: int) -> None:
        self.slurm, self.run, self.log = slurm, place / "run", place / "log"
        environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(slurm.place),
            "SRL_RUN": str(self.run),
        }
        words = ["--nodes=1", f"--cpus-per-task={CORES}", f"--output={self.log}", str(EXAMPLE)]
        words += [*CARTPOLE, "--stop.env-steps", str(env_steps)]
        self.number = slurm.submit(words, environment, place)

    def wait(self, what: str, is_so: Callable[[], bool], seconds: float = 240.0) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < deadline, f"waited for {what}, but {self.story()}"
            time.sleep(0.2)

    def wait_for_checkpoint(self) -> None:
        checkpoints = self.run / "checkpoints"
        self.wait(
            "a checkpoint", lambda: checkpoints.exists() and bool(list_checkpoints(checkpoints))
        )

    def wait_for(self, state: str) -> None:
        final = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        self.wait(state, lambda: self.slurm.state(self.number) in {state, *final})
        assert self.slurm.state(self.number) == state, self.story()

    def story(self) -> str:
        log = self.log.read_text() if self.log.exists() else ""
        return f"{self.slurm.state(self.number)}:\n{log}\n{self.slurm.logs()}"

    def endings(self) -> list[dict[str, Any]]:
        """What `srl` said at the end of each life."""
        return [
            json.loads(line) for line in re.findall(r'^\{"status".*$', self.log.read_text(), re.M)
        ]

    def summary(self) -> dict[str, Any]:
        return json.loads((self.run / "summary.json").read_text())


def is_tidy(job: Job) -> bool:
    """Whether neither the token nor a process of Ray is left."""
    names = job.slurm.run("ps", "-e", "-o", "comm=").split()
    return not job.run.with_suffix(".token").exists() and not {"raylet", "gcs_server"} & {*names}


def test_example_runs_to_its_end(slurm: Slurm, tmp_path: Path) -> None:
    job = Job(slurm, tmp_path, 20_000)
    job.wait("a token", job.run.with_suffix(".token").exists)
    assert job.run.with_suffix(".token").stat().st_mode & 0o777 == 0o600
    job.wait_for("COMPLETED")
    assert job.summary()["status"] == "completed", job.story()
    assert job.summary()["env_steps"] >= 20_000
    assert json.loads((job.run / "config.json").read_text())["launcher"] == "ray"
    assert is_tidy(job), slurm.run("ps", "-ef")


def test_preempted_job_goes_on_from_the_checkpoint_it_wrote(slurm: Slurm, tmp_path: Path) -> None:
    job = Job(slurm, tmp_path, 200_000)
    job.wait_for_checkpoint()
    slurm.submit(["--partition=urgent", "--output=/dev/null", "--wrap=sleep 1"], {}, tmp_path)
    job.wait("the requeue", lambda: slurm.restarts(job.number) == 1)
    stopped = job.summary()
    assert stopped["status"] == "interrupted", job.story()
    assert "SIGTERM" in stopped["reason"]
    assert stopped["env_steps"] < 200_000
    job.wait_for("COMPLETED")
    first, second = job.endings()
    assert (first["status"], second["status"]) == ("interrupted", "completed"), job.story()
    assert second["env_steps"] >= 200_000
    rows = [json.loads(line) for line in (job.run / "metrics.jsonl").read_text().splitlines()]
    versions = [row["version"] for row in rows]
    assert versions == sorted(set(versions)), "it did not go on where it was"
    assert is_tidy(job), slurm.run("ps", "-ef")


def test_requeued_job_goes_on_from_a_checkpoint(slurm: Slurm, tmp_path: Path) -> None:
    """Slurm tells all processes at once, Ray's, too."""
    job = Job(slurm, tmp_path, 200_000)
    job.wait_for_checkpoint()
    slurm.run("scontrol", "requeue", job.number)
    job.wait_for("COMPLETED")
    assert slurm.restarts(job.number) == 1
    assert job.summary()["status"] == "completed", job.story()
    assert "'resume'" in job.log.read_text(), job.story()
    assert is_tidy(job), slurm.run("ps", "-ef")


def test_cancelled_job_does_not_come_back(slurm: Slurm, tmp_path: Path) -> None:
    job = Job(slurm, tmp_path, 10_000_000)
    job.wait_for_checkpoint()
    slurm.run("scancel", job.number)
    job.wait_for("CANCELLED")
    job.wait("its end", lambda: is_tidy(job), 60)
    assert slurm.restarts(job.number) == 0
    assert slurm.state(job.number) == "CANCELLED"
