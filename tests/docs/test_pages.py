"""Every page that shows commands shows what they do."""

import re

import pytest

from tests.docs.examples import ROOT, Command, shell_of, steps_of

PAGES = [
    ROOT / "docs" / "workflows.md",
    ROOT / "docs" / "tutorial.md",
    *sorted((ROOT / "docs" / "howto").glob("*.md")),
    ROOT / "docs" / "services.md",
    ROOT / "docs" / "sessions.md",
    ROOT / "docs" / "flows.md",
    ROOT / "docs" / "reference" / "cli.md",
    ROOT / "docs" / "reference" / "rest.md",
]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.exists()], ids=lambda page: page.stem
)
def test_what_a_page_shows_is_what_happens(page, running):
    assert running[page].result() > 0


def test_the_commands_of_the_readme_work(program):
    page = ROOT / "README.md"
    commands = [step for step in steps_of(page) if isinstance(step, Command)]
    first = next(n for n, each in enumerate(commands) if each.text.startswith("onbeat init"))
    last = next(n for n, each in enumerate(commands) if each.text.startswith("onbeat down"))
    told = {}
    with shell_of(page, program) as shell:
        for command in commands[first : last + 1]:
            if " -f " not in command.text:  # which would go on until Ctrl-C
                told[command.text.partition("#")[0].strip()], code = shell.run(command)
                assert code == 0, command
    assert "dashboard  http://127.0.0.1:8585/login?code=" in told["onbeat up -d"]
    assert "every 10 seconds" in told["onbeat list"]


LINKS = [
    pytest.param(page, there, anchor, id=f"{page.relative_to(ROOT)}-{there}#{anchor}")
    for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
    for there, anchor in re.findall(r"\]\(([^)#\s:]*)#([\w-]+)\)", page.read_text())
]


@pytest.mark.parametrize(("page", "there", "anchor"), LINKS)
def test_a_link_leads_to_a_heading(page, there, anchor):
    found = (page.parent / there if there else page).read_text()
    headings = re.findall(r"^#+ (.+)$", found, re.MULTILINE)
    slugs = [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]
    assert anchor in slugs
