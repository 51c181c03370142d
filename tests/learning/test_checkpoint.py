import hashlib
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from srl.core.errors import CheckpointError
from srl.learning.checkpoint import (
    begin_checkpoint,
    best_checkpoint,
    commit_checkpoint,
    find_checkpoint,
    latest_checkpoint,
    list_checkpoints,
    read_checkpoint,
    read_manifest,
    score_of,
    write_part,
)

SECTIONS = {
    "trainer-0": {
        "weights": np.arange(6, dtype=np.float32).reshape(2, 3).T,  # not contiguous
        "counter": np.array(7),
        "flags": np.array([True, False]),
        "empty": np.zeros((0, 4), np.uint8),
    },
    "actor-0": {"env.state/inner": np.array([1.5, np.nan])},
    "nothing": {},
}


def write(folder, version, *, sections=SECTIONS, keep=3):
    """One part with everything: what the inline launcher writes."""
    aside = begin_checkpoint(folder, 7)
    part = write_part(aside, "inline", sections)
    return commit_checkpoint(
        aside, [part], versions={"main": version}, manifest={"note": "x"}, keep=keep
    )


def write_two(folder, versions):
    """A part a trainer."""
    aside = begin_checkpoint(folder, 1)
    parts = [
        write_part(aside, f"trainer-{policy}-0", {f"trainer-{policy}-0": {"n": np.array(version)}})
        for policy, version in versions.items()
    ]
    return commit_checkpoint(aside, parts, versions=versions, manifest={}, keep=3)


def test_checkpoint_comes_back_as_it_was_written(tmp_path):
    checkpoint = read_checkpoint(write(tmp_path / "checkpoints", 42))
    assert checkpoint.path.name == "00000042"
    assert checkpoint.manifest["note"] == "x"
    assert checkpoint.manifest["version"] == 42
    assert checkpoint.sections.keys() == SECTIONS.keys()
    for section, state in SECTIONS.items():
        assert checkpoint.sections[section].keys() == state.keys()
        for name, array in state.items():
            read = checkpoint.sections[section][name]
            np.testing.assert_array_equal(read, array)
            assert read.dtype == array.dtype


def test_checkpoint_of_two_writers_has_a_part_each(tmp_path):
    path = write_two(tmp_path, {"a": 3, "b": 12})
    checkpoint = read_checkpoint(path)
    assert path.name == "00000012"
    assert checkpoint.manifest["versions"] == {"a": 3, "b": 12}
    assert sorted(os.listdir(path)) == [
        "manifest.json",
        "state-trainer-a-0.safetensors",
        "state-trainer-b-0.safetensors",
    ]
    assert {name: int(state["n"]) for name, state in checkpoint.sections.items()} == {
        "trainer-a-0": 3,
        "trainer-b-0": 12,
    }


@pytest.mark.parametrize("policy", ["a", "b"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "corrupted"])
def test_every_part_is_verified(tmp_path, policy, damage):
    path = write_two(tmp_path, {"a": 3, "b": 12})
    file = path / f"state-trainer-{policy}-0.safetensors"
    data = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(data[:-1] if damage == "truncated" else data[:-1] + b"\x7f")
    words = "no readable" if damage == "missing" else damage
    with pytest.raises(CheckpointError, match=words):
        read_checkpoint(path)


def test_part_outside_its_checkpoint_is_not_read(tmp_path):
    path = write(tmp_path, 1)
    (path / "state-inline.safetensors").rename(tmp_path / "elsewhere.safetensors")
    manifest = read_manifest(path)
    manifest["parts"][0]["file"] = "../elsewhere.safetensors"
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="no readable"):
        read_checkpoint(path)


def test_last_k_are_kept(tmp_path):
    for version in (1, 2, 30, 4, 100):
        write(tmp_path, version)
    # by when they were written: a run that went on from an older one has lower versions again
    assert [p.name for p in list_checkpoints(tmp_path)] == ["00000030", "00000004", "00000100"]
    assert latest_checkpoint(tmp_path).name == "00000100"
    assert sorted(os.listdir(tmp_path)) == ["00000004", "00000030", "00000100"]


