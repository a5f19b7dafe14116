"""What all tests share: one source of zone data, repeatable random examples, and the requirement IDs."""

import json
import os
import zoneinfo
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import settings

DATA = Path(__file__).parent / "data"
REQUIREMENTS = json.loads((DATA / "requirements.json").read_text())

zoneinfo.reset_tzpath(
    ()
)  # the oracles read the tz data of the `tzdata` package, as the engine does

# Examples are the same in every run, so that a red run is a change's own; `random` looks for new ones.
settings.register_profile("fixed", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("random", deadline=None, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


def pytest_addoption(parser):
    parser.addoption("--requirements", action="store_true", help="print which test proves which ID")


def pytest_collection_modifyitems(items):
    for item in items:
        for name in ids(item):
            if name not in REQUIREMENTS:
                raise pytest.UsageError(f"{item.nodeid}: no requirement is called {name!r}")


def pytest_collection_finish(session):
    if not session.config.getoption("--requirements"):
        return
    proven = defaultdict(set)
    for item in session.items:
        for name in ids(item):
            proven[name].add(item.nodeid.partition("[")[0])
    for name, wanted in REQUIREMENTS.items():
        print(f"{name:4} {'proven' if name in proven else 'open':6}  {wanted['text']}")
        for test in sorted(proven[name]):
            print(f"{'':12} {test}")
    print(f"\n{sum(map(bool, proven.values()))} of {len(REQUIREMENTS)} proven by a test")


def ids(item):
    return [name for mark in item.iter_markers("req") for name in mark.args]
