"""What all tests share: one source of zone data, the profile of random examples, and the requirement IDs."""

import os
import zoneinfo
from pathlib import Path

import pytest

from onbeat.host.plugs import plugs
from tests import profiles, requirements  # noqa: F401 - this loads the profile
from tests.postgres import remove_shared_server, shared_server

DATA = Path(__file__).parent / "data"

plugs()  # a definition is read with the kinds of target that are installed
os.environ["ONBEAT_ROLES"] = "plan,run"  # a node of a test has no API, unless it is about that

zoneinfo.reset_tzpath(
    ()
)  # the oracles read the tz data of the `tzdata` package, as the engine does


@pytest.fixture
def postgres_url():
    """A new database on the server of this process; every process of pytest-xdist has one."""
    server = shared_server()
    url = server.new_database()
    yield url
    server.drop_database(url)


def pytest_sessionfinish():
    """Remove the server here: pytest-xdist kills a process that takes long to exit."""
    remove_shared_server()


def pytest_addoption(parser):
    parser.addoption("--requirements", action="store_true", help="print which test proves which ID")


def pytest_collection_modifyitems(items):
    for item in items:
        if "postgres_url" in item.fixturenames:
            item.add_marker("postgres")
        for name in requirements.ids(item):
            if name not in requirements.REQUIREMENTS:
                raise pytest.UsageError(f"{item.nodeid}: there is no requirement {name!r}")


def pytest_collection_finish(session):
    if session.config.getoption("--requirements"):
        print("\n".join(requirements.report(session.items)))
        wrong = requirements.breaches(session.items)
        if wrong:
            raise pytest.UsageError("\n".join(wrong))
