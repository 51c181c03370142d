"""The table of messages is true: each of them is in the source."""

import ast
import re
from pathlib import Path

import pytest

import srl

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
MESSAGES = re.findall(r"^\| `([^`]+)`", PAGE.read_text(), re.MULTILINE)


def sentences() -> list[str]:
    """Every string of the source; what is filled in is a NUL."""
    found = []
    for path in sorted(Path(srl.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = [v.value if isinstance(v, ast.Constant) else "\0" for v in node.values]
                found.append("".join(map(str, parts)))
    return found


SENTENCES = sentences()


def occurs(message: str) -> bool:
    """Whether a message, with … for what is filled in, is one of the source's."""
    pattern = re.compile(".*?".join(re.escape(part) for part in message.split("…")), re.DOTALL)
    return any(pattern.search(sentence) for sentence in SENTENCES)


@pytest.mark.parametrize("message", MESSAGES)
def test_message_is_in_the_source(message):
    assert len(message.replace("…", "").strip(" ;:")) >= 12, "too little to be found by"
    assert occurs(message)


def test_table_is_found():
    assert len(MESSAGES) > 20
    assert not occurs("this run … never says this")


def test_options_of_the_page_exist():
    from srl.api import find_experiment
    from srl.launch.graph.options import help_text

    names = ("cartpole", "cartpole-dqn")  # without replay, and with it
    text = "".join(help_text(find_experiment(name), f"srl train {name}") for name in names)
    for option in set(
        re.findall(r"--[a-z]+\.[a-z-]+|--max-staleness|--arena-megabytes|--out", PAGE.read_text())
    ):
        assert option in text, option
