"""The rules that keep the house in order: who imports whom, what the core may touch, how big a file is."""

import ast
import re
import sys
import tomllib
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "onbeat"
MODULES = sorted(PACKAGE.rglob("*.py"))
CORE = sorted((PACKAGE / "core").glob("*.py"))

# What a pure function needs of the standard library. `pkgutil` reads the zone data, which is code.
PURE = {
    "abc", "bisect", "calendar", "collections", "dataclasses", "datetime", "difflib", "enum", "functools",
    "hashlib", "itertools", "math", "operator", "pkgutil", "re", "struct", "types", "typing",
}  # fmt: skip
IMPURE_CALLS = {"open", "print", "input", "exec", "eval", "compile", "__import__"}
CLOCKS = {"now", "utcnow", "today"}

# Lower layers first: a module imports its own layer and those before it.
LAYERS = [
    {"errors"},
    {"core"},
    {"events", "regular"},
    {"records", "access"},
    {"changes"},
    {"ports"},
    {"engine", "references", "signing", "surely"},
    {"tokens"},
    {"queries", "simulate", "telling"},
    {"service"},
    {"waits"},
    {
        "settings",
        "logs",
        "metrics",
        "testing",
        "sources",
        "launchers",
        "notifiers",
        "stores",
        "systems",
    },
    {"notify"},
    {"peers"},
    {"opened"},
    {"hosting"},
    {"app", "doctor"},
    {"agents"},
    {"web"},
    {"cli", "__main__"},
]
ADAPTERS = {"launchers", "notifiers", "stores", "sources"}
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
def test_the_core_imports_nothing_that_could_touch_the_world(path):
    for module in imports(path):
        top = module.partition(".")[0]
        if top == "onbeat":
            assert module.startswith(("onbeat.core", "onbeat.errors")), module
        else:
            assert top in PURE | {"msgspec", "tzdata"}, module
        if top == "pkgutil":
            assert path.name == "zones.py"


@pytest.mark.parametrize("path", CORE, ids=name_of)
def test_the_core_reads_no_clock_and_calls_nothing_impure(path):
    for node in ast.walk(tree(path)):
        assert not isinstance(node, (ast.AsyncFunctionDef, ast.Await, ast.Global))
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name):
                assert called.id not in IMPURE_CALLS, called.id
            if isinstance(called, ast.Attribute):
                assert called.attr not in CLOCKS, f"line {node.lineno}: {called.attr}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_imports_only_its_own_layer_and_those_below(path):
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if own == "__init__":
        return  # the public names, from wherever they live
    level = next(i for i, layer in enumerate(LAYERS) if own in layer)
    allowed = set().union(*LAYERS[: level + 1])
    for module in imports(path):
        if module.startswith("onbeat."):
            assert module.split(".")[1] in allowed, module


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_an_adapter_imports_no_other_adapter_and_a_surface_no_store(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    for module in imports(path):
        other = module.split(".")[1:3]
        if parts[0] in ADAPTERS and other[:1] and other[0] in ADAPTERS:
            shared = parts[0] == other[0] == "sources" or tuple(other) == ("stores", "sql")
            assert shared or tuple(other) == parts[:2], module
        if parts[0] == "cli":
            assert other[:1] != ["stores"], module
        if parts[0] in ("engine", "service"):
            assert not ADAPTERS & set(other[:1]), module


def test_a_system_knows_the_use_cases_and_the_core_and_no_other_system():
    for path in sorted((PACKAGE / "systems").rglob("*.py")):
        own = path.relative_to(PACKAGE).parts[1]
        for module in imports(path):
            known = (
                "core",
                "errors",
                "events",
                "ports",
                "records",
                "regular",
                "queries",
                "service",
                "telling",
                "systems.wording",
                "systems.beside",
                "systems.offers",
                "systems.whole",
                f"systems.{own}",
            )
            if module.startswith("onbeat."):
                assert module.removeprefix("onbeat.").startswith(known), f"{path}: {module}"


def test_only_the_command_line_and_the_root_read_the_environment_and_the_clock():
    for path in MODULES:
        text = path.read_text()
        if "os.environ" in text:
            assert name_of(path) in {
                "app/onbeat.py",
                "app/opened.py",
                "app/notifications.py",
                "cli/session.py",
                "cli/supervisor.py",
            }
        if re.search(r"\btime\.time(_ns)?\(|datetime\.now\(", text):
            assert name_of(path) in {"app/opened.py", "cli/next.py"}


def test_an_optional_dependency_is_imported_in_one_file_or_folder_of_its_own():
    for package in OPTIONAL:
        users = [
            path for path in MODULES if package in {m.partition(".")[0] for m in imports(path)}
        ]
        folders = {path.parent for path in users}
        own = len(users) == 1 or folders in (
            {PACKAGE / "stores/postgres"},
            {PACKAGE / "launchers/ray"},
            {PACKAGE / "systems/agents"},
        )
        assert users, package
        assert own, (package, users)


def test_what_is_imported_is_declared():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*declared["dependencies"], *chain(*declared["optional-dependencies"].values())]
    names = {line.split(">")[0].split("<")[0].split("[")[0] for line in asked}
    third_party = {m.partition(".")[0] for path in MODULES for m in imports(path)}
    third_party -= {"onbeat", *sys.stdlib_module_names}
    distributed_as = {"yaml": "pyyaml", "jwt": "pyjwt", "prometheus_client": "prometheus-client"}
    assert {distributed_as.get(name, name) for name in third_party} <= names


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_fits_in_a_reader_s_head(path):
    assert len(path.read_text().splitlines()) < 600
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, f"{node.name} is longer than a screen"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_says_what_it_is_for(path):
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
