"""The controller's side of checkpoints: a folder is committed when every writer has answered."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from srl.launch import saving
from srl.launch.saving import MOST_FAILURES, Saving
from srl.learning.checkpoint import (
    begin_checkpoint,
    list_checkpoints,
    read_checkpoint,
    remove_unfinished,
    write_part,
)
from srl.transport.control import Copied, Save, Saved, SaveFailed

WRITERS = frozenset({"trainer-a-0", "trainer-b-0"})


def manifest(*, score: float | None = None, **policies: int) -> dict[str, Any]:
    """What the controller knows at one moment."""
    counted = policies or {"a": 0, "b": 0, "c": 0}
    known = {policy: {"episodes": number} for policy, number in counted.items()}
    totals = {"env_steps": sum(counted.values())}
    worth = None if score is None else (score, "episodes")
    return {"progress": {"totals": totals, "policies": known}, "score": worth}


class Run:
    """A controller of two trainers."""

    def __init__(self, folder: Path, keep: int = 3) -> None:
        self.folder = folder
        self.saving = Saving(folder, keep)

    def order(self) -> Save:
        order = self.saving.order(WRITERS)
        assert order is not None
        return order

    def copy(self, order: Save, policy: str, **known: Any) -> None:
        """What a trainer says when it has copied its state."""
        self.saving.copied(Copied(f"trainer-{policy}-0", order.serial), manifest(**known))

    def write(self, order: Save, policy: str, version: int) -> Saved:
        """What it says when that is on disk."""
        name = f"trainer-{policy}-0"
        part = write_part(Path(order.folder), name, {name: {"version": np.array(version)}})
        ledgers = {policy: {"sent": version}}
        saved = Saved(name, order.serial, part, {policy: version}, ledgers)
        self.saving.add(saved)
        return saved

    def answer(self, order: Save, policy: str, version: int, **known: Any) -> Saved:
        self.copy(order, policy, **known)
        return self.write(order, policy, version)

    def whole(self, version: int, score: float | None = None) -> None:
        order = self.order()
        self.answer(order, "a", version)
        self.answer(order, "b", version, score=score)

    def fail(self, order: Save, policy: str, message: str = "No space left on device") -> None:
        self.saving.add(SaveFailed(f"trainer-{policy}-0", order.serial, message))

    @property
    def names(self) -> list[str]:
        return [path.name for path in list_checkpoints(self.folder)]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_the_next_is_ordered_so_early_that_it_is_written_in_time(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([100.0, 103.0, 200.0, 201.0, 300.0, 390.0])
    monkeypatch.setattr(saving, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert run.saving.pause(60.0) == 60.0
    run.whole(1)  # 3 s
    assert run.saving.pause(60.0) == 60.0 - 6.0
    run.whole(2)  # 1 s, and it took 3 s before
    assert run.saving.pause(60.0) == 60.0 - 4.0
    run.whole(3)  # longer than the interval
    assert run.saving.pause(60.0) == 30.0


def test_checkpoint_is_there_when_all_have_answered(run):
    order = run.order()
    run.answer(order, "a", 3, a=3, b=1)
    assert run.saving.is_busy
    assert run.names == []
    run.answer(order, "b", 2, a=5, b=2)
    assert not run.saving.is_busy
    assert run.saving.is_last_whole
    assert not run.saving.has_last_failed
    (path,) = list_checkpoints(run.folder)
    found = read_checkpoint(path).manifest
    assert path.name == "00000003"
    assert found["versions"] == {"a": 3, "b": 2}
    assert found["ledgers"] == {"a": {"sent": 3}, "b": {"sent": 2}}
    # what is known of a policy is of the moment of its part: "a" went on meanwhile
    assert found["progress"] == {
        "totals": {"env_steps": 7},
        "policies": {"a": {"episodes": 3, "version": 3}, "b": {"episodes": 2, "version": 2}},
    }
    assert os.listdir(run.folder) == ["00000003"]


def test_manifest_is_of_the_moment_of_the_copies_and_not_of_the_writes(run):
    order = run.order()
    run.copy(order, "a", a=3, b=1)
    run.copy(order, "b", a=4, b=2)
    run.write(order, "b", 2)
    run.write(order, "a", 3)
    (path,) = list_checkpoints(run.folder)
    assert read_checkpoint(path).manifest["progress"] == {
        "totals": {"env_steps": 6},
        "policies": {"a": {"episodes": 3, "version": 3}, "b": {"episodes": 2, "version": 2}},
    }


def test_what_a_trainer_has_counted_goes_before_what_was_known_of_it(run):
    """A controller that died was told of the versions before alone."""
    order = run.order()
    for policy in ("a", "b"):
        run.copy(order, policy, a=1, b=1)
    for policy, steps in (("a", 900), ("b", 700)):
        name = f"trainer-{policy}-0"
        part = write_part(Path(order.folder), name, {})
        counts = {policy: {"env_steps": steps, "train_samples": 40, "updates": 8}}
        run.saving.add(Saved(name, order.serial, part, {policy: 5}, {policy: {}}, counts))
    (path,) = list_checkpoints(run.folder)
    found = read_checkpoint(path).manifest["progress"]
    assert found["totals"] == {"env_steps": 900}
    assert found["policies"]["b"] == {
        "episodes": 1,
        "version": 5,
        "train_samples": 40,
        "updates": 8,
    }


def test_writer_that_dies_leaves_nothing_and_is_not_waited_for(run):
    run.whole(1)
    order = run.order()
    run.copy(order, "a")
    run.saving.give_up(["trainer-a-0", "actor-0"])
    assert run.saving.is_busy  # the other one may be writing into the folder
    run.answer(order, "b", 3)
    assert not run.saving.is_busy
    assert os.listdir(run.folder) == ["00000001"]
    assert not run.saving.is_last_whole
    assert not run.saving.has_last_failed
    assert run.saving.take_notes() == []  # that it died is said elsewhere
    run.saving.give_up(["trainer-a-0", "actor-0"])


def test_parts_of_two_orders_are_not_mixed(run):
    first, second = run.order(), run.order()
    run.answer(first, "a", 3)
    run.answer(second, "a", 4)
    last = run.answer(second, "b", 4)
    run.saving.add(last)  # again: it is whole already
    (path,) = list_checkpoints(run.folder)
    assert read_checkpoint(path).manifest["versions"] == {"a": 4, "b": 4}
    run.answer(first, "b", 3)
    assert run.names == ["00000004", "00000003"]  # in the order they were written


def test_checkpoint_of_strangers_is_not_waited_for(run):
    order = run.order()
    run.answer(order, "c", 9)
    assert run.saving.is_busy
    assert run.names == []


@pytest.mark.parametrize("first", ["a", "b"])
def test_part_that_fails_ends_its_checkpoint_and_keeps_the_one_before(run, first):
    run.whole(1)
    order, other = run.order(), {"a": "b", "b": "a"}[first]
    run.fail(order, first)
    assert run.saving.is_busy
    run.answer(order, other, 2)
    assert not run.saving.is_busy
    assert not run.saving.is_last_whole
    assert run.saving.has_last_failed
    assert os.listdir(run.folder) == ["00000001"]
    (note,) = run.saving.take_notes()
    assert f"trainer-{first}-0: No space left on device" in note
    assert "the newest there is, 00000001, is kept; make room in" in note
    assert run.saving.take_notes() == []
    assert run.saving.summary()["failed"] == 1


def test_commit_that_fails_keeps_the_one_before(run, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    run.whole(1)
    with monkeypatch.context() as patch:
        patch.setattr("srl.launch.saving.commit_checkpoint", full)
        run.whole(2)
    assert os.listdir(run.folder) == ["00000001"]
    assert "No space left on device" in run.saving.take_notes()[0]
    run.whole(3)
    assert run.names == ["00000001", "00000003"]


def test_folder_that_cannot_be_written_is_a_failed_checkpoint(run, monkeypatch):
    def read_only(*_):
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr("srl.launch.saving.begin_checkpoint", read_only)
        assert run.saving.order(WRITERS) is None
    assert not run.saving.is_busy
    assert run.saving.has_last_failed
    assert "Read-only file system; there is none before it" in run.saving.take_notes()[0]


def test_failures_in_a_row_are_hopeless_and_one_success_forgets_them(run):
    for _ in range(MOST_FAILURES - 1):
        order = run.order()
        run.fail(order, "a")
        run.fail(order, "b")
    assert not run.saving.is_hopeless
    run.whole(1)
    for number in range(MOST_FAILURES):
        assert not run.saving.is_hopeless, number
        order = run.order()
        run.fail(order, "a")
        run.answer(order, "b", 2)
    assert run.saving.is_hopeless
    assert run.saving.summary()["failed"] == 2 * MOST_FAILURES - 1


def test_best_stays_beside_the_last_k_and_the_summary_names_it(tmp_path):
    run = Run(tmp_path, keep=2)
    for version, score in enumerate([10.0, 30.0, 20.0, 25.0, 25.0], start=1):
        run.whole(version, score)
    assert run.names == ["00000002", "00000004", "00000005"]
    summary = run.saving.summary()
    assert summary == {
        "written": 5,
        "failed": 0,
        "newest": "00000005",
        "best": "00000002",
        "best_return": 30.0,
        "best_by": "episodes",
    }
    run.whole(6, 31.0)
    assert run.names == ["00000005", "00000006"]
    assert run.saving.summary()["best"] == "00000006"


def test_parts_are_returned_when_their_checkpoint_is_whole(run):
    order = run.order()
    run.copy(order, "a")
    run.copy(order, "b")
    first = write_part(Path(order.folder), "trainer-a-0", {})
    second = write_part(Path(order.folder), "trainer-b-0", {})
    parts = [
        Saved("trainer-a-0", order.serial, first, {"a": 1}, {"a": {"consumed": 3}}),
        Saved("trainer-b-0", order.serial, second, {"b": 1}, {"b": {"consumed": 4}}),
    ]
    assert run.saving.last is None
    assert run.saving.add(parts[0]) == []
    assert run.saving.add(parts[1]) == parts
    assert run.saving.last == run.folder / "00000001"
    assert run.saving.add(parts[1]) == []


def test_serial_numbers_of_two_controllers_can_be_kept_apart(tmp_path):
    """A node agent that lost its controller must not take parts of its orders for its own."""
    order = Saving(tmp_path, 3, first=100).order(WRITERS)
    assert order == Save(100, str(tmp_path / ".00000100.writing"))


def test_what_the_dead_left_is_removed(tmp_path):
    Run(tmp_path).whole(1)
    write_part(begin_checkpoint(tmp_path, 9), "inline", {"x": {"n": np.zeros(3)}})
    shutil.copytree(tmp_path / "00000001", tmp_path / ".00000001.removing")
    remove_unfinished(tmp_path)
    assert os.listdir(tmp_path) == ["00000001"]
    assert Saving(tmp_path, keep=3).summary()["newest"] == "00000001"


def test_checkpoint_that_nobody_finishes_is_one_that_failed(tmp_path, monkeypatch):
    run = Run(tmp_path)
    order = run.order()
    run.saving.expect(600.0)
    assert run.saving.is_busy
    now = saving.time.monotonic()
    monkeypatch.setattr(saving.time, "monotonic", lambda: now + 601.0)
    run.saving.expect(600.0)
    assert not run.saving.is_busy
    (note,) = run.saving.take_notes()
    assert "trainer-a-0 and trainer-b-0 did not write it within 600 s" in note
    assert not Path(order.folder).exists()
    run.copy(order, "a", a=1)  # they do, later: nobody waits for it any more
    assert not list_checkpoints(tmp_path)
