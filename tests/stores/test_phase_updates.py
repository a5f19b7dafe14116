"""Every UPDATE of a run names its phase in its WHERE: a run that moved on meanwhile is not changed."""

import ast
import importlib
import re
from pathlib import Path

import pytest

import onbeat

PACKAGE = Path(onbeat.__file__).parent
STORES = sorted((PACKAGE / "stores").rglob("*.py"))
UPDATE = re.compile(r"UPDATE\s+schedule_runs\b.*", re.DOTALL)

# Statements without a phase, by module and name, with the reason.
EXCEPT = {
    (
        "onbeat.stores.sql.backfill",
        "SHORTEN",
    ): "which ticks a skipped range covers is no phase of it",
}


def module_of(path):
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
        ".__init__"
    )


def texts_of(path):
    """Yield the texts of a module, each with the name that it is given, as far as it has one.

    Texts with values in them are evaluated if their values are those of the module.
    """
    tree = ast.parse(path.read_text())
    names = {
        node.value: target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    inside = {
        part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield names.get(node, ""), evaluated(node, module_of(path))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside:
            yield names.get(node, ""), node.value


def evaluated(node, module):
    code = compile(ast.Expression(node), module, "eval")
    try:
        return str(eval(code, dict(vars(importlib.import_module(module)))))
    except NameError:  # a value of a function
        return ast.unparse(node)


def names_phase(statement):
    """Return whether the WHERE of an UPDATE has a condition on the phase of the updated run."""
    condition = statement.partition("WHERE")[2].partition("RETURNING")[0]
    before = None
    while before != condition:  # subqueries are about other rows
        before, condition = (
            condition,
            re.sub(r"\(\s*SELECT[^()]*(\([^()]*\)[^()]*)*\)", "", condition),
        )
    alias = re.match(r"UPDATE\s+schedule_runs\s+AS\s+(\w+)", statement)
    own = rf"(?<![\w.])(?:{alias[1]}\.)?" if alias else r"(?<![\w.])"
    return re.search(rf"{own}phase\s*(=|IN\s*\()", condition) is not None


def updates():
    """Yield module, name and text of every statement that updates runs."""
    for path in STORES:
        for name, text in texts_of(path):
            for found in UPDATE.finditer(text):
                yield module_of(path), name, found[0]


@pytest.mark.parametrize(
    ("module", "name", "statement"),
    [pytest.param(*each, id=f"{each[0].rpartition('.')[2]}-{each[1]}") for each in updates()],
)
def test_update_of_runs_has_a_condition_on_their_phase(module, name, statement):
    assert names_phase(statement) or (module, name) in EXCEPT, statement


def test_statements_that_are_excepted_exist_and_set_no_column_of_the_phase():
    found = {(module, name): statement for module, name, statement in updates()}
    for where in EXCEPT:
        changed = found[where].partition("WHERE")[0]
        assert not re.search(r"\b(phase|leased_by|blocked_by|finished_at|end_asked_at)\b", changed)


def test_runs_are_updated_by_stores_only():
    others = {
        module_of(path)
        for path in PACKAGE.rglob("*.py")
        if UPDATE.search(path.read_text()) and path not in STORES
    }
    assert not others


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE schedule_runs SET phase = 'FAILED' WHERE run_id = ?1",
        "UPDATE schedule_runs SET phase = 'FAILED' WHERE run_id = ?1 RETURNING phase = 'FAILED'",
        "UPDATE schedule_runs SET error = ''",
        "UPDATE schedule_runs AS r SET error = '' FROM given WHERE given.phase = 'RUNNING'",
        (
            "UPDATE schedule_runs AS r SET error = '' WHERE r.run_id = ?1 AND NOT EXISTS ("
            "SELECT 1 FROM schedule_runs q WHERE q.phase IN ('QUEUED') AND phase = 'QUEUED')"
        ),
    ],
)
def test_update_without_a_condition_on_the_phase_is_found(statement):
    assert not names_phase(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE schedule_runs SET error = '' WHERE run_id = ?1 AND phase = ?2",
        "UPDATE schedule_runs AS r SET error = '' FROM g WHERE g.n = r.n AND r.phase = g.before",
        (
            "UPDATE schedule_runs AS r SET error = '' WHERE NOT EXISTS (SELECT 1 FROM (SELECT 1) q)"
            " AND r.phase IN ('RUNNING')"
        ),
    ],
)
def test_update_with_a_condition_on_the_phase_is_accepted(statement):
    assert names_phase(statement)
