"""What tests of policies have."""

import pytest

from tests.policies.world import World


@pytest.fixture
def world(request):
    """A world of its own; a test that says which launches commands with that."""
    commands = getattr(request, "param", None)
    return World(commands=commands and commands())
