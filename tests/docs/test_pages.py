"""Every page that shows commands shows what they do."""

import pytest

from tests.docs.examples import ROOT, run_page

PAGES = [
    ROOT / "docs" / "tutorial.md",
    *sorted((ROOT / "docs" / "howto").glob("*.md")),
    ROOT / "docs" / "reference" / "cli.md",
    ROOT / "docs" / "reference" / "rest.md",
]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.exists()], ids=lambda page: page.stem
)
def test_what_a_page_shows_is_what_happens(page, program):
    assert run_page(page, program) > 0
