"""One process to fork every command from, for all pages."""

import pytest

from tests.docs.examples import missing
from tests.docs.forks import forked_onbeat


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    if lacking := missing():
        pytest.skip(f"the examples need {' and '.join(lacking)}")
    with forked_onbeat(tmp_path_factory.mktemp("bin")) as found:
        yield found
