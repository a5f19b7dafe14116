"""Which test proves which requirement: only one of a system's own surface counts."""

import subprocess
import sys

import pytest

from tests import requirements


class Marked:
    """A test as pytest collects it, with the IDs that it carries."""

    def __init__(self, nodeid, *ids):
        self.nodeid, self._ids = nodeid, ids

    def iter_markers(self, name):
        return [pytest.mark.req(*self._ids).mark] if name == "req" else []


def test_every_requirement_is_proven_or_listed_exactly_once():
    command = [sys.executable, "-m", "pytest", "--collect-only", "--requirements"]
    done = subprocess.run(
        command, cwd=requirements.ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert (
        f" of {len(requirements.REQUIREMENTS)} proven by a test of their own surface" in done.stdout
    )


def test_mark_on_a_test_of_another_part_proves_nothing():
    items = [Marked("tests/core/test_cron.py::test_names", "K3")]
    assert requirements.proven(items) == {}
    assert any("K3 is marked on tests/core" in text for text in requirements.breaches(items))


def test_mark_on_a_test_of_the_own_surface_proves_it():
    items = [Marked("tests/systems/flows/test_exposes.py::test_a[1]", "K3")]
    assert requirements.proven(items) == {"K3": [("tests/systems/flows/test_exposes.py", "test_a")]}


def test_requirement_that_is_proven_and_listed_is_a_breach():
    items = [Marked("tests/systems/sessions/test_routes.py::test_a", "C14")]
    found = requirements.breaches(items)
    assert "C14 is listed in docs/origins.md and marked as proven" in found


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("assert 1", True),
        ("with pytest.raises(E): pass", True),
        ("helper()", True),
        ("print(1)", False),
    ],
)
def test_assertion_is_found_in_a_test_or_in_what_it_calls(tmp_path, monkeypatch, body, expected):
    (tmp_path / "t.py").write_text(f"def helper():\n    assert 1\n\ndef test_a():\n    {body}\n")
    monkeypatch.setattr(requirements, "ROOT", tmp_path)
    requirements._functions.cache_clear()
    assert requirements.asserts("t.py", "test_a") is expected
    requirements._functions.cache_clear()
