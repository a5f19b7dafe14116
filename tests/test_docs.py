"""The documents match the program: examples, tables, links and names."""

import asyncio
import json
import re
import textwrap
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from onbeat import Onbeat
from onbeat.core.explain.reasons import SENTENCES
from onbeat.core.policy import POLICIES, Policy, write_policy
from onbeat.core.policy_values import Retries
from onbeat.core.runs.phase import Status
from onbeat.core.runs.run import REASONS, Accepted, Reason, Succeeded
from onbeat.core.snapshot import Snapshot, with_definitions
from onbeat.core.target_kinds import KINDS as TARGETS
from onbeat.core.templates import FILTERS, NAMES
from onbeat.core.time.cron import MACROS
from onbeat.core.time.instants import parse_instant
from onbeat.core.triggers.codec import AROUND, KINDS
from onbeat.ports.store import ROLES
from onbeat.service.access import SCOPES
from onbeat.simulate.simulation import Simulation
from onbeat.sources.yaml import read_file
from onbeat.testing import ManualClock, RecordingLauncher, a_schedule

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def python_of(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def test_python_of_the_readme_schedules_the_stated_runs():
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
        "totals": ("SUCCESS", {"rows": 100}),
        "standup": ("SUCCESS", None),
    }


def test_python_of_the_testing_page_passes():
    (block,) = python_of("docs/testing.md")
    names = {}
    exec(block, names)
    names["test_the_report_runs_hourly"]()


def test_python_of_the_workflows_page_defines_the_stated_schedules(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(*python_of("docs/workflows.md"), names)

    async def play():
        async with names["beat"] as beat:
            workflows = beat.systems["workflows"]
            answered = await names["deploy"](workflows)
            when = answered["next_run_at"]
            assert await workflows.run_launcher.start("report", 3, "ada", when, "by-hand")
            return answered, await workflows.registrar.get_schedule("morning-report")

    answered, found = asyncio.run(play())
    assert answered == {"schedule_id": "morning-report", "next_run_at": found["preview"][0]}
    assert "['fetch', 'send'] for ada" in capsys.readouterr().out
    page = (ROOT / "docs" / "workflows.md").read_text()
    assert all(f"`{name}`" in page for name in (*found, *found["schedule"]))


def table(page, heading):
    """Return the rows of the first table below a heading of a page, without the row of headings."""
    text = (ROOT / "docs" / page).read_text()
    _, found, below = text.partition(f"\n{heading}\n")
    assert found, heading
    rows = re.search(r"(?:^\|.*\n)+", below.partition("\n## ")[0], re.MULTILINE)[0].splitlines()
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows[2:]]


