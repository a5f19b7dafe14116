"""`onbeat token`: what it shows once, and what it never shows."""

import json
import re
import time

import pytest

from tests.cli.test_verbs import (
    as_json,
    folder,  # noqa: F401 - what every test here is in
    ok,
    onbeat,
    refused,
)

SECRET = r"onbeat_[A-Za-z0-9_-]{43}"


def test_a_secret_is_written_once_and_alone_on_stdout():
    done = onbeat("token", "create", "ci", "--scope", "operate")
    assert re.fullmatch(rf"{SECRET}\n", done.stdout)
    assert done.stderr == "keep it: it is not shown again\n"
    assert done.stdout.strip() not in ok("token", "list") + json.dumps(as_json("token", "list"))


def test_what_was_made_is_listed_with_its_rights():
    found = as_json(
        "token", "create", "ann", "--scope", "define", "--owner", "ann", "--expires", "90d"
    )
    assert re.fullmatch(SECRET, found.pop("secret"))
    assert as_json("token", "list") == [found]
    assert (found["scope"], found["owner"], found["kind"]) == ("define", "ann", "token")
    assert found["created_by"].startswith("cli:")
    heading, line = ok("token", "list").splitlines()
    assert heading.split() == ["TOKEN", "SCOPE", "OWNER", "BY", "CREATED", "EXPIRES"]
    assert line.split()[:3] == ["ann", "define", "ann"]
    assert line.endswith("(in 89d 23h)")


def test_a_token_may_read_unless_more_is_said():
    assert as_json("token", "create", "ci")["scope"] == "read"


def test_a_revoked_token_is_gone():
    as_json("token", "create", "ci")
    assert ok("token", "revoke", "ci") == "revoked ci\n"
    assert ok("token", "list") == "no tokens (onbeat token create NAME makes one)\n"
    assert refused(1, "token", "revoke", "ci") == "no token is called 'ci'"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("a b",), "name: 'a b' is no name of a token (letters, digits and . _ @ -, at most 100)"),
        (("ci", "--expires", "soon"), "--expires: 'soon' is not a duration"),
        (("ci", "--expires", "0s"), "expires: it is out of bounds (1s to 36500d)"),
        (("ci", "--owner", "a b"), "owner: 'a b' is no name of an owner"),
    ],
)
def test_what_makes_no_sense_is_refused(given, told):
    assert refused(2, "token", "create", *given).startswith(told)


def test_a_link_names_where_the_api_is_found(monkeypatch):
    as_json("token", "create", "ci")
    assert re.fullmatch(
        r"http://127\.0\.0\.1:8585/login\?code=onbeat_link_[\w-]{43}\n", ok("token", "link")
    )
    monkeypatch.setenv("ONBEAT_PUBLIC_URL", "https://onbeat.example.com")
    found = as_json("token", "link", "--scope", "read")
    assert found["link"].startswith("https://onbeat.example.com/login?code=onbeat_link_")
    assert found.keys() == {"link", "expires_at"}


def test_a_database_that_is_not_there_has_no_links():
    assert "does not exist" in refused(69, "token", "link")


def test_on_postgresql_the_clock_is_known_before_anything_was_read(postgres_url, monkeypatch):
    monkeypatch.setenv("ONBEAT_DATABASE", postgres_url)
    found = as_json("token", "create", "ci", "--expires", "90d")
    assert re.fullmatch(SECRET, found["secret"])
    assert ok("token", "link").startswith("http://127.0.0.1:8585/login?code=onbeat_link_")
    assert found["created_at"][:10] in {
        time.strftime("%Y-%m-%d", time.gmtime(time.time() + ago)) for ago in (0, -60)
    }
