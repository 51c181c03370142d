"""A trainer's side of checkpoints: what is written is the state of the order, and writing is aside."""

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from srl.core.errors import StreamError
from srl.core.telemetry import Telemetry
from srl.learning import checkpoint
from srl.learning.checkpoint import begin_checkpoint, commit_checkpoint, read_checkpoint
from srl.transport.control import (
    Channel,
    Copied,
    Message,
    Report,
    Save,
    Saved,
    SaveFailed,
    channel_pair,
)
from srl.workers.saving import Saver

SECONDS = 60.0


class Learning:
    """A worker that hands out the very arrays it learns in."""

    def __init__(self) -> None:
        self.name = "trainer-0"
        self.telemetry = Telemetry()
        self.version = 0
        self.weights = np.zeros(1000)

    def learn(self) -> None:
        self.version += 1
        self.weights += 1

    def save(self) -> dict[str, np.ndarray]:
        return {"weights": self.weights, "version": np.array(self.version)}


class Disk:
    """Where a write waits until it may go on."""

    def __init__(self) -> None:
        self.is_reached = threading.Event()
        self.may_go_on = threading.Event()
        self.error: Exception | None = None
        self._write = checkpoint.write_part

    def write(self, *args):
        self.is_reached.set()
        assert self.may_go_on.wait(SECONDS)
        if self.error is not None:
            raise self.error
        return self._write(*args)


class Setting:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.worker = Learning()
        mine, theirs = channel_pair()
        self.agent, self._channel = mine, Channel(theirs)
        self.saver = Saver(
            self.worker,  # pyright: ignore[reportArgumentType] - no more of a worker is needed
            self._channel,
            ledgers=lambda: {"main": {"sent": self.worker.version}},
            report=lambda: Report("trainer-0", counters={"version": self.worker.version}),
        )
        self._serial = 0

    def order(self) -> Save:
        self._serial += 1
        return Save(self._serial, str(begin_checkpoint(self.folder, self._serial)))

    def heard(self) -> list[Message]:
        """All but reports."""
        return [m for m in self.agent.recv_all() if not isinstance(m, Report)]

    def weights(self, order: Save, saved: Saved) -> set[float]:
        path = commit_checkpoint(
            Path(order.folder), [saved.part], versions=saved.versions, manifest={}, keep=3
        )
        return set(read_checkpoint(path).sections["trainer-0"]["weights"].tolist())

    def close(self) -> None:
        self.agent.close()
        self._channel.close()


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    made = Setting(tmp_path)
    yield made
    made.close()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made = Disk()
    monkeypatch.setattr(checkpoint, "write_part", made.write)
    yield made
    made.may_go_on.set()


def test_worker_learns_on_while_its_state_of_before_is_written(setting, disk):
    setting.worker.learn()
    order = setting.order()
    setting.saver.save(order)
    assert disk.is_reached.wait(SECONDS)
    first, *_ = setting.agent.recv_all()
    assert first == Report("trainer-0", counters={"version": 1})  # before the copy is announced
    for _ in range(3):
        setting.worker.learn()
        setting.saver.report()
    assert setting.heard() == []
    disk.may_go_on.set()
    setting.saver.finish()
    (saved,) = setting.heard()
    assert (saved.serial, saved.versions, saved.ledgers) == (1, {"main": 1}, {"main": {"sent": 1}})
    assert setting.weights(order, saved) == {1.0}


def test_copy_is_announced_at_once_and_the_part_when_it_is_there(setting):
    order = setting.order()
    setting.saver.save(order)
    setting.saver.finish()
    copied, saved = setting.heard()
    assert copied == Copied("trainer-0", 1)
    assert isinstance(saved, Saved)
    setting.saver.finish()
    setting.saver.report()
    assert setting.heard() == []


def test_worker_that_was_left_by_its_group_does_not_answer_and_is_not_to_blame(setting, caplog):
    def save():
        raise StreamError("left in the middle of a version")

    setting.worker.save = save
    setting.saver.save(setting.order())
    setting.saver.finish()
    assert setting.heard() == []
    assert "left in the middle of a version" in caplog.text


def test_second_order_waits_for_the_first(setting, disk):
    setting.saver.save(setting.order())
    assert disk.is_reached.wait(SECONDS)
    threading.Timer(0.3, disk.may_go_on.set).start()
    setting.worker.learn()
    setting.saver.save(setting.order())
    setting.saver.finish()
    assert [type(m) for m in setting.heard()] == [Copied, Saved, Copied, Saved]


def test_who_waits_for_the_disk_still_reports(setting, disk):
    setting.saver.save(setting.order())
    waiting = threading.Thread(target=setting.saver.finish)
    waiting.start()
    reports = 0
    while reports < 3:  # the one of the copy, and two more; a silent saver is a test that times out
        reports += sum(isinstance(m, Report) for m in setting.agent.recv_all())
    disk.may_go_on.set()
    waiting.join(SECONDS)
    assert [type(m) for m in setting.heard()] == [Saved]


def test_time_of_a_worker_that_waits_has_a_name(setting):
    setting.saver.save(setting.order())
    setting.saver.finish()
    assert setting.worker.telemetry.seconds.keys() == {"checkpoint"}
    assert setting.worker.telemetry.seconds["checkpoint"] > 0


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), RuntimeError("surprise")], ids=["disk", "bug"]
)
def test_write_that_fails_is_reported_and_the_next_one_is_tried(setting, disk, error):
    disk.error = error
    disk.may_go_on.set()
    setting.saver.save(setting.order())
    setting.saver.finish()
    copied, failed = setting.heard()
    assert isinstance(failed, SaveFailed)
    assert (failed.worker, failed.serial) == ("trainer-0", copied.serial)
    assert (
        "No space left on device" if isinstance(error, OSError) else "surprise"
    ) in failed.message
    disk.error = None
    setting.saver.save(setting.order())
    setting.saver.finish()
    assert [type(m) for m in setting.heard()] == [Copied, Saved]


def test_folder_that_went_away_is_a_failure_and_not_a_crash(setting):
    order = setting.order()
    Path(order.folder).rmdir()
    setting.saver.save(order)
    setting.saver.finish()
    _, failed = setting.heard()
    assert isinstance(failed, SaveFailed)
    assert "No such file or directory" in failed.message
