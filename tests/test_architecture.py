"""Rules of the architecture: imports between layers, purity of the core, sizes of modules."""

import ast
import re
import sys
import tomllib
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

from onbeat.core.target_kinds import KINDS
from onbeat.host.plugs import plugs

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "onbeat"
MODULES = sorted(PACKAGE.rglob("*.py"))
CORE = sorted((PACKAGE / "core").rglob("*.py"))
STORES = sorted((PACKAGE / "stores").rglob("*.py"))

# What a pure function needs of the standard library. `pkgutil` reads the zone data, which is code.
PURE = {
    "abc", "bisect", "calendar", "collections", "dataclasses", "datetime", "difflib", "enum", "functools",
    "hashlib", "itertools", "math", "operator", "pkgutil", "re", "struct", "types", "typing",
}  # fmt: skip
IMPURE_CALLS = {"open", "print", "input", "exec", "eval", "compile", "__import__"}
CLOCKS = {"now", "utcnow", "today"}

# What the stores subscript by a number: lists of equal things, of which the first or last is meant.
NOT_ROWS = {
    "arrays[0]",  # the arrays of values that a statement binds
    "choices[-1]", "ticks[0]", "ticks[-1]", "own[0]", "own[-1]",  # ticks of a backfill, in order
    "segments[-1]",  # the part of a template that is being read
}  # fmt: skip

OPTIONAL = {"apprise", "holidays", "psycopg", "pydantic", "ray"}


@cache
def tree(path):
    return ast.parse(path.read_text())


@cache
def imports(path):
    return list(_imports(path))


def _imports(path):
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield node.module


def name_of(path):
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", CORE, ids=name_of)
def test_core_imports_no_module_with_side_effects(path):
    for module in imports(path):
        top = module.partition(".")[0]
        if top == "onbeat":
            assert module.startswith(("onbeat.core", "onbeat.errors")), module
        else:
            assert top in PURE | {"msgspec", "tzdata"}, module
        if top == "pkgutil":
            assert path.name == "zones.py"


@pytest.mark.parametrize("path", CORE, ids=name_of)
def test_core_is_pure(path):
    for node in ast.walk(tree(path)):
        assert not isinstance(node, (ast.AsyncFunctionDef, ast.Await, ast.Global))
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name):
                assert called.id not in IMPURE_CALLS, called.id
            if isinstance(called, ast.Attribute):
                assert called.attr not in CLOCKS, f"line {node.lineno}: {called.attr}"


def test_all_imports_are_absolute():
    assert all(list(imports(path)) is not None for path in MODULES)  # `imports` asserts it


def test_package_has_at_most_six_top_level_modules():
    loose = sorted(path.name for path in PACKAGE.glob("*.py"))
    assert len(loose) <= 6, loose


def test_no_module_is_named_by_a_gerund():
    gerunds = [name_of(path) for path in MODULES if path.stem.endswith("ing")]
    assert gerunds == ["testing.py"]


def test_no_two_public_classes_share_a_name():
    homes = {}
    for path in MODULES:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(name_of(path))
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


@pytest.mark.parametrize("path", [p for p in MODULES if p.name == "__init__.py"], ids=name_of)
def test_package_init_is_short(path):
    assert len(path.read_text().splitlines()) <= 60


def test_environment_and_clock_are_read_only_at_the_edges():
    for path in MODULES:
        text = path.read_text()
        if "os.environ" in text:
            assert name_of(path) in {
                "app/onbeat.py",
                "app/peers.py",
                "app/parts.py",
                "app/notifications.py",
                "cli/completion.py",
                "cli/runtime.py",
                "cli/supervisor.py",
                "cli/up.py",
                "cli/terminal.py",
                "host/local_zone.py",
            }
        if re.search(r"\btime\.time(_ns)?\(|datetime\.now\(", text):
            assert name_of(path) in {"app/stores.py", "cli/next.py"}


# The layers that know adapters only by the capabilities that these declare.
UNAWARE = ("core", "engine", "ports", "stores", "service")
SAME_WORD = {  # a word that is also the name of a kind or of a plug, in another meaning
    ("core/web_origins.py", "http"),  # the scheme of a URL
    ("ports/rows.py", "session"), ("service/tokens.py", "session"),  # of a browser
    ("stores/sql/tokens.py", "session"),
    ("stores/sqlite/store.py", "flock"),  # a lock of a file
}  # fmt: skip
ADAPTERS_ONLY = {"flow", "flows", "flock", "ray", "kodosumi", "agents", "workflow", "workflows"}


def test_core_engine_stores_and_service_name_no_adapter():
    names = {plug.name for plug in plugs()} | {kind.name for kind in KINDS.all()} | ADAPTERS_ONLY
    paths = [path for layer in UNAWARE for path in (PACKAGE / layer).rglob("*.py")]
    found = set()
    for path in paths:
        for node in ast.walk(tree(path)):
            match node:
                case ast.Constant(str(text)) if text in names:
                    found.add((name_of(path), text))
                case ast.Name(text) | ast.Attribute(attr=text) | ast.arg(text):
                    for part in ADAPTERS_ONLY.intersection(text.lower().split("_")):
                        found.add((name_of(path), part))
    assert found == SAME_WORD


def test_optional_dependency_is_imported_in_one_place():
    for package in OPTIONAL:
        users = [
            path for path in MODULES if package in {m.partition(".")[0] for m in imports(path)}
        ]
        folders = {path.parent for path in users}
        own = len(users) == 1 or folders in (
            {PACKAGE / "stores/postgres"},
            {PACKAGE / "systems/ray"},
            {PACKAGE / "systems/agents"},
        )
        assert users, package
        assert own, (package, users)


def test_imported_packages_are_declared():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*declared["dependencies"], *chain(*declared["optional-dependencies"].values())]
    names = {line.split(">")[0].split("<")[0].split("[")[0] for line in asked}
    third_party = {m.partition(".")[0] for path in MODULES for m in imports(path)}
    third_party -= {"onbeat", *sys.stdlib_module_names}
    distributed_as = {"yaml": "pyyaml", "jwt": "pyjwt", "prometheus_client": "prometheus-client"}
    assert {distributed_as.get(name, name) for name in third_party} <= names


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_modules_and_functions_have_a_maximum_length(path):
    assert len(path.read_text().splitlines()) < 600
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, f"{node.name} is longer than a screen"


@pytest.mark.parametrize("path", STORES, ids=name_of)
def test_columns_of_a_row_are_named(path):
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Subscript) and _is_positional(node.slice):
            text = ast.unparse(node)
            assert text in NOT_ROWS, (
                f"line {node.lineno}: {text}: unpack the row, or name its columns"
            )


def _is_positional(index):
    """Return whether an index, or a bound of a slice, is written as a number."""
    parts = (index.lower, index.upper) if isinstance(index, ast.Slice) else (index,)
    numbers = [part.operand if isinstance(part, ast.UnaryOp) else part for part in parts]
    return any(isinstance(part, ast.Constant) and isinstance(part.value, int) for part in numbers)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_module_has_a_docstring(path):
    assert ast.get_docstring(tree(path))


def test_every_folder_has_content():
    for folder in PACKAGE.rglob("*"):
        if folder.is_dir() and folder.name != "__pycache__":
            assert [each for each in folder.iterdir() if each.name != "__pycache__"], folder


def test_requirements_are_hashed_and_name_no_registry():
    files = sorted((ROOT / "requirements").glob("*.txt"))
    assert files
    for file in files:
        text = file.read_text()
        assert "--hash=sha256:" in text
        assert "://" not in text
        pinned = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
        assert all("==" in line for line in pinned), file
