"""Every mutant applies to the source as it is, in one place; `make mutants` runs them."""

import ast
import re
from functools import cache

import pytest

from tests.sim.mutants import MUTANTS, NODE_FILE, NODE_TESTS, ROOT, STORE_FILES, main
from tests.sim.mutate import (
    WORD,
    Mutant,
    MutantError,
    delete,
    insert_after,
    insert_before,
    known_names,
    plant,
    replace,
    replace_sql,
)

SOURCE = ROOT / "src"


@cache
def words():
    """Return every word of the product."""
    return {word for file in SOURCE.rglob("*.py") for word in WORD.findall(file.read_text())}


@cache
def parsed(file):
    return ast.parse(file.read_text())


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_applies_to_the_source(mutant):
    module = parsed(mutant.file(SOURCE))
    body, n = mutant.find(module)
    after = ast.unparse(mutant.changed(body[n]))
    assert after != ast.unparse(body[n])
    compile(after, mutant.name, "exec")
    assert mutant.edit.names() <= known_names(module, body[n])
    assert mutant.edit.words() <= words()


def test_module_without_a_mutant_is_written_as_it_is():
    for file in {mutant.file(SOURCE) for mutant in MUTANTS}:
        written = ast.parse(ast.unparse(parsed(file)))
        assert ast.dump(written) == ast.dump(parsed(file)), file


def test_mutants_have_different_names_and_changes():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len({(mutant.place, mutant.edit) for mutant in MUTANTS}) == len(MUTANTS)


def test_tests_that_mutants_out_of_reach_need_exist():
    assert all(file.is_file() for file in STORE_FILES)
    names = {getattr(statement, "name", None) for statement in parsed(NODE_FILE).body}
    assert names >= set(NODE_TESTS)


def test_list_prints_the_chosen_mutants(capsys):
    assert main(["--list", "--only", "lowest priority"]) == 0
    assert capsys.readouterr().out == (
        "the lowest priority first: onbeat.stores.sqlite.database:WAITING\n"
    )


def test_unknown_name_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--only", "nonsense"])
    assert "no mutant has 'nonsense' in its name" in capsys.readouterr().err


MODULE = '''
from pathlib import Path

LIMIT = 5  # a comment
SQL = f"""SELECT 'UPDATE a'
  FROM {LIMIT} WHERE a = 1
   AND b = 2"""


class Queue:
    """It has a limit."""

    def add(self, run, now):
        """Add a run."""
        self.check(run)
        if run.is_late and (
            run.due_at < now - 5
        ):
            return None
        self.runs.append(run)
        return self.name("Add a run.", run, key=now)

    async def stop(self):
        await self.done
'''
ADD = "example:Queue.add"


def changed(place, edit):
    module = ast.parse(MODULE)
    mutant = Mutant("a defect", place, edit)
    body, n = mutant.find(module)
    return ast.unparse(mutant.changed(body[n]))


@pytest.mark.parametrize(
    ("place", "edit", "line"),
    [
        (ADD, replace("$RUN.due_at < $NOW - 5", "$RUN.due_at < $NOW"), "run.is_late and run.due_at < now:"),
        (ADD, replace("$RUN.is_late and ...", "not $RUN.is_late"), "if not run.is_late:"),
        (ADD, replace("self.name(..., key=$KEY)", "$KEY"), "return now\n"),
        (ADD, replace("self.name(..., run, ...)", "run"), "return run\n"),
        (ADD, replace("run", "now", everywhere=True), "self.check(now)"),
        (ADD, delete("if $LATE: ..."), "self.check(run)\n    self.runs.append(run)"),
        (ADD, delete("return None"), "now - 5:\n        pass\n"),
        (ADD, replace("self.check($RUN)\nif $LATE: ...", "self.check(None)"), "self.check(None)\n    self.runs"),
        (ADD, insert_before("$RUNS.append(...)", "$RUNS.clear()"), "self.runs.clear()\n    self.runs.append"),
        (ADD, insert_after("$RUNS.append(...)", "$RUNS.clear()"), "self.runs.append(run)\n    self.runs.clear()"),
        (ADD, replace('"Add a run."', "None"), "self.name(None, run"),
        ("example:Queue.stop", replace("await $DONE", "$DONE"), "\n    self.done"),
        ("example:Queue", replace("self.runs", "self.all"), "self.all.append"),
        ("example:LIMIT", replace("5", "6"), "LIMIT = 6"),
        ("example:SQL", replace_sql("a = 1 AND b = 2", "a = 3"), "WHERE a = 3"),
    ],
)  # fmt: skip
def test_edit_changes_what_its_pattern_matches(place, edit, line):
    assert line in changed(place, edit) + "\n"


@pytest.mark.parametrize(
    ("place", "edit", "message"),
    [
        ("example:Queue.remove", delete("self.check(...)"), "Queue.remove: remove is defined 0 times"),
        ("example:Path", replace("5", "6"), "Path is defined 0 times"),
        ("example:Row.add", delete("self.check(...)"), "Row is defined 0 times"),
        (ADD, replace("run.is_early", "True"), "Queue.add: the pattern matches 0 times: run.is_early"),
        (ADD, replace("run", "now"), "matches 5 times: run"),
        (ADD, replace("$ONE.is_late and $ONE < ...", "True"), "matches 0 times"),
        (ADD, replace("self.name($TEXT, $RUN)", "None"), "matches 0 times"),
        (ADD, delete("if $LATE: pass"), "matches 0 times"),
        ("example:LIMIT", replace("True", "6"), "matches 0 times"),
        ("example:SQL", replace_sql("a = 1 AND c = 2", ""), "matches 0 times"),
        ("example:Queue", replace_sql("It has", "It had"), "matches 0 times"),
    ],
)  # fmt: skip
def test_mutant_without_its_place_is_an_error(place, edit, message):
    with pytest.raises(MutantError, match=re.escape(message)) as raised:
        changed(place, edit)
    assert str(raised.value).startswith("a defect: ")


def test_mutated_module_is_written(tmp_path):
    (tmp_path / "example").mkdir()
    (tmp_path / "example" / "__init__.py").write_text(MODULE)
    (tmp_path / "example" / "other.py").write_text("LIMIT = 1")
    plant(Mutant("a defect", "example:LIMIT", replace("5", "6")), tmp_path)
    plant(Mutant("a defect", "example.other:LIMIT", replace("1", "2")), tmp_path)
    assert (tmp_path / "example" / "__init__.py").read_text().splitlines()[1] == "LIMIT = 6"
    assert (tmp_path / "example" / "other.py").read_text() == "LIMIT = 2"
    with pytest.raises(MutantError, match="a defect: there is no module"):
        plant(Mutant("a defect", "example.third:LIMIT", replace("1", "2")), tmp_path)
