"""JSON fields: what is shown of a row has the type that its row declares, as JSON has it."""

from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

from onbeat.ports.rows import GroupRow, Millis, NodeRow, Seconds, TokenRow
from onbeat.service.serialize import SHOWN, ShownRow, group_fields, node_fields, token_fields

# Shown otherwise than the row has them: a definition as an object, and rows by their own fields.
BY_HAND = {"definition", "nodes", "awaited", "following"}


def in_json(declared):
    """Return the type that a value of a row has in JSON."""
    origin, arguments = get_origin(declared), get_args(declared)
    if origin in (Union, UnionType):
        return Union[tuple(in_json(each) for each in arguments)]  # noqa: UP007 - of a list
    if origin is Annotated or origin is Literal:
        return str  # an instant as text, or one of some words
    if origin is frozenset:
        return list[arguments]
    return dict[arguments] if origin is Mapping else declared


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: shown.shape.__name__)
def test_shown_fields_have_the_types_of_their_row(shown):
    types = get_type_hints(shown.shape)
    own = {name: each for name, each in shown.own.items() if name not in BY_HAND}
    assert own
    assert {name: in_json(each) for name, each in own.items()} == {
        name: types[name] for name in own
    }


def test_instants_are_rendered_in_the_unit_that_the_row_declares():
    class Row:
        first: Seconds
        then: Millis | None
        last: Millis | None

    class Fields(msgspec.Struct):
        first: str
        then: str | None
        last: str | None

    row = Row()
    row.first, row.then, row.last = 1_767_268_800, 1_767_268_800_500, None
    fields = ShownRow(Row, Fields).fields(row)
    assert msgspec.to_builtins(fields) == {
        "first": "2026-01-01T12:00:00Z",
        "then": "2026-01-01T12:00:00.500Z",
        "last": None,
    }


def test_nodes_groups_and_tokens_are_shown_as_plain_json():
    node = NodeRow("n", "here", frozenset({"run", "plan"}), frozenset(), 0, 2_000, "1", "2026a", 3)
    assert msgspec.to_builtins(node_fields(node, now=2_000)) == {
        "node_id": "n", "name": "here", "roles": ["plan", "run"], "offers": [], "running": 3,
        "alive": False, "stopping": False, "started_at": "1970-01-01T00:00:00.000Z",
        "alive_until": "1970-01-01T00:00:02.000Z", "version": "1", "tz": "2026a", "address": "",
    }  # fmt: skip
    assert msgspec.to_builtins(group_fields(GroupRow("db", 2, 1, 4))) == {
        "name": "db", "places": 2, "used": 1, "waiting": 4,
    }  # fmt: skip
    assert msgspec.to_builtins(token_fields(TokenRow("t", "token", "ci", "read", used_at=1))) == {
        "token_id": "t", "kind": "token", "name": "ci", "scope": "read", "owner": "",
        "created_at": "1970-01-01T00:00:00.000Z", "created_by": "", "expires_at": None,
    }  # fmt: skip
