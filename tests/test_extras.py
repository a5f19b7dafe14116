"""The hint for a missing extra is a command that works in the environment it is shown in."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from onbeat.host import extras
from onbeat.host.extras import install_command, upgrade_command

ROOT = Path(__file__).parent.parent


class Installed:
    """A distribution that was installed from somewhere."""

    def __init__(self, origin):
        self.origin = origin

    def read_text(self, name):
        assert name == "direct_url.json"
        return None if self.origin is None else json.dumps(self.origin)


@pytest.fixture(autouse=True)
def from_an_index(monkeypatch):
    monkeypatch.setattr(extras.Distribution, "from_name", lambda _: Installed(None))


@pytest.fixture
def environment(monkeypatch):
    """Set which of pip and uv there are, and which Python the environment was made from."""

    def environment(*, pip=False, uv=None, base="/usr/bin/python3.12"):
        monkeypatch.setattr(extras, "find_spec", lambda name: (name == "pip" and pip) or None)
        monkeypatch.setattr(extras.shutil, "which", lambda name: uv if name == "uv" else None)
        monkeypatch.setattr(sys, "executable", "/home/me/my app/.venv/bin/python")
        monkeypatch.setattr(sys, "_base_executable", base)

    return environment


PYTHON = "/home/me/my app/.venv/bin/python"


def test_install_uses_pip_of_the_environment(environment):
    environment(pip=True, uv="/usr/bin/uv")
    command = install_command("postgres")
    assert command == f"'{PYTHON}' -m pip install 'onbeat[postgres]'"
    assert shlex.split(command) == [PYTHON, "-m", "pip", "install", "onbeat[postgres]"]


def test_install_uses_uv_without_pip(environment):
    environment(uv="/usr/bin/uv")
    assert shlex.split(install_command("server")) == [
        "/usr/bin/uv", "pip", "install", "--python", PYTHON, "onbeat[server]",
    ]  # fmt: skip


def test_install_uses_pip_of_the_base_python_without_uv(environment):
    environment()
    assert shlex.split(install_command("ray")) == [
        "/usr/bin/python3.12", "-m", "pip", "--python", PYTHON, "install", "onbeat[ray]",
    ]  # fmt: skip


@pytest.mark.parametrize("base", [PYTHON, ""])
def test_install_names_python3_without_a_base_python(environment, base):
    environment(base=base)
    assert shlex.split(install_command("ray"))[:5] == ["python3", "-m", "pip", "--python", PYTHON]


def test_editable_checkout_is_installed_in_place(environment, monkeypatch):
    environment(pip=True)
    origin = {"url": "file:///home/me/on%20beat", "dir_info": {"editable": True}}
    monkeypatch.setattr(extras.Distribution, "from_name", lambda _: Installed(origin))
    what = shlex.split(install_command("notify"))[4:]
    assert what == ["-e", "/home/me/on beat[notify]"]


def test_wheel_is_not_installed_in_place(environment, monkeypatch):
    environment(pip=True)
    origin = {"url": "file:///tmp/onbeat-1.0-py3-none-any.whl", "archive_info": {}}
    monkeypatch.setattr(extras.Distribution, "from_name", lambda _: Installed(origin))
    assert shlex.split(install_command("notify"))[4:] == ["onbeat[notify]"]


def test_uninstalled_checkout_is_installed_in_place(environment, monkeypatch):
    environment(pip=True)

    def missing(name):
        raise extras.PackageNotFoundError(name)

    monkeypatch.setattr(extras.Distribution, "from_name", missing)
    assert shlex.split(install_command("notify"))[4:] == ["-e", f"{ROOT}[notify]"]


def test_upgrade_uses_the_same_environment(environment):
    environment(uv="/usr/bin/uv")
    assert shlex.split(upgrade_command("tzdata")) == [
        "/usr/bin/uv", "pip", "install", "--python", PYTHON, "--upgrade", "tzdata",
    ]  # fmt: skip


def test_install_command_of_this_environment_works():
    command = shlex.split(install_command("postgres"))
    version = command[: command.index("install")]
    done = subprocess.run([*version, "--version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_hint_names_plain_pip():
    sources = (ROOT / "src").rglob("*.py")
    wrong = [path for path in sources if '"pip install' in path.read_text()]
    wrong += [path for path in (ROOT / "src").rglob("*.py") if "(pip install" in path.read_text()]
    assert wrong == []
