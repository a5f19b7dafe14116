"""Create and update `.venv` with the standard library only: `python3 tools/bootstrap.py run`.

`run`, `dev`, `bench` and `ray` install the hashed requirements of that name, and this project as
editable. `lock` resolves those requirements again. pip is that of the machine or of `ensurepip`.
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
GROUPS = {"dev": ["build", "dev"], "run": ["build"], "bench": ["bench"], "ray": []}
EXTRAS = {"dev": ["server", "agents"], "run": ["server", "agents"], "bench": [], "ray": ["ray"]}


def main(what: str) -> None:
    """Install the named requirements, or lock all of them."""
    if sys.version_info < (3, 11):  # noqa: UP036 - the caller's Python may be older
        sys.exit(
            f"Onbeat needs Python 3.11 or newer, this is {sys.version.split()[0]}: make PYTHON=..."
        )
    if not PYTHON.exists():
        say(f"creating .venv with Python {sys.version.split()[0]}")
        venv.EnvBuilder(symlinks=True).create(VENV)
    pip = find_pip()
    if what == "lock":
        lock(pip)
        return
    say(f"installing requirements/{what}.txt")
    run(*pip, "install", "--quiet", "--require-hashes", "--requirement", f"requirements/{what}.txt")
    run(*pip, "install", "--quiet", "--no-deps", "--no-build-isolation", "--editable", ".")
    (VENV / f"{what}.stamp").touch()


def find_pip() -> list[str]:
    """Return the command of a pip that installs into `.venv`."""
    inside = [str(PYTHON), "-m", "pip"]
    if works(*inside, "--version"):
        return inside
    outside = [sys.executable, "-m", "pip", "--python", str(PYTHON)]
    if works(*outside, "--version"):  # `--python` needs pip 22.3
        return outside
    if works(str(PYTHON), "-m", "ensurepip"):
        return inside
    sys.exit("Neither pip nor ensurepip was found. On Debian: apt-get install python3-pip")


def lock(pip: list[str]) -> None:
    """Resolve the requirements of each group again, with hashes and without a registry URL."""
    run(*pip, "install", "--quiet", "uv")
    for name, groups in GROUPS.items():
        say(f"resolving requirements/{name}.txt")
        command = [
            str(VENV / "bin" / "uv"),
            "pip",
            "compile",
            "pyproject.toml",
            "--quiet",
            "--upgrade",
        ]
        command += [f"--group={group}" for group in groups]
        command += [f"--extra={extra}" for extra in EXTRAS[name]]
        command += ["--universal", "--python-version=3.11", "--generate-hashes"]
        command += [
            "--no-emit-index-url",
            "--no-emit-find-links",
            "--custom-compile-command=make lock",
        ]
        if name != "dev" and (ROOT / "requirements/dev.txt").exists():
            command += ["--constraint=requirements/dev.txt", "--no-annotate"]
        run(*command, f"--output-file=requirements/{name}.txt")


def works(*command: str) -> bool:
    """Return whether a command succeeds, without showing its output."""
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def run(*command: str) -> None:
    """Run a command, and exit with its code if that is not 0."""
    environment = os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    if ended.returncode:
        sys.exit(ended.returncode)


def say(text: str) -> None:
    """Print the current step."""
    sys.stderr.write(f"bootstrap: {text}\n")


if __name__ == "__main__":
    main(sys.argv[1])
