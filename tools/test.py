"""Run every test, on all cores: `make test`; or those of Ray: `make ray`.

Several pytest processes share the tests, module by module. What measures how late or how fast
something is, and what kills nodes, runs when they are done, alone: beside others it would measure
those. So does Ray, which also gets a network of its own.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTEST = [sys.executable, "-m", "pytest"]
INTERRUPTED = 2  # by Ctrl-C, or since not everything can be collected
MOST = 4  # processes: each has a PostgreSQL server of its own
ALONE = (
    "tests/chaos",
    "tests/nodes/test_failover.py",
    "tests/nodes/test_nodes.py",
    "tests/notifiers/test_delivery.py",
    "tests/policies/test_on_real_time.py",
    "tests/systems/sessions/test_killed.py",
    "tests/web/test_definitions.py",
)


RAY = "tests/ray"
# Ray listens at every address that it finds: it gets a network that has nothing but `lo`, and all
# that it starts ends with the tests.
APART = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
WITH_LO = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


def main() -> int:
    """Return 0 if every test passed, or else the code of a process that had something to say."""
    with tempfile.TemporaryDirectory(prefix="onbeat-tests-") as folder:
        codes = share(Path(folder), min(os.cpu_count() or 1, MOST))
    if INTERRUPTED not in codes:
        codes.append(subprocess.run([*PYTEST, *ALONE], cwd=ROOT, check=False).returncode)
        codes.append(on_ray())
    return next((code for code in codes if code), 0)


def share(folder: Path, processes: int) -> list[int]:
    """Run what can run side by side; return how each process ended.

    The first one tells what it does while it does it, the others when all are done.
    """
    command = [*PYTEST, "-p", "tests.sharing", f"--taken={folder}"]
    command += [
        "-o",
        "console_output_style=classic",
        *(f"--ignore={path}" for path in (*ALONE, RAY)),
    ]
    first = subprocess.Popen(command, cwd=ROOT)
    outputs = [folder / f"output {n}" for n in range(1, processes)]
    others = [start(command, output) for output in outputs]
    with suppress(KeyboardInterrupt):  # which they hear as well, and come to an end by
        first.wait()
    codes = [each.wait() for each in (first, *others)]
    for output in outputs:
        sys.stdout.write(output.read_text(errors="replace"))
        sys.stdout.flush()
    return codes


def on_ray() -> int:
    """Run the tests of Ray apart from the rest; where that cannot be, they say why not."""
    trial = [*APART, *WITH_LO, "true"]
    can = shutil.which("unshare") and subprocess.run(trial, check=False).returncode == 0
    command = [*(APART if can else []), *(WITH_LO if can else []), *PYTEST, "-rs", RAY]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def start(command: list[str], output: Path) -> "subprocess.Popen[bytes]":
    """Start a process that writes to this file what it has to tell."""
    with output.open("wb") as file:
        return subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)


if __name__ == "__main__":
    sys.exit(on_ray() if sys.argv[1:] == ["ray"] else main())
