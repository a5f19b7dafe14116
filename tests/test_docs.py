"""The documents are true: what they show is what happens."""

import asyncio
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from onbeat import Onbeat
from onbeat.core.explain.reasons import SENTENCES
from onbeat.core.policy import POLICIES, Policy, Retries
from onbeat.core.runs.run import REASONS, Reason
from onbeat.core.target import TARGETS
from onbeat.core.templates import FILTERS, NAMES
from onbeat.core.time.cron import MACROS
from onbeat.core.triggers.codec import AROUND, KINDS
from onbeat.testing import ManualClock

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def console_blocks():
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL):
        command, _, printed = block.partition("\n")
        if command.startswith("$ .venv/bin/onbeat"):
            yield pytest.param(command.removeprefix("$ "), printed, id=command)


@pytest.mark.parametrize(("command", "printed"), list(console_blocks()))
def test_a_command_of_the_readme_prints_what_is_shown(command, printed):
    words = shlex.split(command)
    assert words[0] == ".venv/bin/onbeat"
    done = subprocess.run(
        [sys.executable, "-m", "onbeat", *words[1:]], capture_output=True, text=True, check=False
    )
    assert done.stdout + done.stderr == printed


def python_of(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def test_the_python_of_the_readme_schedules_what_it_says():
    (block,) = python_of("README.md")
    names = {"__name__": "readme"}
    exec(block, names)
    beat, clock = names["beat"], ManualClock("2026-01-05T07:59:00Z")  # a Monday
    again = Onbeat("sqlite://", clock=clock)
    again._decorated, again._functions = beat._decorated, beat._functions

    async def play():
        async with again:
            clock.advance("1m")
            await again.settle()
            return {run.schedule_id: (run.status, run.result) for run in await again.runs()}

    assert asyncio.run(play()) == {
        "report": ("SUCCESS", {"rows": 100}),
        "standup": ("SUCCESS", None),
    }


def test_the_python_of_the_testing_page_passes():
    (block,) = python_of("docs/testing.md")
    names = {}
    exec(block, names)
    names["test_the_report_runs_hourly"]()


def test_the_python_of_the_workflows_page_defines_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(*python_of("docs/workflows.md"), names)

    async def play():
        async with names["beat"] as beat:
            workflows = beat.systems.workflows
            answered = await names["deploy"](workflows)
            when = answered["next_run_at"]
            assert await workflows.run_launcher.start("report", 3, "ada", when, "by-hand")
            return answered, await workflows.registrar.get_schedule("morning-report")

    answered, found = asyncio.run(play())
    assert answered == {"schedule_id": "morning-report", "next_run_at": found["preview"][0]}
    assert "['fetch', 'send'] for ada" in capsys.readouterr().out
    page = (ROOT / "docs" / "workflows.md").read_text()
    assert all(f"`{name}`" in page for name in (*found, *found["schedule"]))


def cells(page, columns):
    """Return the rows of the tables of a page that have so many columns, without their headings."""
    text = (ROOT / "docs" / page).read_text()
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [row for row in rows if len(row) == columns]


def test_every_policy_is_in_its_table_with_its_default():
    (_, *rows) = cells("policies.md", 5)
    assert [row[0].strip("`") for row in rows] == [*POLICIES, "when"]
    for row in rows[:-1]:
        name, default = (cell.strip("`") for cell in row[:2])
        value = getattr(Policy(), name)
        if default == "none":
            assert value in (None, Retries()), name
        elif default in ("true", "false"):
            assert value is (default == "true"), name
        else:
            read = POLICIES[name].read(int(default) if default.isdigit() else default)
            assert read == value, name


def test_every_row_of_the_policies_names_tests_that_are_there():
    rows = [*cells("policies.md", 5)[1:], *cells("policies.md", 4)[1:]]
    assert len(rows) > 30
    for row in rows:
        links = re.findall(r"\[([^\]]+)\]\(\.\./(tests/[^)]+)\)", row[-1])
        assert links, row[0]
        for sentence, path in links:
            name = f"test_{sentence.replace(' ', '_')}"
            assert f"def {name}(" in (ROOT / path).read_text(), (name, path)


def test_the_policies_say_what_why_says_and_all_of_it():
    rows = [*cells("policies.md", 5)[1:], *cells("policies.md", 4)[1:]]
    found = {}
    for row in rows:
        found |= dict(re.findall(r"`(\w+)`: (.+?)(?:<br>|$)", row[-2]))
    assert found == dict(SENTENCES)


def test_the_reasons_are_a_closed_list_and_the_page_has_exactly_those():
    rows = [row for row in cells("schedules.md", 2) if row[0].strip("`") in REASONS]
    assert [(row[0].strip("`"), row[1]) for row in rows] == list(SENTENCES.items())
    assert get_args(Reason) == REASONS


def test_every_kind_of_target_and_every_name_of_a_template_has_its_row():
    page = (ROOT / "docs" / "schedules.md").read_text()
    for kind in TARGETS:
        assert f"| `{{{kind}: " in page, kind
    page = (ROOT / "docs" / "policies.md").read_text()
    for name, meaning in NAMES.items():
        assert f"| `{name}` | {meaning} |" in page, name
    for name in FILTERS:
        assert re.search(rf"`(a \| )?{name}[(`]", page), name


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


def test_the_tests_that_stand_for_a_requirement_are_there():
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", (ROOT / "docs" / "origins.md").read_text())
    assert named
    assert [name for name in named if f"def {name}(" not in tests] == []


def test_every_module_is_in_the_architecture_page():
    page = (ROOT / "ARCHITECTURE.md").read_text()
    package = ROOT / "src" / "onbeat"
    for module in [*package.glob("core/*.py"), *package.glob("*.py")]:
        name = str(module.relative_to(package))
        assert module.name.startswith("__") or f"`{name}`" in page, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)?(?:#[\w-]+)?\)", page.read_text()):
        if target and "://" not in target:
            assert (page.parent / target).exists(), target
