"""Pages whose blocks run from top to bottom."""

import pytest


@pytest.mark.parametrize(
    "page",
    [
        "benchmarks.md",
        "checkpoints.md",
        "first-run.md",
        "many-agents.md",
        "networks.md",
        pytest.param("not-finite.md", marks=pytest.mark.filterwarnings("ignore::RuntimeWarning")),
        "recurrent-policies.md",
        "write-an-algorithm.md",
    ],
)
def test_page_runs(page, run_page):
    run_page(page)
