"""What tests of policies have."""

import pytest

from tests.policies.world import PolicyHarness


@pytest.fixture
def world(request):
    """A world of its own; a test that says which launches commands with that."""
    commands = getattr(request, "param", None)
    return PolicyHarness(commands=commands and commands())
