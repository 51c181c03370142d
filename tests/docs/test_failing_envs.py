"""The page `docs/failing-envs.md`: its env is written, its command is run, and so is its check."""

import re
import shlex
from pathlib import Path

from srl import cli

PAGE = (Path(__file__).parents[2] / "docs" / "failing-envs.md").read_text()
ENV, CHECK = re.findall(r"```python\n(.*?)```", PAGE, re.S)
(COMMAND,) = re.findall(r"^\$ srl (.*)$", PAGE, re.M)


def test_page_is_true(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name, _, _ = ENV.removeprefix("# ").partition("\n")
    Path(name).write_text(ENV)
    assert cli.main(shlex.split(COMMAND)) == 0
    exec(compile(CHECK, "failing-envs.md", "exec"), {})
