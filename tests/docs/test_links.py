"""Links from page to page, and to files of the project, lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_exist(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    missing = [link for link in links if ":" not in link and not (page.parent / link).exists()]
    assert missing == []


def test_pages_are_found() -> None:
    assert {"README.md", "dqn.md", "replay.md"} <= {page.name for page in PAGES}
