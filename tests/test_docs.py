"""The documents are true: what they show is what happens."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from onbeat.core.codec import AROUND, KINDS
from onbeat.core.cron import MACROS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def console_blocks():
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL):
        command, _, printed = block.partition("\n")
        if "onbeat" in command and not command.startswith("$ make"):
            yield pytest.param(command.removeprefix("$ "), printed, id=command)


@pytest.mark.parametrize(("command", "printed"), list(console_blocks()))
def test_a_command_of_the_readme_prints_what_is_shown(command, printed):
    words = shlex.split(command)
    assert words[0] == ".venv/bin/onbeat"
    done = subprocess.run(
        [sys.executable, "-m", "onbeat", *words[1:]], capture_output=True, text=True, check=False
    )
    assert done.stdout + done.stderr == printed


def test_the_python_of_the_readme_does_what_its_comments_say():
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names = {}
    for line in block.splitlines():
        code, _, said = line.partition("  # ")
        exec(code, names)
        number = re.match(r"\s*(\d+)", said)
        if number:
            assert eval(code, names) == int(number[1])
    assert names["workdays"].upcoming(1_767_225_600, 3)[0] == 1_767_340_800


def test_the_two_commands_are_there():
    assert "$ make run" in README
    assert "$ make test" in README
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"\$ make (\w+)", README + (ROOT / "CONTRIBUTING.md").read_text()):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_kind_limit_and_macro_is_in_the_calendar_page():
    page = (ROOT / "docs" / "calendar.md").read_text()
    for kind in KINDS:
        assert f"| {kind} |" in page, kind
    for name in AROUND:
        assert f"`{name}`" in page, name
    for macro in MACROS:
        assert macro in page, macro


def test_every_module_is_in_the_architecture_page():
    page = (ROOT / "ARCHITECTURE.md").read_text()
    for module in (ROOT / "src" / "onbeat" / "core").glob("*.py"):
        assert module.name == "__init__.py" or f"core/{module.name}" in page, module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)?(?:#[\w-]+)?\)", page.read_text()):
        if target and "://" not in target:
            assert (page.parent / target).exists(), target
