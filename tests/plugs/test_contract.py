"""The launcher of an installed package passes the contract, and without a bench a test names it."""

import os
import subprocess
import sys
from pathlib import Path

from tests.plugs.conftest import TOYS

ROOT = Path(__file__).parents[2]
EVERY_KIND = "tests/launchers/test_contract.py::test_every_installed_kind_has_a_bench"


def play(packages, *words):
    """Run tests in a process in which the toys are installed; return the code and the output."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(packages), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, words)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_launcher_of_a_package_passes_the_contract(packages):
    code, output = play(packages, TOYS / "contract_bell.py", EVERY_KIND)
    assert code == 0, output


def test_kind_of_a_package_without_a_bench_is_named(packages):
    code, output = play(packages, EVERY_KIND)
    assert code == 1, output
    assert "['bell']" in output