def sections(page):
    """Return the texts below the headings of a page, of any level."""
    parts = re.split(r"^#+ (.+)$", (ROOT / "docs" / page).read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def reasons_of(policy):
    line = re.search(r"^Reasons: (.+)$", sections("policies.md")[policy], re.MULTILINE)
    return re.findall(r"`(\w+)`", line[1]) if line else []


POLICY_NAMES = [*POLICIES, "when"]


def test_every_policy_has_a_row_with_its_default_and_a_section():
    rows = table("policies.md", "## All policies")
    assert [row[0] for row in rows] == [f"[`{name}`](#{name})" for name in POLICY_NAMES]
    assert set(POLICY_NAMES) <= sections("policies.md").keys()
    for name, (_, cell, _) in zip(POLICY_NAMES, rows, strict=True):
        default = cell.strip("`")
        value = getattr(Policy(), name, None)
        if default == "none":
            assert value in (None, Retries()), name
        elif default in ("true", "false"):
            assert value is (default == "true"), name
        else:
            read = POLICIES[name].read(int(default) if default.isdigit() else default)
            assert read == value, name


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_every_example_of_a_policy_defines_a_schedule(policy, tmp_path):
    examples = re.findall(r"```yaml\n(.*?)```", sections("policies.md")[policy], re.DOTALL)
    assert examples
    for example in examples:
        path = tmp_path / "onbeat.yaml"
        fields = textwrap.indent(f"run: {{command: [ls]}}\n{example}", "    ")
        path.write_text(f"schedules:\n  report:\n{fields}")
        (schedule,) = read_file(path, lambda _: None).schedules
        assert schedule.when if policy == "when" else policy in write_policy(schedule.policy)


def test_reasons_are_documented_with_their_sentences():
    rows = table("schedules.md", "### Reasons")
    assert [(row[0].strip("`"), row[2]) for row in rows] == list(SENTENCES.items())
    assert get_args(Reason) == REASONS


def test_every_reason_is_in_the_section_of_its_policy():
    others = {
        row[0]: re.findall(r"`(\w+)`", row[2]) for row in table("policies.md", "## Other decisions")
    }
    found = {reason for policy in POLICY_NAMES for reason in reasons_of(policy)}
    assert found | {reason for reasons in others.values() for reason in reasons} == set(REASONS)
    for reason, decided_by, _ in table("schedules.md", "### Reasons"):
        for anchor in re.findall(r"policies\.md#(\w+)\)", decided_by):
            assert reason.strip("`") in reasons_of(anchor), (reason, anchor)


@pytest.mark.parametrize("row", table("policies.md", "### overlap"), ids=lambda row: row[0])
def test_overlap_table_matches_a_forecast(row):
    overlap, *ticks = row
    noon = parse_instant("2026-01-01T12:00:00Z") * 1000
    schedule = a_schedule("report", every="15m", overlap=overlap.strip("`"))
    simulation = Simulation(
        with_definitions(Snapshot(noon - 1), [schedule]),
        until=noon + len(ticks) * 900_000,
        run_length=1_200_000,
    )
    list(simulation.steps())
    (found,) = simulation.forecast().schedules
    assert found.ticks == len(ticks)
    assert found.skips.get("overlap", 0) == sum("skipped" in tick for tick in ticks)
    assert found.ended_early == sum("canceled" in tick for tick in ticks)
    assert bool(found.waited) == (overlap == "`queue`")


def test_why_answer_on_the_policies_page_is_the_actual_one():
    clock = ManualClock("2026-11-17T11:44:59Z")

    async def play():
        beat = Onbeat(
            "sqlite://", clock=clock, launchers={"command": RecordingLauncher(Accepted())}
        )
        async with beat:
            await beat.define(a_schedule("report", every="15m", timeout="1h"))
            for passed in ("1s", "15m", 450_120):
                clock.advance(passed)
                await beat.settle()
            (run,) = [run for run in await beat.runs() if run.status == "STARTED"]
            await beat.report(run.run_id, Succeeded())
            await beat.settle()
            return run.run_id, await beat.why("report", parse_instant("2026-11-17T12:00:00Z"))

    run_id, why = asyncio.run(play())
    page = (ROOT / "docs" / "policies.md").read_text()
    for sentence in (*why.sentences, why.instead):
        assert f"  {sentence.replace(f'run {run_id} ', 'run 41 ')}\n" in page


def linked_tests(cell):
    return re.findall(r"\[`(test_\w+)`\]\(\.\./(tests/[^)]+)\)", cell)


def test_every_linked_test_exists():
    page = (ROOT / "docs" / "traceability.md").read_text()
    found = linked_tests(page)
    assert len(found) > 60
    for name, path in found:
        assert f"def {name}(" in (ROOT / path).read_text(), (name, path)


def test_every_policy_and_every_other_decision_has_its_tests():
    policies = table("traceability.md", "## Policies")
    assert [row[0] for row in policies] == [
        f"[`{name}`](policies.md#{name})" for name in POLICY_NAMES
    ]
    others = table("traceability.md", "## Other decisions")
    titles = [
        re.sub(r"\[(.+?)\]\(.+?\)", r"\1", row[0])
        for row in table("policies.md", "## Other decisions")
    ]
    assert [row[0] for row in others] == titles
    assert all(linked_tests(row[1]) for row in (*policies, *others))


def test_every_target_kind_and_template_name_is_documented():
    page = (ROOT / "docs" / "schedules.md").read_text()
    for kind in TARGETS.fields():
        assert f"| `{{{kind}: " in page, kind
    page = (ROOT / "docs" / "policies.md").read_text()
    for name, meaning in NAMES.items():
        assert f"| `{name}` | {meaning} |" in page, name
    for name in FILTERS:
        assert re.search(rf"`(a \| )?{name}[(`]", page), name


def test_every_named_make_target_exists():
    makefile = (ROOT / "Makefile").read_text()
    named = re.findall(
        r"(?:^|\$ |`)make ([a-z-]+)", README + (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE
    )
    assert {"run", "test", "bench", "sim", "chaos"} <= set(named)
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_extras_named_in_the_readme_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    paragraph = re.search(r"^The extra `server`.*?\n\n", README, re.MULTILINE | re.DOTALL)[0]
    assert set(re.findall(r"`(\w+)`", paragraph)) == project["optional-dependencies"].keys()


def test_figures_of_the_readme_are_in_their_linked_pages():
    rows = re.findall(r"^\| (.+) \| (.+) \| `(.+)` \|$", README, re.MULTILINE)
    assert len(rows) >= 8
    linked = [
        link for row in rows for link in re.findall(r"\[([^\]]*\d[^\]]*)\]\(([^)#]+)", row[1])
    ]
    assert len(linked) >= 3
    for text, page in linked:
        shown = (ROOT / page).read_text()
        for figure in re.findall(r"\d+ \d{3}|\d+\.\d+", text):
            assert figure in shown, (figure, page)
    vectors = json.loads((ROOT / "tests" / "data" / "calendar.json").read_text())["vectors"]
    assert f"{len(vectors)} cases" in README


def test_index_has_every_page():
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [page.relative_to(ROOT / "docs") for page in ROOT.glob("docs/**/*.md")]
    for page in pages:
        if page.parts[0] not in ("README.md", "decisions"):
            assert f"]({page})" in index, page


def test_glossary_has_each_word_once():
    page = (ROOT / "docs" / "glossary.md").read_text()
    rows = re.findall(r"^\| (\*\*.+?) \| (.+) \|$", page, re.MULTILINE)
    words = [word for row, _ in rows for word in re.findall(r"\*\*`?(.+?)`?\*\*", row)]
    assert len(words) == len(set(words)) > 70
    assert not {*Status, *ROLES, *SCOPES} - set(re.findall(r"\w+", page))


def test_calendar_page_has_every_kind_limit_and_macro():
    page = (ROOT / "docs" / "calendar.md").read_text()
    for kind in KINDS:
        assert f"| {kind} |" in page, kind
    for name in AROUND:
        assert f"`{name}`" in page, name
    for macro in MACROS:
        assert macro in page, macro


def test_tests_cited_for_requirements_exist():
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", (ROOT / "docs" / "origins.md").read_text())
    assert named
    assert [name for name in named if f"def {name}(" not in tests] == []


def test_architecture_page_names_every_layer_and_only_existing_files():
    page = (ROOT / "ARCHITECTURE.md").read_text()
    package = ROOT / "src" / "onbeat"
    for part in [*package.iterdir(), *(package / "core").iterdir()]:
        if part.is_dir() and part.name != "__pycache__":
            assert f"`{part.name}`" in page, part
    for module in package.glob("*.py"):
        assert module.name.startswith("__") or f"`{module.stem}`" in page, module
    files = re.findall(r"`([\w/]+\.py)`", page)
    assert files
    for file in files:
        assert (package / file).exists() or (ROOT / file).exists(), file


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_an_existing_file(page):
    for target in re.findall(r"\]\(([^)#\s]+)?(?:#[\w-]+)?\)", page.read_text()):
        if target and "://" not in target:
            assert (page.parent / target).exists(), target
