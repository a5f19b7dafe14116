"""One API for all tests of a module; each test uses schedules of its own."""

import pytest

from tests.web.serving import serving


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("api")) as found:
        yield found
