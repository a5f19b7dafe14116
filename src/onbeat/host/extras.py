"""The command that installs a missing extra into the environment of this program."""

import json
import shlex
import shutil
import sys
from importlib.metadata import Distribution, PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit


def install_command(extra: str) -> str:
    """Return the shell command that installs an extra of Onbeat here: `... 'onbeat[postgres]'`."""
    return shlex.join(install_arguments(*_requirement(extra)))


def upgrade_command(package: str) -> str:
    """Return the shell command that upgrades a package here."""
    return shlex.join(install_arguments("--upgrade", package))


def install_arguments(*what: str) -> list[str]:
    """Return an install command for the environment of this program, with or without pip in it."""
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install", *what]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--python", sys.executable, *what]
    # The Python that a virtual environment was made from: `python3` may be the one without pip.
    base = getattr(sys, "_base_executable", "") or "python3"
    outside = base if base != sys.executable else "python3"
    return [outside, "-m", "pip", "--python", sys.executable, "install", *what]


def _requirement(extra: str) -> list[str]:
    """Return what to install: this checkout if Onbeat is installed from one, else the package."""
    folder = _checkout()
    return [f"onbeat[{extra}]"] if folder is None else ["-e", f"{folder}[{extra}]"]


def _checkout() -> Path | None:
    """Return the folder that Onbeat was installed from in place, if it was."""
    try:
        text = Distribution.from_name("onbeat").read_text("direct_url.json")
    except PackageNotFoundError:
        return _source_folder()
    origin = json.loads(text) if text else {}
    is_editable = origin.get("dir_info", {}).get("editable", False)
    return Path(unquote(urlsplit(origin["url"]).path)) if is_editable else None


def _source_folder() -> Path | None:
    """Return the folder of a checkout that is run without being installed."""
    folder = Path(__file__).resolve().parents[3]
    return folder if (folder / "pyproject.toml").is_file() else None
