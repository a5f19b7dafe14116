"""What all tests share: one source of zone data, repeatable random examples, and the requirement IDs."""

import json
import os
import re
import zoneinfo
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import settings

from tests.postgres import shared_server

os.environ["ONBEAT_ROLES"] = "plan,run"  # a node of a test has no API, unless it is about that

DATA = Path(__file__).parent / "data"
ORIGINS = Path(__file__).parent.parent / "docs" / "origins.md"
REQUIREMENTS = json.loads((DATA / "requirements.json").read_text())

zoneinfo.reset_tzpath(
    ()
)  # the oracles read the tz data of the `tzdata` package, as the engine does

# Examples are the same in every run, so that a red run is a change's own; `random` looks for new ones.
settings.register_profile("fixed", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("random", deadline=None, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


@pytest.fixture
def postgres_url():
    """A database of one's own, on the server that the whole run has."""
    server = shared_server()
    url = server.new_database()
    yield url
    server.drop_database(url)


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
    told = set(met_otherwise())
    for name, wanted in REQUIREMENTS.items():
        state = "proven" if name in proven else "told" if name in told else "open"
        print(f"{name:4} {state:6}  {wanted['text']}")
        for test in sorted(proven.get(name, ())):
            print(f"{'':12} {test}")
        if state == "told":
            print(f"{'':12} met in another way: docs/origins.md")
    others = len(told - proven.keys())
    print(f"\n{len(proven)} of {len(REQUIREMENTS)} proven by a test, {others} met in another way")


def met_otherwise():
    """Yield the requirements that docs/origins.md tells how something else meets."""
    for row in re.findall(r"^\| ([A-Z0-9, ]+) \|", ORIGINS.read_text(), re.MULTILINE):
        yield from (name for name in row.split(", ") if name in REQUIREMENTS)


def ids(item):
    return [name for mark in item.iter_markers("req") for name in mark.args]