def test_no_checkpoint_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        latest_checkpoint(tmp_path)


class Crash(Exception):
    pass


def _crash_at_rename(monkeypatch, number):
    """Die instead of the `number`-th rename."""
    rename, count = Path.rename, []

    def crash(self, target):
        count.append(target)
        if len(count) == number:
            raise Crash
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", crash)


def test_crash_before_the_rename_leaves_the_old_one(tmp_path, monkeypatch):
    write(tmp_path, 1)
    with monkeypatch.context() as patch:
        _crash_at_rename(patch, 1)
        with pytest.raises(Crash):
            write(tmp_path, 2)
    assert [p.name for p in list_checkpoints(tmp_path)] == ["00000001"]
    read_checkpoint(latest_checkpoint(tmp_path))
    write(tmp_path, 2)
    assert sorted(os.listdir(tmp_path)) == ["00000001", "00000002"]


@pytest.mark.parametrize(("number", "found"), [(1, "old"), (2, "old"), (3, "new")])
def test_crash_while_a_version_is_written_again_leaves_a_whole_one(
    tmp_path, monkeypatch, number, found
):
    write(tmp_path, 5, keep=1)
    with monkeypatch.context() as patch:
        _crash_at_rename(patch, number)
        with pytest.raises(Crash):
            write(tmp_path, 5, sections={"trainer-0": {"new": np.zeros(1)}}, keep=1)
    names = {"old": "weights", "new": "new"}
    assert names[found] in read_checkpoint(latest_checkpoint(tmp_path)).sections["trainer-0"]
    write(tmp_path, 5, sections={"trainer-0": {"new": np.zeros(1)}}, keep=1)
    assert os.listdir(tmp_path) == ["00000005"]
    assert "new" in read_checkpoint(latest_checkpoint(tmp_path)).sections["trainer-0"]


def test_crash_while_writing_leaves_nothing_that_is_listed(tmp_path, monkeypatch):
    def crash(_):
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", crash)
        with pytest.raises(Crash):
            write(tmp_path, 1)
    assert list_checkpoints(tmp_path) == []


@pytest.mark.parametrize("size", [0, 8, -1])
def test_truncated_file_is_refused(tmp_path, size):
    path = write(tmp_path, 1)
    state = path / "state-inline.safetensors"
    state.write_bytes(state.read_bytes()[:size])
    with pytest.raises(CheckpointError, match="truncated"):
        read_checkpoint(path)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bit_is_refused(tmp_path, data):
    path = write(tmp_path, 1)
    state = path / "state-inline.safetensors"
    content = bytearray(state.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    state.write_bytes(content)
    with pytest.raises(CheckpointError, match="corrupted"):
        read_checkpoint(path)


MANIFESTS = {
    "no json": b"\x00\xff",
    "empty": b"",
    "list": b"[1, 2]",
    "foreign": b'{"model": "llama"}',
    "half of an earlier format": b'{"format": 1, "sections": [], "sha256": "", "bytes": 0}',
    "only format": b'{"format": 2}',
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("manifest", MANIFESTS.values(), ids=MANIFESTS.keys())
def test_foreign_manifest_is_refused(tmp_path, manifest):
    path = write(tmp_path, 1)
    (path / "manifest.json").write_bytes(manifest)
    with pytest.raises(CheckpointError):
        read_checkpoint(path)


@pytest.mark.parametrize("sections", [None, 3, "abc"])
def test_manifest_without_sections_is_refused(tmp_path, sections):
    path = write(tmp_path, 1)
    manifest = read_manifest(path)
    manifest["parts"][0]["sections"] = sections
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="sections"):
        read_checkpoint(path)


def test_missing_state_is_refused(tmp_path):
    path = write(tmp_path, 1)
    (path / "state-inline.safetensors").unlink()
    with pytest.raises(CheckpointError, match="no readable"):
        read_checkpoint(path)


class Poison:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("is_signed", [False, True], ids=["unsigned", "checksum made to fit"])
def test_poisoned_pickle_is_refused_and_never_executed(tmp_path, is_signed):
    path, mark = write(tmp_path, 1), tmp_path / "executed"
    data = pickle.dumps(Poison(mark))
    (path / "state-inline.safetensors").write_bytes(data)
    if is_signed:
        manifest = read_manifest(path)
        manifest["parts"][0] |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError):
        read_checkpoint(path)
    assert not mark.exists()


