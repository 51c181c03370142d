"""The README's Python example runs as it is printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_readme_python_example_runs(tmp_path):
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert len(snippets) == 1
    script = tmp_path / "example.py"
    script.write_text(snippets[0])
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    mean_return, folder = done.stdout.split()
    assert float(mean_return) > 0
    assert (tmp_path / folder / "summary.json").is_file()


def test_readme_names_the_commands_that_exist():
    text = (ROOT / "README.md").read_text()
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M)
    for target in re.findall(r"(?:`|^)make ([a-z]+)", text, re.M):
        assert target in targets
    from srl.cli import COMMANDS

    for command in re.findall(r"^srl ([a-z-]+)", text, re.M):
        assert command in COMMANDS
