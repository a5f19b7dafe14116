"""`onbeat group` with its verbs, `onbeat gate` with its positions, and their former spellings."""

import pytest

from tests.cli.test_verbs import TWO, as_json, folder, ok, onbeat, write  # noqa: F401 - all are in it


@pytest.fixture
def two():
    """Two schedules: clean and report."""
    ok("apply", write(TWO))


def test_group_limit_sets_the_concurrency_limit(two):
    assert ok("group", "limit", "mail", "2") == "mail has 2 places\n"
    assert as_json("group", "limit", "mail", "1") == {"group": "mail", "places": 1, "changed": True}


def test_group_and_group_list_show_the_same_table(two):
    ok("group", "limit", "mail", "2")
    table = "GROUP  PLACES  USED  WAITING\nmail   2       0     0\n"
    assert ok("group") == ok("group", "list") == ok("groups") == table
    assert as_json("group") == as_json("group", "list") == as_json("groups")


def test_group_with_a_name_and_a_number_is_still_a_limit(two):
    assert ok("group", "mail", "2") == "mail has 2 places\n"
    assert as_json("group", "--json", "mail", "3")["places"] == 3


def test_options_before_a_verb_hold_for_the_verb(two):
    assert '"places":2' in ok("group", "--json", "limit", "mail", "2")


@pytest.mark.parametrize(("position", "former"), [("open", "on"), ("close", "off")])
def test_gate_takes_its_positions_and_their_former_spellings(two, position, former):
    other = "close" if position == "open" else "open"
    for spelling in (position, former):
        ok("gate", other)
        gate = "open" if position == "open" else "closed"
        assert as_json("gate", spelling) == {"gate": gate, "changed": True}


def test_gate_alone_shows_its_position_and_changes_nothing(two):
    assert ok("gate") == "the gate is open\n"
    ok("gate", "close")
    assert ok("gate") == (
        "the gate is CLOSED: nothing is decided and nothing starts (onbeat gate open)\n"
    )
    assert as_json("gate") == {"gate": "closed"}


def test_help_shows_no_former_spelling():
    assert "[open|close]" in onbeat("gate", "-h").stdout
    listed = [line.split()[0] for line in onbeat("-h").stdout.splitlines() if line.strip()]
    assert "group" in listed
    assert "groups" not in listed
