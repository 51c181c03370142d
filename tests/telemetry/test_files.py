"""What becomes of files where the disk is full. /dev/full is a disk that always is."""

import os

import pytest

from srl.core.errors import CheckpointError
from srl.telemetry.files import RecordFile, Writes, replace_file
from srl.telemetry.sinks import JsonLines, TensorBoard, read_rows


@pytest.fixture
def said():
    return []


@pytest.fixture
def writes(said):
    return Writes(said.append)


class Short:
    """`os.write` on a disk with room for so many bytes more."""

    def __init__(self, monkeypatch, room):
        self.room, self._write = room, os.write
        monkeypatch.setattr(os, "write", self)

    def __call__(self, fd, data):
        if not self.room:
            raise OSError(28, "No space left on device")
        done = self._write(fd, data[: self.room])
        self.room -= done
        return done


def test_record_that_does_not_fit_leaves_no_half_of_itself(tmp_path, monkeypatch):
    path = tmp_path / "file"
    file = RecordFile(path)
    file.write(b"first\n")
    disk = Short(monkeypatch, room=3)
    with pytest.raises(OSError, match="No space left"):
        file.write(b"second\n")
    assert path.read_bytes() == b"first\n"
    disk.room = 100
    file.write(b"third\n")
    file.close()
    file.close()
    assert path.read_bytes() == b"first\nthird\n"
    with pytest.raises(ValueError, match="closed"):
        file.write(b"x")


def test_record_is_written_in_pieces(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:2]))
    file = RecordFile(tmp_path / "file")
    file.write(b"abcde")
    file.close()
    assert (tmp_path / "file").read_bytes() == b"abcde"


def test_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    replace_file(path, b"one")
    path.with_name(".file.writing").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"two")
    assert path.read_bytes() == b"one"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    replace_file(path, b"three")
    assert path.read_bytes() == b"three"


def test_outage_is_told_when_it_begins_and_ends(writes, said):
    def fail():
        raise OSError(28, "No space left on device")

    assert writes.attempt("x", lambda: 5) == 5
    assert writes.attempt("x", fail) is None
    assert writes.attempt("x", fail) is None
    assert said == ["note: x cannot be written (No space left on device): the run goes on without"]
    assert writes.attempt("y", lambda: None) is None  # another file is not this one
    assert len(said) == 1
    assert writes.attempt("x", lambda: 6) == 6
    assert said[1:] == ["note: x is written again; 2 were lost"]
    writes.failed("x", "again")
    assert len(said) == 3
    assert writes.lost == {"x": 3}


def test_other_errors_are_not_swallowed(writes):
    with pytest.raises(ZeroDivisionError):
        writes.attempt("x", lambda: 1 // 0)

    def damaged():
        raise CheckpointError("index.sqlite cannot be opened now: database or disk is full")

    assert writes.attempt("x", damaged) is None


def row(version):
    return {"policy": "main", "version": version, "env_steps": 10 * version}


def test_metrics_of_a_full_disk_are_lost_and_counted(tmp_path, monkeypatch, writes, said):
    path = tmp_path / "metrics.jsonl"
    sink = JsonLines(path, writes, versions=None)
    sink.write(row(1), {})
    disk = Short(monkeypatch, room=5)
    sink.write(row(2), {})
    sink.write(row(3), {})
    sink.write_evaluation(row(3))  # which is nothing, and so says nothing of the disk
    assert len(said) == 1
    disk.room = 1000
    sink.write(row(4), {})
    sink.close()
    assert [r["version"] for r in read_rows(path)] == [1, 4]
    assert writes.lost == {"metrics.jsonl": 2}
    assert "metrics.jsonl is written again; 2 were lost" in said[1]


def test_tensorboard_goes_on_after_a_full_disk(tmp_path, monkeypatch, writes):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = TensorBoard(tmp_path, writes)
    disk = Short(monkeypatch, room=20)
    sink.write({**row(1), "mean_return": 1.0}, {})
    disk.room = 10_000
    sink.write({**row(2), "mean_return": 2.0}, {})
    sink.close()
    again = TensorBoard(tmp_path, writes)  # in the same second: another file
    again.write({**row(3), "mean_return": 3.0}, {})
    again.close()
    assert len(list(tmp_path.iterdir())) == 2
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [s.value for s in events.Scalars("train/mean_return")] == [2.0, 3.0]
    assert writes.lost == {f"{tmp_path.name}/": 1}


def test_metrics_survive_a_resume_on_a_full_disk(tmp_path, writes):
    path = tmp_path / "metrics.jsonl"
    sink = JsonLines(path, writes, versions=None)
    sink.write(row(1), {})
    sink.close()
    path.with_name(".metrics.jsonl.writing").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        JsonLines(path, writes, versions={"main": 1})
    assert [r["version"] for r in read_rows(path)] == [1]
