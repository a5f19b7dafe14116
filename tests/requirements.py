"""Which requirement is proven by which test: the rules of `make requirements`.

A requirement belongs to one of the five systems. It is proven only by a test of that system's own
surface that carries its ID and asserts something. What is met in another way is listed once in
docs/origins.md, with the test that shows the equivalent; what is not met yet is listed there as
open. Every ID is exactly one of the three.
"""

import ast
import json
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent
ORIGINS = ROOT / "docs" / "origins.md"
REQUIREMENTS = json.loads((TESTS / "data" / "requirements.json").read_text())

# The tests that use a system as its users do, by the first letter of its requirements.
SURFACES = {
    "K": ("tests/systems/flows/", "tests/ray/test_flows.py", "tests/peers/test_kodosumi.py"),
    "F": ("tests/systems/agents/", "tests/peers/test_flock.py"),
    "C": ("tests/systems/sessions/",),
    "S": ("tests/systems/services/",),
    "W": ("tests/systems/workflows/", "tests/ray/test_dag.py"),
}


def is_of_surface(name, path):
    """Return whether a test file uses the system that a requirement belongs to."""
    return path.startswith(SURFACES[name[0]])


def marked(items):
    """Return the tests that carry each ID, whatever they are tests of: sets of (path, test)."""
    found = defaultdict(set)
    for item in items:
        path, _, test = item.nodeid.partition("[")[0].partition("::")
        for name in ids(item):
            found[name].add((path, test))
    return found


def proven(items):
    """Return the tests of its own surface that prove each ID."""
    found = {}
    for name, tests in marked(items).items():
        own = sorted(each for each in tests if is_of_surface(name, each[0]))
        if own:
            found[name] = own
    return found


def ids(item):
    """Return the IDs that a test carries."""
    return [name for mark in item.iter_markers("req") for name in mark.args]


def listed(heading):
    """Return the IDs in the table under a heading of docs/origins.md, as often as they are there."""
    _, _, rest = ORIGINS.read_text().partition(f"## {heading}\n")
    rows = re.findall(r"^\| ([A-Z0-9, ]+) \|", rest.partition("\n## ")[0], re.MULTILINE)
    return [name for row in rows for name in row.split(", ") if name in REQUIREMENTS]


def report(items):
    """Return the lines that `make requirements` prints."""
    found, otherwise, still_open = proven(items), listed("Met in another way"), listed("Open")
    lines = []
    for name, wanted in REQUIREMENTS.items():
        state = "unproven"
        if name in found:
            state = "proven"
        elif name in otherwise:
            state = "otherwise"
        elif name in still_open:
            state = "open"
        lines.append(f"{name:4} {state:9}  {wanted['text']}")
        lines += [f"{'':15} {path}::{test}" for path, test in found.get(name, ())]
        if state in ("otherwise", "open"):
            lines.append(f"{'':15} docs/origins.md")
    counts = f"{len(found)} of {len(REQUIREMENTS)} proven by a test of their own surface"
    lines.append(f"\n{counts}, {len(set(otherwise))} met in another way, {len(still_open)} open")
    return lines


def breaches(items):
    """Return what is wrong with the accounting, one sentence each."""
    found, otherwise, still_open = proven(items), listed("Met in another way"), listed("Open")
    told = [*otherwise, *still_open]
    wrong = [
        f"{name} is listed twice in docs/origins.md" for name in set(told) if told.count(name) > 1
    ]
    wrong += [
        f"{name} is listed in docs/origins.md and marked as proven"
        for name in found.keys() & set(told)
    ]
    wrong += [
        f"{name} is neither proven by a test of its own surface nor listed in docs/origins.md"
        for name in REQUIREMENTS
        if name not in found and name not in told
    ]
    wrong += [
        f"{name} is marked on {path}::{test}, which is not a test of its system's surface"
        for name, tests in marked(items).items()
        for path, test in tests
        if not is_of_surface(name, path)
    ]
    wrong += [
        f"{path}::{test} carries an ID and asserts nothing"
        for path, test in {each for tests in found.values() for each in tests}
        if not asserts(path, test)
    ]
    return sorted(wrong)


def asserts(path, test):
    """Return whether a test has an assertion, in itself or in a function of its module it calls."""
    functions = _functions(path)
    seen, waiting = set(), [test.rpartition("::")[2]]
    while waiting:
        name = waiting.pop()
        if name in seen or name not in functions:
            continue
        seen.add(name)
        for node in ast.walk(functions[name]):
            if isinstance(node, ast.Assert):
                return True
            if isinstance(node, ast.Call):
                called = (
                    node.func.attr
                    if isinstance(node.func, ast.Attribute)
                    else getattr(node.func, "id", "")
                )
                if called in ("raises", "fail") or called.startswith("assert_"):
                    return True
                waiting.append(called)
    return False


@cache
def _functions(path):
    tree = ast.parse((ROOT / path).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name: node for node in ast.walk(tree) if isinstance(node, kinds)}
