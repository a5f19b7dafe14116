"""One process to fork every command from, and several pages at a time: they wait for ticks mostly."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.docs.examples import missing, run_page
from tests.docs.forks import forked_onbeat

AT_ONCE = 3


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    if lacking := missing():
        assert not os.environ.get("CI"), f"CI installs {lacking}"
        pytest.skip(f"the examples need {' and '.join(lacking)}")
    with forked_onbeat(tmp_path_factory.mktemp("bin")) as found:
        yield found


@pytest.fixture(scope="session")
def running(request, program):
    """The result of each requested page, by its path."""
    asked = [
        item.callspec.params.get("page")
        for item in request.session.items
        if "running" in item.fixturenames
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {page: pool.submit(run_page, page, program) for page in asked}
