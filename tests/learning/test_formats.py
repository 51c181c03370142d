"""Formats of checkpoints: today's bytes are known, older ones are read, newer ones are refused.

`golden/N` is what format N looks like. Where `test_todays_bytes` fails, readers out there do not
know what is written now: raise FORMAT in srl/learning/migrate.py, add the step from the one before,
and add a golden checkpoint (`SRL_WRITE_GOLDEN=1 pytest tests/learning/test_formats.py`).
"""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import srl
from srl.core.errors import CheckpointError
from srl.learning.checkpoint import (
    begin_checkpoint,
    commit_checkpoint,
    latest_checkpoint,
    read_checkpoint,
    read_manifest,
    write_part,
)
from srl.learning.migrate import FORMAT

GOLDEN = Path(__file__).with_name("golden")
DTYPES = ("float64", "float32", "float16", "bool")
DTYPES += tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
ARRAYS = {dtype: np.arange(6).reshape(2, 3).astype(dtype) for dtype in DTYPES} | {
    "empty": np.zeros((0, 4), np.float32),
    "scalar": np.array(7, np.int64),
    "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "big endian": np.arange(3, dtype=">f4"),
}
PARTS = {
    "trainer-a-0": {"trainer-a-0": ARRAYS},
    "trainer-b-0": {"trainer-b-0": {"nan": np.array([np.nan, np.inf])}, "nothing": {}},
}
MANIFEST = {"score": (12.5, "episodes"), "seconds": 1.5, "restored": ["weights"]}


def write(folder: Path) -> Path:
    aside = begin_checkpoint(folder, 1)
    parts = [write_part(aside, writer, sections) for writer, sections in PARTS.items()]
    versions = {"a": 42, "b": 7}
    return commit_checkpoint(aside, parts, versions=versions, manifest=MANIFEST, keep=3)


def test_todays_bytes(tmp_path):
    written, golden = write(tmp_path), GOLDEN / str(FORMAT) / "00000042"
    if os.environ.get("SRL_WRITE_GOLDEN"):
        shutil.copytree(written, golden, dirs_exist_ok=True)
    assert sorted(os.listdir(written)) == sorted(os.listdir(golden))
    for file in golden.glob("*.safetensors"):
        assert (written / file.name).read_bytes() == file.read_bytes(), file.name
    manifests = [json.loads((path / "manifest.json").read_text()) for path in (written, golden)]
    for manifest in manifests:
        manifest.pop("created")
    assert manifests[0] == manifests[1]


def test_golden_of_today_is_read():
    checkpoint = read_checkpoint(latest_checkpoint(GOLDEN / str(FORMAT)))
    assert checkpoint.manifest["versions"] == {"a": 42, "b": 7}
    assert checkpoint.sections.keys() == {"trainer-a-0", "trainer-b-0", "nothing"}
    for name, array in ARRAYS.items():
        read = checkpoint.sections["trainer-a-0"][name]
        np.testing.assert_array_equal(read, array)
        assert read.dtype == array.dtype.newbyteorder("=")


def test_part_is_what_safetensors_itself_would_read(tmp_path):
    from safetensors.numpy import load_file

    part = write_part(tmp_path, "x", {"x": ARRAYS})
    read = load_file(tmp_path / part.file)
    assert read.keys() == {f"x/{name}" for name in ARRAYS}
    assert (tmp_path / part.file).stat().st_size == part.bytes


@pytest.mark.parametrize("array", [np.array(["text"]), np.array([1j]), np.array([None])], ids=str)
def test_array_that_cannot_be_held_is_named(tmp_path, array):
    with pytest.raises(CheckpointError, match="cannot hold 'x/odd'"):
        write_part(tmp_path, "x", {"x": {"odd": array}})


def test_format_1_is_read_as_todays():
    """One file of one trainer, as the first SRL wrote it."""
    path = GOLDEN / "1" / "checkpoints" / "00000054"
    checkpoint = read_checkpoint(path)
    manifest = checkpoint.manifest
    assert manifest["format"] == 1
    assert manifest["versions"] == {"main": 54}
    assert manifest["progress"]["policies"]["main"]["version"] == 54
    assert manifest["progress"]["totals"] == {"env_steps": 3239, "agent_steps": 3239}
    assert manifest["ledgers"]["main"]["consumed"] == 54
    state = checkpoint.sections["trainer-0"]
    assert state["counters"].tolist()[0] == 54
    assert state["learner.weights/policy_head.logits.weight"].shape == (4, 2)


def test_run_of_format_1_goes_on(tmp_path):
    folder = shutil.copytree(GOLDEN / "1", tmp_path / "run")
    for name in ("tb", "logs", "errors"):
        (folder / name).mkdir()
    run = srl.resume(folder, launcher="inline", stop__env_steps=3700, evaluation__episodes=0)
    assert run.summary["status"] == "completed"
    assert run.summary["env_steps"] >= 3700
    assert run.summary["version"] > 54
    assert read_manifest(latest_checkpoint(folder / "checkpoints"))["format"] == FORMAT
    assert len(list((folder / "checkpoints").iterdir())) == 2


@pytest.mark.parametrize("number", [FORMAT + 1, 99])
def test_newer_format_is_refused_by_both_numbers(tmp_path, number):
    path = write(tmp_path)
    manifest = read_manifest(path) | {"format": number}
    (path / "manifest.json").write_text(json.dumps(manifest))
    words = f"has checkpoint format {number}, and this SRL reads 1 to {FORMAT}"
    with pytest.raises(CheckpointError, match=words):
        read_checkpoint(path)


@pytest.mark.parametrize("number", [None, 0, -1, "2", 2.0, True])
def test_format_that_is_no_number_is_refused(tmp_path, number):
    path = write(tmp_path)
    manifest = read_manifest(path) | {"format": number}
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="is not a checkpoint of SRL"):
        read_checkpoint(path)


def test_format_1_without_what_belongs_to_it_is_refused(tmp_path):
    path = shutil.copytree(GOLDEN / "1" / "checkpoints" / "00000054", tmp_path / "00000054")
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["ledger"]
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"has checkpoint format 1, but not .*'ledger'"):
        read_checkpoint(path)
