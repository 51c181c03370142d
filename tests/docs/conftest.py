"""Runs a page: what it shows is true on the day it is read."""

import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from srl import cli

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.S | re.M)


@pytest.fixture
def run_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Runs every block of a page, in order and in an empty folder; returns the Python namespace.

    `python` blocks share one namespace; of `bash` blocks the lines that begin with `srl ` are run, and
    must exit with 0.
    """
    monkeypatch.chdir(tmp_path)

    def run(page: str) -> dict[str, Any]:
        module = ModuleType("page")  # as a file that is imported: what it defines has a home
        monkeypatch.setitem(sys.modules, "page", module)
        namespace = module.__dict__
        text = (DOCS / page).read_text()
        blocks = list(_BLOCK.finditer(text))
        assert blocks, f"{page} has no python or bash block"
        for block in blocks:
            line = text.count("\n", 0, block.start()) + 1
            if block[1] == "python":
                code = compile("\n" * line + block[2], str(DOCS / page), "exec")
                exec(code, namespace)
                continue
            for command in block[2].splitlines():
                if command.startswith("srl "):
                    words = shlex.split(command, comments=True)[1:]
                    assert cli.main(words) == 0, f"{page}:{line}: {command} in {os.getcwd()}"
        return namespace

    return run
