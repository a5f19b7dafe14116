"""Write the generated tables of the docs: `make tables`. A test checks that they are up to date.

A table stands between `<!-- table: NAME -->` and `<!-- end of table -->`.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from onbeat.app.settings import Settings, known_settings, setting_options, shown_default
from onbeat.core.policy import POLICIES, Policy
from onbeat.core.runs.phase import PHASES, Blocks, Phase, PhaseFacts

ROOT = Path(__file__).resolve().parent.parent
TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def table(heading: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    titles = list(heading)
    lines = [f"| {' | '.join(cells)} |\n" for cells in (titles, *rows)]
    return "".join([lines[0], f"|{'---|' * len(titles)}\n", *lines[1:]])


def settings() -> str:
    """Return the table of every setting with its default, as it is written in the file."""
    defaults, rows = Settings(), []
    for name, field in known_settings().fields.items():
        default = msgspec.json.encode(field.write(defaults.value(name))).decode()
        shown = default.replace(",", ", ")
        rows.append([f"`{name}`", f"`ONBEAT_{name.upper()}`", f"`{shown}`", field.words])
    return table(("name", "environment variable", "default, as in the file", "meaning"), rows)


def policies() -> str:
    """Return the table of every policy with its default."""
    rows = []
    for name, field in POLICIES.items():
        default = getattr(Policy(), name)
        written = "none" if default is None else field.write(default)
        shown = "none" if written == [] else str(written).lower()
        rows.append([f"[`{name}`](#{name})", f"`{shown}`", field.words])
    when = "a condition that is checked before each attempt: the run starts only if it holds"
    rows.append(["[`when`](#when)", "`none`", when])
    return table(("field", "default", "meaning"), rows)


def options_of_up() -> str:
    """Return the table of the options of `onbeat up` that are settings."""
    rows = []
    for name, option in setting_options().items():
        default = option.default or shown_default(name)
        words = f"{option.help.rstrip('.')}{f'. Default: {default}' if default else ''}"
        rows.append([f"`--{name.replace('_', '-')} {option.metavar}`", words])
    return table(("option", "meaning"), rows)


IN_FLIGHT = {
    Blocks.NEVER: "",
    Blocks.ONCE_DUE: "once due",
    Blocks.UNTIL_DEADLINE: "until its deadline",
    Blocks.ALWAYS: "yes",
}


def phases() -> str:
    """Return the table of the phases of a run."""
    rows = []
    for phase, facts in PHASES.items():
        then = ", ".join(each for each in Phase if each in facts.follows)
        marks = (IN_FLIGHT[facts.blocks], _yes(facts.holds_place), _yes(facts.is_claimable))
        columns = ", ".join(f"`{name}`" for name in _columns(facts))
        rows.append([f"`{phase}`", facts.status, facts.meaning, *marks, columns, then])
    titles = ("in flight", "has a place", "claimable", "columns", "may be followed by")
    return table(("phase", "status", "meaning", *titles), rows)


def _columns(facts: PhaseFacts) -> Iterable[str]:
    """Yield the columns that a phase sets."""
    if facts.is_leased:
        yield "leased_by"
    if facts.is_queued:
        yield "blocked_by"
    if facts.is_to_end:
        yield "end_asked_at"
    if facts.is_over:
        yield "finished_at"


def _yes(holds: bool) -> str:  # noqa: FBT001 - a cell
    return "yes" if holds else ""


def with_tables(page: str) -> str:
    """Return a page with its tables as they are now."""
    return TABLE.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}{found[3]}", page)


def pages() -> Iterable[Path]:
    """Yield the pages that have a generated table."""
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")):
        if TABLE.search(path.read_text()):
            yield path


TABLES: dict[str, Callable[[], str]] = {
    "settings": settings,
    "policies": policies,
    "options_of_up": options_of_up,
    "phases": phases,
}

if __name__ == "__main__":
    for each in pages():
        each.write_text(with_tables(each.read_text()))
