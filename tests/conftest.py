"""What all tests share: one source of zone data, repeatable random examples, and the requirement IDs."""

import os
import zoneinfo
from pathlib import Path

import pytest
from hypothesis import settings

from tests import accounting
from tests.postgres import shared_server

DATA = Path(__file__).parent / "data"

os.environ["ONBEAT_ROLES"] = "plan,run"  # a node of a test has no API, unless it is about that

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
        for name in accounting.ids(item):
            if name not in accounting.REQUIREMENTS:
                raise pytest.UsageError(f"{item.nodeid}: there is no requirement {name!r}")


def pytest_collection_finish(session):
    if session.config.getoption("--requirements"):
        print("\n".join(accounting.report(session.items)))
        wrong = accounting.breaches(session.items)
        if wrong:
            raise pytest.UsageError("\n".join(wrong))
