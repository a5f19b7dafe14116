"""Every page that shows commands shows their actual output."""

import re

import pytest

from tests.docs.examples import ROOT, Command, File, steps_of

PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "workflows.md",
    ROOT / "docs" / "tutorial.md",
    ROOT / "docs" / "calendar.md",
    ROOT / "docs" / "simulate.md",
    *sorted(
        path for path in (ROOT / "docs" / "howto").glob("*.md") if path.stem != "plug"
    ),  # tests/plugs
    ROOT / "docs" / "services.md",
    ROOT / "docs" / "sessions.md",
    ROOT / "docs" / "flows.md",
    ROOT / "docs" / "reference" / "cli.md",
    ROOT / "docs" / "reference" / "rest.md",
]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.exists()], ids=lambda page: page.stem
)
def test_page_shows_the_actual_output(page, running):
    assert running[page].result() > 0


def test_readme_shows_a_file_a_command_and_python():
    steps = list(steps_of(ROOT / "README.md"))
    commands = [step.text for step in steps if isinstance(step, Command)]
    (file,) = [step.name for step in steps if isinstance(step, File)]
    assert f"onbeat apply {file}" in commands
    assert any(each.startswith("curl ") and " -X PUT " in each for each in commands)
    assert "@beat.schedule(" in (ROOT / "README.md").read_text()  # which tests/test_docs.py runs


LINKS = [
    pytest.param(page, there, anchor, id=f"{page.relative_to(ROOT)}-{there}#{anchor}")
    for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
    for there, anchor in re.findall(r"\]\(([^)#\s:]*)#([\w-]+)\)", page.read_text())
]


@pytest.mark.parametrize(("page", "there", "anchor"), LINKS)
def test_link_with_an_anchor_leads_to_a_heading(page, there, anchor):
    found = (page.parent / there if there else page).read_text()
    headings = re.findall(r"^#+ (.+)$", found, re.MULTILINE)
    slugs = [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]
    assert anchor in slugs
