"""Fixtures for the tests of policies."""

import pytest

from tests.policies.world import PolicyHarness


@pytest.fixture
def world(request):
    """A separate world; its launcher of commands is the parameter, if there is one."""
    commands = getattr(request, "param", None)
    return PolicyHarness(commands=commands and commands())
