"""The three gears of the tests: their paths exist, and no test waits for a length of time."""

import ast
import math
import operator
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests"
GEARS = runpy.run_path(str(ROOT / "tools" / "test.py"))
# Real nodes and clusters are killed there in real time; the simulator's time is virtual.
MAY_SLEEP = ("chaos", "nodes", "ray", "soak", "sim")
TOO_LONG = 0.1  # seconds
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}  # fmt: skip


def test_every_path_that_a_gear_names_exists():
    named = (*GEARS["QUICK"], *GEARS["ALONE"], GEARS["RAY"])
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_no_test_module_runs_twice_in_make_test():
    apart = [*GEARS["ALONE"], GEARS["RAY"]]
    assert not [(one, two) for one in apart for two in apart if one.startswith(f"{two}/")]


def modules_that_may_not_sleep():
    for path in sorted(TESTS.rglob("*.py")):
        if path.relative_to(TESTS).parts[0] not in MAY_SLEEP:
            yield path


def long_sleeps(text):
    """Return the lines with a sleep that is too long, or of which that cannot be read."""
    tree = ast.parse(text)
    values = named_values(tree)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return sorted(
        call.lineno
        for call in calls
        if name_of(call.func) == "sleep" and call.args and longest(call.args[0], values) >= TOO_LONG
    )


def name_of(function):
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def named_values(tree):
    """Return what each name of a module is assigned, or takes on in a loop."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.For):
            targets, value = [node.target], node.iter
        else:
            continue
        for target in targets:
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = list(zip(target.elts, value.elts, strict=False))
            for name, each in pairs:
                if isinstance(name, ast.Name):
                    found.setdefault(name.id, []).append(each)
    return found


def longest(node, values):
    """Return the greatest value that an expression can have, or infinity if it cannot be read."""
    match node:
        case ast.Constant(value=float() | int() as value):
            return value
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return max(longest(part, values) for part in parts)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](longest(left, values), longest(right, values))
        case ast.Call(func=ast.Attribute(attr="choice"), args=[options]):
            return longest(options, values)
        case ast.Name(id=name) if name in values:
            less = {other: value for other, value in values.items() if other != name}
            return max(longest(each, less) for each in values[name])
    return math.inf


@pytest.mark.parametrize(
    "path", list(modules_that_may_not_sleep()), ids=lambda path: str(path.relative_to(TESTS))
)
def test_no_test_module_sleeps_for_a_tenth_of_a_second(path):
    assert long_sleeps(path.read_text()) == [], "wait for a condition: tests/waiting.py has helpers"


@pytest.mark.parametrize(
    ("text", "is_refused"),
    [
        ("sleep(0.1)", True),
        ("time.sleep(0.09)", False),
        ("asyncio.sleep(60)", True),
        ("asyncio.sleep(0)", False),
        ("asyncio.sleep(longest)", True),
        ("SOON = 0.05\nasyncio.sleep(SOON)", False),
        ("A, SOON = 1, 0.05\nasyncio.sleep(SOON)", False),
        ("SOON = 0.05\nasyncio.sleep(3 * SOON)", True),
        ("MS = 20\nasyncio.sleep(2 * MS / 1000)", False),
        ("for n in (0, 0.02):\n    sleep(n)", False),
        ("for n in (0, 0.2):\n    sleep(n)", True),
        ("sleep(rng.choice([0, 0.2]))", True),
        ("sleep(rng.choice([0, 0.02]))", False),
        ("process.sleep", False),
    ],
)
def test_sleep_lengths_are_found_in_constants_and_loops(text, is_refused):
    assert bool(long_sleeps(text)) is is_refused
