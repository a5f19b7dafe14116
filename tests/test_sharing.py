"""Several processes share the tests: each module is run by one of them, and nothing is left out."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = ("one/test_a.py", "one/test_b.py", "two/test_a.py", "two/test_b.py", "test_c.py")
TEST = """\
import pathlib
import pytest

@pytest.mark.parametrize("n", range(20))
def test_it_is_run(n):
    with pathlib.Path({ran!r}).open("a") as ran:
        ran.write(f"{module} {{n}}\\n")
"""


@pytest.fixture
def folder(tmp_path):
    """Tests that write down that they were run, and an empty folder in which modules are taken."""
    for module in MODULES:
        path = tmp_path / "some" / module
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(TEST.format(ran=str(tmp_path / "ran"), module=module))
    (tmp_path / "taken").mkdir()
    (tmp_path / "ran").touch()
    return tmp_path


def started(folder):
    command = [sys.executable, "-m", "pytest", "-p", "tests.sharing", "-p", "no:cacheprovider"]
    command += [f"--taken={folder / 'taken'}", f"--rootdir={folder}", str(folder / "some")]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip


def ran(folder):
    return sorted((folder / "ran").read_text().splitlines())


def all_of(*modules):
    return sorted(f"{module} {n}" for module in modules for n in range(20))


def test_two_processes_run_every_test_once(folder):
    processes = [started(folder) for _ in range(2)]
    told = [each.communicate()[0].decode() for each in processes]
    assert [each.returncode for each in processes] == [0, 0], told
    assert ran(folder) == all_of(*MODULES)


def test_a_module_that_another_process_has_taken_is_left_to_it(folder):
    for name in ("some.one.test_b.py", "some.two.test_a.py"):
        (folder / "taken" / name).touch()
    process = started(folder)
    told = process.communicate()[0].decode()
    assert process.returncode == 0, told
    assert "60 passed" in told
    assert ran(folder) == all_of("one/test_a.py", "two/test_b.py", "test_c.py")


def test_a_test_that_fails_makes_its_process_fail(folder):
    with (folder / "some" / "one" / "test_b.py").open("a") as module:
        module.write("\ndef test_wrong(): assert False\n")
    process = started(folder)
    assert b"1 failed, 100 passed" in process.communicate()[0]
    assert process.returncode == 1


def test_a_module_that_cannot_be_read_stops_them_all(folder):
    (folder / "some" / "one" / "test_d.py").write_text("import nothing_of_this_name")
    process = started(folder)
    assert b"not everything can be collected" in process.communicate()[0]
    assert process.returncode == 2
    assert ran(folder) == []


def test_what_runs_alone_is_there():
    alone = runpy.run_path(str(ROOT / "tools" / "test.py"))["ALONE"]
    assert [path for path in alone if not (ROOT / path).exists()] == []
