"""The page `docs/write-an-env.md`: its files are written, its commands and its test are run."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from srl import cli

PAGE = (Path(__file__).parents[2] / "docs" / "write-an-env.md").read_text()
FILES = dict(re.findall(r"```python\n# (\S+\.py)\n(.*?)```", PAGE, re.S))
COMMANDS = re.findall(r"^\$ srl (.*)$", PAGE, re.M)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_python_block_is_a_file_and_commands_name_them():
    assert len(FILES) == PAGE.count("```python") == 3
    assert len(COMMANDS) == 4


@pytest.mark.parametrize("command", COMMANDS)
def test_command_runs(command, folder, capsys):
    assert cli.main(shlex.split(command)) == 0
    said = capsys.readouterr().out
    if command.startswith("check-env"):
        assert "\nok         autoreset" in said
        return
    summary = json.loads(next(folder.glob("*-run/summary.json")).read_text())
    assert summary["status"] == "completed"
    assert summary["eval_return"] is not None


def test_its_own_test_passes(folder):
    words = [sys.executable, "-m", "pytest", "-q", "test_drift.py"]
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
