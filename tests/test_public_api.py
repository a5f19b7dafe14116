"""The public names: adding or removing one must change this test."""

import doctest
import subprocess
import sys

import onbeat


def test_exported_names_are_a_fixed_list():
    assert sorted(onbeat.__all__) == [
        "InvalidSchedule",
        "Onbeat",
        "OnbeatError",
        "after",
        "at",
        "calendar",
        "cron",
        "daily",
        "every",
        "startup",
    ]
    assert len(onbeat.__all__) <= 12


def test_every_exported_name_can_be_imported():
    for name in onbeat.__all__:
        assert getattr(onbeat, name) is not None
    assert not hasattr(onbeat, "corn")


def test_example_in_the_docstring_passes():
    assert doctest.testmod(onbeat).failed == 0
    assert doctest.testmod(onbeat).attempted > 0


def test_import_of_onbeat_loads_no_submodule():
    code = "import sys, onbeat; print([m for m in sys.modules if m.startswith('onbeat.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
