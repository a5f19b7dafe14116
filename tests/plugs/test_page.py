"""The page about plugs shows a package that works."""

import stat
import subprocess
import sys
import zipfile

import pytest

from tests.docs.examples import ROOT, File, run_page, steps_of
from tests.docs.forks import BIN

PAGE = ROOT / "docs" / "howto" / "plug.md"


@pytest.fixture
def program(tmp_path):
    """A program `onbeat` that has the package of the page."""
    source, installed = tmp_path / "source", tmp_path / "installed"
    for step in steps_of(PAGE):
        if isinstance(step, File):
            path = source / step.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(step.text)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    program = tmp_path / "bin" / "onbeat"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{installed}" exec "{BIN}/onbeat" "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def test_package_of_the_page_is_installed_and_works(program):
    assert run_page(PAGE, program) > 0