def write_scored(folder, version, score, *, kind="episodes", keep=1):
    aside = begin_checkpoint(folder, 1)
    part = write_part(aside, "inline", {"trainer-0": {"score": np.array(score or 0.0)}})
    manifest = {"score": None if score is None else (score, kind)}
    return commit_checkpoint(
        aside, [part], versions={"main": version}, manifest=manifest, keep=keep
    )


def names(folder):
    return [path.name for path in list_checkpoints(folder)]


def test_best_is_kept_beside_the_last_k(tmp_path):
    assert best_checkpoint(tmp_path) is None
    write_scored(tmp_path, 1, None)
    assert best_checkpoint(tmp_path) is None
    for version, score, expected in (
        (2, 5.0, ["00000002"]),
        (3, 4.0, ["00000002", "00000003"]),
        (4, 5.0, ["00000004"]),  # of equal ones the newest
        (5, float("nan"), ["00000004", "00000005"]),
        (6, None, ["00000004", "00000006"]),
        (7, 6.0, ["00000007"]),
    ):
        write_scored(tmp_path, version, score)
        assert names(tmp_path) == expected, version


def test_scores_of_two_kinds_are_not_compared(tmp_path):
    write_scored(tmp_path, 1, 100.0, kind="episodes", keep=9)
    write_scored(tmp_path, 2, 3.0, kind="evaluation", keep=9)
    write_scored(tmp_path, 3, 2.0, kind="evaluation", keep=9)
    best = best_checkpoint(tmp_path)
    assert best is not None
    assert best.name == "00000002"
    assert score_of(best) == (3.0, "evaluation")


def test_best_of_a_version_that_is_learned_again_is_kept(tmp_path):
    write_scored(tmp_path, 5, 9.0)
    write_scored(tmp_path, 5, 1.0)
    best = best_checkpoint(tmp_path)
    assert best is not None
    assert float(read_checkpoint(best).sections["trainer-0"]["score"]) == 9.0
    assert latest_checkpoint(tmp_path).name == "00000005"
    write_scored(tmp_path, 5, 2.0)
    assert len(names(tmp_path)) == 2
    write_scored(tmp_path, 5, 10.0)
    assert names(tmp_path) == ["00000005"]


def test_checkpoints_are_found_by_name(tmp_path):
    with pytest.raises(CheckpointError, match="there is no checkpoint in"):
        find_checkpoint(tmp_path, "latest")
    with pytest.raises(CheckpointError, match=r"no checkpoint 'best' .* there is latest, and"):
        find_checkpoint(tmp_path, "best")
    for version, score in ((3, 9.0), (8, 1.0), (5, 2.0)):
        write_scored(tmp_path, version, score, keep=9)
    for name, found in (("latest", 5), ("best", 3), ("8", 8), ("08", 8)):
        assert find_checkpoint(tmp_path, name).name == f"{found:08d}", name
    for name in ("4", "-3", "³", "newest"):
        words = "there is latest, best, and those of versions 3, 8, 5"
        with pytest.raises(CheckpointError, match=words):
            find_checkpoint(tmp_path, name)


def test_unreadable_one_is_listed_last_and_never_pruned(tmp_path):
    """It may be the newest: to go on from another is the user's decision."""
    write(tmp_path, 1)
    (write(tmp_path, 2) / "manifest.json").write_text("{")
    for version in (3, 4, 5, 6):
        write(tmp_path, version, keep=2)
    assert names(tmp_path) == ["00000005", "00000006", "00000002"]
    write(tmp_path, 2, keep=2)  # but where it is written again
    assert names(tmp_path) == ["00000006", "00000002"]
