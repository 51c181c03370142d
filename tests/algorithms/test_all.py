"""What every algorithm has, whoever wrote it: a page, a border, a length that can be read."""

import configparser
import re
from pathlib import Path

import pytest

from srl import catalog

ROOT = Path(__file__).parents[2]
ALGORITHMS = sorted(p.stem for p in (ROOT / "srl" / "algorithms").glob("*.py") if p.stem[0] != "_")
PAGES = ROOT / "docs" / "algorithms"
each_algorithm = pytest.mark.parametrize("name", ALGORITHMS)


@each_algorithm
def test_its_page_tells_paper_loss_details_options_and_curve(name: str) -> None:
    page = (PAGES / f"{name}.md").read_text()
    told = " ".join(page.split())
    assert re.search(r"et al\. \d{4}, \*", told), "a paper, by its title"
    assert f"`srl/algorithms/{name}.py`" in told
    assert re.search(r"^ {4}.*\bmean\b", page, re.M), "a loss, in a block of its own"
    assert "Recorded in every row: `action`" in told
    assert "Details that decide results: - " in told
    options = re.findall(r"Options: `srl train (\S+) --help`, groups? `algorithm`", told)
    assert len(options) == 1
    assert options[0] in catalog.EXPERIMENTS
    curves = re.findall(r"\]\((curves/.*)\)", page)
    assert curves
    assert all((PAGES / curve).exists() for curve in curves)


@each_algorithm
def test_readme_links_its_page(name: str) -> None:
    assert f"(docs/algorithms/{name}.md)" in (ROOT / "README.md").read_text()


@each_algorithm
def test_recipes_that_its_page_names_exist(name: str) -> None:
    page = (PAGES / f"{name}.md").read_text()
    envs = {recipe.partition("-")[0] for recipe in catalog.EXPERIMENTS if "-" in recipe}
    named = re.findall(rf"`((?:{'|'.join(sorted(envs))})-[a-z0-9]+)`", page)
    assert set(named) <= set(catalog.EXPERIMENTS)


def test_none_knows_another() -> None:
    borders = configparser.ConfigParser()
    borders.read(ROOT / ".importlinter")
    listed = borders["importlinter:contract:siblings-algorithms"]["modules"].split()
    assert listed == [f"srl.algorithms.{name}" for name in ALGORITHMS]


@each_algorithm
def test_it_can_be_read_in_ten_minutes(name: str) -> None:
    lines = (ROOT / "srl" / "algorithms" / f"{name}.py").read_text().splitlines()
    assert len(lines) <= 600  # one a second
