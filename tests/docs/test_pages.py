"""Pages whose blocks run from top to bottom."""

import pytest


@pytest.mark.parametrize("page", ["many-agents.md"])
def test_page_runs(page, run_page):
    run_page(page)
