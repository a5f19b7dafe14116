"""Run every test on all cores (`make test`), or the tests of Ray (`make ray`).

Several pytest processes share the tests, module by module. Tests that measure lateness or speed,
or kill nodes, run alone afterwards: other tests would disturb the measurement. The tests of Ray
run alone too, in a separate network namespace.
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
INTERRUPTED = 2  # by Ctrl-C, or by an error of collection
MOST = 4  # processes: each has its PostgreSQL server
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
# Ray listens on every address it finds: it gets a network with only `lo`, and every process it
# starts ends with the tests.
APART = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
WITH_LO = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


def main() -> int:
    """Return 0 if every test passed, else the exit code of a process that failed."""
    with tempfile.TemporaryDirectory(prefix="onbeat-tests-") as folder:
        codes = share(Path(folder), min(os.cpu_count() or 1, MOST))
    if INTERRUPTED not in codes:
        codes.append(subprocess.run([*PYTEST, *ALONE], cwd=ROOT, check=False).returncode)
        codes.append(on_ray())
    return next((code for code in codes if code), 0)


def share(folder: Path, processes: int) -> list[int]:
    """Run the tests that can run in parallel, and return the exit codes.

    The first process prints while it runs; the output of the others follows at the end.
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
    with suppress(KeyboardInterrupt):  # the processes receive it too, and end
        first.wait()
    codes = [each.wait() for each in (first, *others)]
    for output in outputs:
        sys.stdout.write(output.read_text(errors="replace"))
        sys.stdout.flush()
    return codes


def on_ray() -> int:
    """Run the tests of Ray in isolation; without `unshare` they are skipped with the reason."""
    trial = [*APART, *WITH_LO, "true"]
    is_possible = shutil.which("unshare") and subprocess.run(trial, check=False).returncode == 0
    command = [
        *(APART if is_possible else []),
        *(WITH_LO if is_possible else []),
        *PYTEST,
        "-rs",
        RAY,
    ]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def start(command: list[str], output: Path) -> "subprocess.Popen[bytes]":
    """Start a process with its output in a file."""
    with output.open("wb") as file:
        return subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)


if __name__ == "__main__":
    sys.exit(on_ray() if sys.argv[1:] == ["ray"] else main())
