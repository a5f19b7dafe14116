"""One API for the tests of a module; each has its own schedules in it."""

import pytest

from tests.web.serving import serving


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("api")) as found:
        yield found
