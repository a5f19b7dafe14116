"""Every use case checks the scope of the caller first."""

import ast
import inspect
import textwrap

import pytest

from onbeat.service.service import Service
from onbeat.service.tokens import Tokens

# Use cases about the caller itself, or before authentication: they require no scope.
FOR_ALL = {"authenticate", "link", "session", "end_session", "signer"}


def use_cases(kind):
    return [
        (name, method)
        for name, method in vars(kind).items()
        if inspect.iscoroutinefunction(method) and not name.startswith("_")
    ]


def first_statement(method):
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(method))).body
    return ast.unparse(function.body[1])  # after the docstring


@pytest.mark.parametrize(("name", "method"), use_cases(Service))
def test_every_use_case_checks_the_scope_first(name, method):
    assert first_statement(method).startswith("self._needs("), name


@pytest.mark.parametrize(("name", "method"), use_cases(Tokens))
def test_token_use_cases_require_scope_admin(name, method):
    assert (first_statement(method) == "self._needs_admin()") == (name not in FOR_ALL), name
