"""Runs on a disk that becomes full: they go on without what has no room, and say so."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import srl
from srl.launch.folder import RunFolder
from srl.telemetry.sinks import read_rows
from srl.telemetry.view import Silent

FAULTY = f"{Path(__file__).parents[1] / 'bad_envs.py'}:experiment"


class Filler(Silent):
    """A view that fills the disk once a version is learned, and makes room some versions later.

    It ends the run some versions after that, as Ctrl-C does.
    """

    def __init__(self, disk: Path, *, frees: bool = True) -> None:
        self._file, self._frees = disk / "filler", frees
        self.filled_at = self.freed_at = 0
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def show(self, progress, seconds: float) -> None:
        if progress.version and not self.filled_at:
            self.filled_at = progress.version
            self.fill()
        elif self.filled_at and not self.freed_at and progress.version > self.filled_at + 20:
            self.freed_at = progress.version
            if self._frees:
                self._file.unlink()
        elif self.freed_at and progress.version > self.freed_at + 40:
            os.kill(os.getpid(), signal.SIGINT)

    def fill(self) -> None:
        with self._file.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(4096)):
                pass


OPTIONS = {"stop__env_steps": 100_000_000, "checkpoint__seconds": 600}


@pytest.mark.parametrize("launcher", ["inline", "local"])
def test_run_goes_on_while_the_disk_is_full(small_disk, launcher):
    disk = small_disk("size=4m")
    view = Filler(disk)
    out = str(disk / "run")
    run = srl.train(FAULTY, launcher=launcher, out=out, view=lambda _: view, **OPTIONS)
    assert run.summary["status"] == "interrupted", run.summary["reason"]
    rows = [row["version"] for row in read_rows(RunFolder(run.folder).metrics)]
    assert set(rows) >= set(range(1, view.filled_at + 1))  # before
    assert set(rows) >= set(range(view.freed_at + 1, run.summary["version"] + 1))  # after
    lost = run.summary["writes_lost"]
    assert len(rows) + lost["metrics.jsonl"] == run.summary["version"]
    assert lost["tb/"] > 0
    assert any("metrics.jsonl cannot be written (No space left" in text for text in view.said)
    assert any("metrics.jsonl is written again" in text for text in view.said)
    assert run.summary == json.loads((run.folder / "summary.json").read_text())
    assert not list(run.folder.glob(".*"))


def test_evaluator_goes_on_while_the_disk_is_full(small_disk):
    disk = small_disk("size=4m")
    view = Filler(disk)
    run = srl.train(
        FAULTY,
        launcher="inline",
        out=str(disk / "run"),
        view=lambda _: view,
        **OPTIONS,
        evaluation__count=1,
        evaluation__episodes=4,
    )
    assert run.summary["status"] == "interrupted", run.summary["reason"]
    assert run.summary["writes_lost"]["versions/"] > 0
    assert any("versions/ cannot be written" in text for text in view.said)
    assert any("versions/ is written again" in text for text in view.said)
    evaluated = [row["version"] for row in read_rows(RunFolder(run.folder).evaluations)]
    assert max(evaluated) > view.freed_at
    assert list((run.folder / "versions").glob("*.safetensors"))


def test_summary_has_room_on_a_disk_that_stays_full(small_disk):
    disk = small_disk("size=4m")
    view = Filler(disk, frees=False)
    out = str(disk / "run")
    run = srl.train(FAULTY, launcher="inline", out=out, view=lambda _: view, **OPTIONS)
    kept = json.loads((run.folder / "summary.json").read_text())
    assert kept["status"] == run.summary["status"] == "failed"  # its last checkpoint
    assert "No space left" in kept["reason"]
    assert kept["writes_lost"]["metrics.jsonl"] > 20


def test_room_is_kept_and_given_back(tmp_path):
    folder = RunFolder.create(tmp_path / "run")
    folder.reserve()
    assert sum(p.stat().st_size for p in folder.path.glob(".*")) == 64 << 10
    folder.release()
    folder.release()
    assert not list(folder.path.glob(".*"))


def test_error_of_a_worker_takes_the_room_that_was_kept(small_disk):
    disk = small_disk("size=1m")
    folder = RunFolder.create(disk / "run")
    folder.reserve()
    Filler(disk).fill()
    assert folder.write_error("actor-0", "the simulator is on fire").read_text() == (
        "the simulator is on fire"
    )
    folder.write_error("actor-1", "x" * (1 << 20))  # for which there is no room: it is left out


def test_worker_prints_on_where_its_log_has_no_room():
    program = (
        "import sys; from srl.launch.host.process import use_log; use_log(); "
        "print('words'); print('more', file=sys.stderr); sys.stdout.flush(); raise SystemExit(7)"
    )
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-u", "-c", program], stdout=full, stderr=full, check=False
        )
    assert done.returncode == 7
    told = subprocess.run([sys.executable, "-u", "-c", program], capture_output=True, check=False)
    assert (told.stdout, told.stderr) == (b"words\n", b"more\n")
