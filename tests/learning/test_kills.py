"""Whatever moment a writer is killed at, the checkpoint before is there: real processes, SIGKILL."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from srl.learning.checkpoint import _remove

PROGRAM = Path(__file__).with_name("killed_writer.py")


def kill(folder, *options, program=PROGRAM, seconds=100):
    done = subprocess.run(
        [sys.executable, str(program), str(folder), *map(str, options)],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # forks are for processes of one thread
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_kills_at_random_moments(tmp_path):
    result = kill(tmp_path, "--kills", 20)
    assert result["failures"] == []
    assert result["kills"] == 20


def test_kill_before_every_operation_on_files(tmp_path):
    result = kill(tmp_path, "--every-operation", "--seed", 1)
    assert result["failures"] == []
    # each state that a write can be left in was seen
    assert result["died while"].keys() >= {
        "writing, 0 files",
        "writing, 1 files",
        "writing, 2 files",
        "writing, 3 files",
        "replacing",
        "removing",
        "between two",
    }


@pytest.mark.slow
def test_thousand_kills(tmp_path):
    result = kill(tmp_path, "--kills", 1000, seconds=1500)
    assert result["failures"] == []
    assert result["kills"] == 1000
    assert result["committed"] > 100


BUGS = {
    "the one before goes first": (
        "    aside.rename(path)\n",
        "    for old in _readable(folder):\n        _remove(old)\n    aside.rename(path)\n",
    ),
    "the same version is overwritten": (
        "        path.rename(replaced)\n",
        "        _remove(path)\n",
    ),
    "removed where it lies": (
        "        path.rename(gone)\n        shutil.rmtree(gone, ignore_errors=True)\n",
        "        shutil.rmtree(path, ignore_errors=True)\n",
    ),
    "the manifest is moved first": (
        "    aside.rename(path)\n",
        "    path.mkdir()\n    for file in (_MANIFEST, *(part.file for part in parts)):\n"
        "        (aside / file).rename(path / file)\n    aside.rmdir()\n",
    ),
    "the best is not kept": ("{*newest, best_checkpoint(folder)}", "{*newest}"),
    "leftovers stay": ('(".*.writing", ".*.removing")', '(".*.writing",)'),
}


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_found(tmp_path, bug):
    """The kills are worth something: a writer with a bug is caught."""
    source = Path(_remove.__code__.co_filename).read_text()
    right, wrong = BUGS[bug]
    assert source.count(right) == 1
    (tmp_path / "checkpoint_with_a_bug.py").write_text(source.replace(right, wrong))
    program = PROGRAM.read_text().replace("srl.learning.checkpoint", "checkpoint_with_a_bug")
    (tmp_path / "program.py").write_text(program)
    result = kill(tmp_path / "folder", "--every-operation", program=tmp_path / "program.py")
    assert result["failures"]
