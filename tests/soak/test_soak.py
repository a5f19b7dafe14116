"""A short soak on each change; `make soak` is the long one."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from tests.soak.judge import SQLITE, grown
from tests.soak.life import STEPS, Measured


def soak(on, kind, runs):
    command = [sys.executable, "-m", "tests.soak", "--here", "--on", on, "--kinds", kind]
    return subprocess.run(
        [*command, "--runs", str(runs)], capture_output=True, text=True, check=False, timeout=110
    )


@pytest.mark.parametrize(
    ("on", "kind", "runs"),
    [("sqlite", "function", 10_000), ("sqlite", "command", 600), ("postgres", "fails", 3_000)],
)
def test_memory_does_not_grow_with_the_number_of_runs(on, kind, runs):
    done = soak(on, kind, runs)
    assert done.returncode == 0, done.stdout + done.stderr


def test_leak_of_a_hundred_bytes_per_run_is_detected():
    done = soak("sqlite", "leaks", 5_000)
    assert done.returncode == 1
    assert "bytes of Python objects a run" in done.stdout


FLAT = [
    Measured(1_000 * n, 50_000, 2_000_000, 19_000_000, 80_000_000, Counter(list=9))
    for n in range(1, STEPS + 1)
]


def test_constant_memory_is_accepted():
    assert grown(FLAT) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"objects": 50_000 + 8_000, "by_type": Counter(list=8_009)}, "[('list', 8000)]"),
        ({"traced": 2_000_000 + 160_000}, "20.0 bytes of Python objects a run"),
        ({"sqlite": SQLITE + 2**20}, "SQLite has 49.0 MiB"),
        ({"resident": 80_000_000 + 9_000_000}, "1000 resident bytes a run"),
    ],
)
def test_growing_memory_is_named(change, told):
    found = grown([*FLAT[:-1], replace(FLAT[-1], **change)])
    assert len(found) == 1
    assert told in found[0]
