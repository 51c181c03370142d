"""Checkpoints that cannot be written: noted and counted; the run ends where that is all they do."""

import contextlib
from pathlib import Path

import pytest

import srl
from srl.launch.saving import MOST_FAILURES
from srl.learning.checkpoint import latest_checkpoint, list_checkpoints, read_checkpoint
from srl.telemetry.view import Silent

UNSAVED = f"{Path(__file__).parent / 'unsaved.py'}:experiment"


class Listening(Silent):
    """Keeps what is said, and may do something about it."""

    def __init__(self, on_note=lambda number: None):
        self.said = []
        self.on_note = on_note

    def say(self, text):
        self.said.append(text)
        if text.startswith("note: a checkpoint"):
            self.on_note(sum(text.startswith("note: a checkpoint") for text in self.said))


def train(tmp_path, launcher, view, **options):
    mark = tmp_path / "full"
    return srl.train(
        UNSAVED,
        launcher=launcher,
        out=str(tmp_path / "run"),
        view=lambda _: view,
        algorithm__mark=str(mark),
        checkpoint__seconds=0.1,
        **options,
    )


@pytest.mark.parametrize("launcher", ["inline", "local"])
def test_run_whose_checkpoints_fail_again_and_again_ends_with_the_reason(tmp_path, launcher):
    (tmp_path / "full").touch()
    view = Listening()
    run = train(tmp_path, launcher, view)
    assert run.summary["status"] == "failed"
    reason = run.summary["reason"]
    assert reason.startswith(f"checkpoints: {MOST_FAILURES} checkpoints in a row were not written")
    assert "a checkpoint cannot hold" in reason
    assert f"make room in {run.folder / 'checkpoints'}" in reason
    assert f"'srl resume {run.folder}' goes on" in reason
    assert list((run.folder / "checkpoints").iterdir()) == []
    # local, the last one, at the end of the run, is tried too
    failed = MOST_FAILURES + (launcher == "local")
    assert run.summary["checkpoints"]["failed"] == failed
    assert sum("note: a checkpoint could not be written" in said for said in view.said) == failed


@pytest.mark.parametrize("launcher", ["inline", pytest.param("local", marks=pytest.mark.slow)])
def test_run_outlives_a_checkpoint_that_fails(tmp_path, launcher):
    mark = tmp_path / "full"
    mark.touch()
    view = Listening(on_note=lambda number: mark.unlink(missing_ok=True))
    options = {"stop__seconds": 8.0} if launcher == "local" else {"stop__seconds": 3.0}
    run = train(tmp_path, launcher, view, **options)
    assert run.summary["status"] == "completed", run.summary["reason"]
    assert 1 <= run.summary["checkpoints"]["failed"] < MOST_FAILURES
    newest = read_checkpoint(latest_checkpoint(run.folder / "checkpoints"))
    assert newest.manifest["version"] == run.summary["version"]
    assert not [p for p in (run.folder / "checkpoints").iterdir() if p.name.startswith(".")]


def test_last_checkpoint_that_fails_fails_the_run(tmp_path):
    mark = tmp_path / "full"

    class Filling(Listening):
        def show(self, progress, seconds):
            if progress.total("env_steps") >= 2000:
                mark.touch()

    run = srl.train(
        UNSAVED,
        launcher="inline",
        out=str(tmp_path / "run"),
        view=lambda _: Filling(),
        algorithm__mark=str(mark),
        checkpoint__seconds=1000.0,
        stop__env_steps=3000,
    )
    assert run.summary["status"] == "failed"
    assert "the last checkpoint of the run was not written" in run.summary["reason"]
    assert run.summary["checkpoints"]["failed"] == 1


def test_folder_that_is_in_the_way_is_noted_and_survived(tmp_path):
    """Somebody put a file where the folder was, and took it away again."""
    folder = tmp_path / "run" / "checkpoints"

    class Meddling(Listening):
        is_done = False

        def show(self, progress, seconds):
            if progress.version and not self.is_done and list_checkpoints(folder):
                self.is_done = True
                folder.rename(folder.with_name("elsewhere"))
                folder.touch()

    def put_back(_):
        folder.unlink()
        folder.with_name("elsewhere").rename(folder)

    view = Meddling(on_note=put_back)
    run = train(tmp_path, "inline", view, stop__seconds=3.0)
    assert view.is_done
    assert run.summary["status"] == "completed", run.summary["reason"]
    assert run.summary["checkpoints"]["failed"] == 1
    read_checkpoint(latest_checkpoint(folder))


@pytest.mark.parametrize("launcher", ["inline", pytest.param("local", marks=pytest.mark.slow)])
def test_full_disk_costs_checkpoints_and_not_the_run(small_disk, launcher):
    disk = small_disk("size=4m")
    folder, filler = disk / "run" / "checkpoints", disk / "filler"

    class Filling(Listening):
        before = None

        def show(self, progress, seconds):
            if self.before is None and (found := list_checkpoints(folder)):
                self.before = found[-1].name
                with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                    while file.write(bytes(4096)):
                        pass

    view = Filling(on_note=lambda number: filler.unlink(missing_ok=True))
    run = train(disk, launcher, view, stop__seconds=8.0 if launcher == "local" else 4.0)
    assert view.before is not None
    assert run.summary["status"] == "completed", run.summary["reason"]
    assert 1 <= run.summary["checkpoints"]["failed"] < MOST_FAILURES
    (note, *_) = [text for text in view.said if text.startswith("note: a checkpoint")]
    assert "No space left on device" in note
    assert "is kept; make room in" in note
    for path in list_checkpoints(folder):
        read_checkpoint(path)
    assert latest_checkpoint(folder).name == f"{run.summary['version']:08d}"
