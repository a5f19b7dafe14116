"""Run the tests: `make quick`, `make test` or `make ray`.

pytest-xdist shares the modules among several processes. Modules that measure lateness or speed, and
modules that kill nodes, run afterwards, one at a time: other tests would disturb them. The tests of
Ray run last, in a network namespace of their own.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTEST = [sys.executable, "-m", "pytest"]
# A module stays in one process, because its tests share fixtures. Every process has its own
# PostgreSQL server, which is why there are at most four.
SHARED = [*PYTEST, "-n", "auto", "--maxprocesses", "4", "--dist", "loadfile"]
QUICK = (
    "tests/core",
    "tests/stores",
    "tests/docs/test_reference.py",
    "tests/test_architecture.py",
    "tests/test_docs.py",
    "tests/test_gears.py",
    "tests/test_public_api.py",
)
INTERRUPTED = 2  # pytest's exit code after Ctrl-C, and if a module cannot be collected
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
# Ray listens on every address that it finds. Its network has only `lo`, and every process it starts
# ends with the tests.
NAMESPACE = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
WITH_LO = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


def main(gear: str) -> int:
    """Run one gear; return 0 if every test passed, or else the first exit code that is not 0."""
    # A background job of a shell ignores Ctrl-C, and so would the programs that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return {"quick": run_quick, "test": run_all, "ray": run_ray}[gear]()


def run_quick() -> int:
    """Run what finds most mistakes within a minute: fewer random examples, and no PostgreSQL."""
    os.environ["HYPOTHESIS_PROFILE"] = "quick"
    return run(*SHARED, "-m", "not postgres", *QUICK)


def run_all() -> int:
    """Run every test."""
    code = run(*SHARED, *(f"--ignore={path}" for path in (*ALONE, RAY)))
    if code == INTERRUPTED:
        return code
    codes = (code, run(*PYTEST, *ALONE), run_ray())
    return next((each for each in codes if each), 0)


def run_ray() -> int:
    """Run the tests of Ray in their own network, or have them skip where that is not possible."""
    apart = [*NAMESPACE, *WITH_LO]
    possible = shutil.which(NAMESPACE[0]) and run(*apart, "true") == 0
    return run(*(apart if possible else ()), *PYTEST, "-rs", RAY)


def run(*command: str) -> int:
    """Run a command in the root of the project; return its exit code."""
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
