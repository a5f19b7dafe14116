"""A launcher and a system as an installed package."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

TOYS = Path(__file__).parent / "toys"


@pytest.fixture(scope="session")
def packages(tmp_path_factory):
    """A folder with the toys as an installer unpacks their wheel."""
    wheels, installed = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("packages")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    subprocess.run(build, cwd=TOYS, check=True, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    return installed
