"""Definitions as code: what a file would do, that it is done, and that it is written out again."""

import json

import jsonschema_rs

from tests.cli.test_verbs import folder, ok  # noqa: F401 - a fixture


def test_schema_writes_what_a_file_and_what_a_schedule_may_hold():
    for flags, right in (
        ((), {"schedules": {"a": {"every": "1h", "run": {"command": ["ls"]}}}}),
        (("--schedule",), {"every": "1h", "run": {"command": ["ls"]}}),
    ):
        text, line = ok("schema", *flags), ok("schema", *flags, "--json")
        assert json.loads(text) == json.loads(line)
        assert (text.count("\n") > 100, line.count("\n")) == (True, 1)
        assert jsonschema_rs.is_valid(json.loads(text), right)
        assert not jsonschema_rs.is_valid(json.loads(text), {"schedules": 5})
