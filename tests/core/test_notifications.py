"""Rules of channels, texts of messages, and what follows a delivery."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onbeat.core.notify.channels import KINDS, WAYS, MailServer, read_channels
from onbeat.core.notify.notifications import (
    BACKOFF,
    LONGEST_LINE,
    MOST_NOTICES,
    Delivered,
    DeliveryRefused,
    DeliveryResult,
    DeliveryUnknown,
    Notification,
    OutgoingMessage,
    Rule,
    compose_message,
    delivery_result,
    first_line,
    headline,
    subject,
    text,
    why,
)
from onbeat.core.runs.run import REASONS
from onbeat.errors import InvalidSchedule
from onbeat.events import MISSED_REASONS

NOON = 1_767_268_800


def a_notice(kind="failure", schedule_id="backup", **fields):
    usual = {"run_id": 17, "run_at": NOON, "failures": 1 if kind == "failure" else 0}
    return Notification(kind, schedule_id, NOON * 1000 + 250, **usual | fields)


def a_rule(*on, **fields):
    (channel,) = read_channels({"ops": {"webhook": "https://h", "on": list(on), **fields}})
    return channel.rule


# -- rules


def test_third_failure_in_a_row_is_notified_once_until_a_recovery():
    rule = a_rule("failures:3", "recovery")
    heard = [n for n in range(1, 10) if rule.hears(a_notice(failures=n))]
    assert heard == [3]
    assert rule.hears(a_notice("recovery", failures=7))


def test_recovery_is_sent_only_after_a_reported_failure():
    assert not a_rule("failures:3", "recovery").hears(a_notice("recovery", failures=2))
    assert a_rule("failures:3", "failure", "recovery").hears(a_notice("recovery", failures=2))
    assert a_rule("recovery").hears(a_notice("recovery", failures=1))
    assert not a_rule("failures:3").hears(a_notice("recovery", failures=3))


def test_success_rule_matches_recoveries():
    rule = a_rule("success")
    assert rule.hears(a_notice("success"))
    assert rule.hears(a_notice("recovery", failures=1))
    assert not a_rule("failure").hears(a_notice("success"))


def test_late_rule_matches_from_its_threshold():
    rule = a_rule("late", late="30s")
    assert [ms for ms in (1_000, 29_999, 30_000) if rule.hears(a_notice("late", late=ms))] == [
        30_000
    ]


@pytest.mark.parametrize(
    ("globs", "schedule_id", "heard"),
    [
        (["backup/*"], "backup/db", True),
        (["backup/*"], "backup/db/daily", True),
        (["backup/*"], "backup", False),
        (["backup/*", "report"], "report", True),
        (["repor?"], "report", True),
        (["a.c"], "abc", False),
        (["*a*a*a*a*a*a*b"], "a" * 200, False),
        (["**"], "anything", True),
    ],
)
def test_rule_matches_schedules_by_pattern(globs, schedule_id, heard):
    assert a_rule("failure", schedules=globs).hears(a_notice(schedule_id=schedule_id)) is heard


@given(st.sampled_from(["failure", "missed", "parked"]), st.text("ab/", min_size=1, max_size=9))
def test_wildcard_rule_matches_like_a_rule_for_one_schedule(kind, schedule_id):
    notice = a_notice(kind, schedule_id)
    one, every = Rule(frozenset({kind}), schedules=(schedule_id,)), Rule(frozenset({kind}))
    assert one.hears(notice)
    assert every.hears(notice)


# -- in words


def test_message_text_has_the_command_to_investigate():
    notice = a_notice(failures=3, reason="error", error="disk full")
    assert subject(compose_message([notice])) == "[onbeat] backup failed (3 in a row)"
    assert text(compose_message([notice])) == (
        "backup failed (3 in a row)\n"
        "  planned  2026-01-01T12:00:00Z\n"
        "  why      it failed: disk full\n"
        "  run      17\n"
        "  look     onbeat why backup 2026-01-01T12:00:00Z\n"
    )


@pytest.mark.parametrize(
    ("notice", "content"),
    [
        (a_notice(), "backup failed"),
        (a_notice("recovery", failures=1), "backup works again (after 1 failure)"),
        (a_notice("recovery", failures=4), "backup works again (after 4 failures)"),
        (a_notice("success"), "backup succeeded"),
        (a_notice("missed", reason="missed"), "backup missed a tick"),
        (a_notice("missed", reason="missed", tick_count=61), "backup missed 61 ticks"),
        (a_notice("late", late=3_723_400), "backup started 1h2m3s late"),
        (a_notice("late", late=1_000), "backup started 1s late"),
        (a_notice("parked"), "backup cannot be planned"),
        (a_notice("stuck", lasts=7_200_000), "backup has been running for 2h"),
        (a_notice("test"), "a test: this channel works"),
    ],
)
def test_every_kind_of_notification_has_a_headline(notice, content):
    assert headline(notice) == content


def test_stuck_run_is_notified_with_its_limit():
    by_field = a_notice("stuck", reason="warn_after", lasts=7_200_000, limit=3_600_000)
    by_past = a_notice("stuck", reason="p99", lasts=7_200_000, limit=90_000)
    assert why(by_field) == "its warn_after is 1h"
    assert why(by_past) == "three times the p99 of its last runs is 1m30s"


def test_overlap_miss_is_notified_with_the_reason():
    assert "in flight" in why(a_notice("missed", reason="overlap"))


def test_range_of_ticks_is_notified_with_first_and_last():
    notice = a_notice("missed", reason="missed", first_run_at=NOON - 3600, tick_count=61)
    assert "planned  2026-01-01T11:00:00Z to 2026-01-01T12:00:00Z" in text(
        compose_message([notice])
    )


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("error", ["", "it broke"])
def test_every_reason_sentence_is_complete(reason, error):
    content = why(a_notice(reason=reason, error=error))
    assert "{" not in content
    assert error in content
    assert content or reason in {
        "overlap",
        "coalesced",
        "rate",
    }  # reasons without a notification


def test_every_missed_reason_has_a_sentence():
    assert all(why(a_notice("missed", reason=reason)) for reason in MISSED_REASONS)


def test_message_lists_fifty_notices_and_counts_the_rest():
    content = compose_message([a_notice(schedule_id=f"s{n}") for n in range(60)])
    assert (len(content.notices), content.more, content.count) == (MOST_NOTICES, 10, 60)
    assert subject(content) == "[onbeat] s0 failed, and 59 more"
    assert "and 10 more, not listed" in text(content)
    both = content.joined(compose_message([a_notice() for _ in range(5)]))
    assert (len(both.notices), both.count) == (MOST_NOTICES, 65)


@given(st.text())
def test_first_line_is_short_and_printable(anything):
    line = first_line(anything)
    assert line.isprintable()
    assert len(line) <= LONGEST_LINE
    assert first_line(line) == line


def test_first_line_skips_empty_lines():
    assert first_line("\n \r\nTraceback:\tlast\x00\nmore") == "Traceback: last"


# -- what follows a delivery


def a_letter(attempt=1):
    return OutgoingMessage(1, "ops", "key", compose_message([a_notice()]), 0, attempt)


def test_temporarily_refused_message_is_retried_with_growing_delays():
    waits = [delivery_result(a_letter(n), DeliveryRefused("busy")) for n in range(1, 7)]
    assert [each.wait for each in waits[:5]] == [5_000, 30_000, 120_000, 600_000, 3_600_000]
    assert {each.state for each in waits[:5]} == {"waiting"}
    assert waits[5] == DeliveryResult("failed", "busy")
    assert [a_letter(n).is_last_try for n in (len(BACKOFF), len(BACKOFF) + 1)] == [False, True]


def test_message_that_may_have_arrived_is_never_sent_again():
    assert [delivery_result(a_letter(n), DeliveryUnknown("lost")).state for n in (1, 6)] == [
        "in_doubt"
    ] * 2


def test_delivered_or_permanently_refused_message_is_final():
    assert delivery_result(a_letter(), DeliveryRefused("HTTP 404", again=False)) == DeliveryResult(
        "failed", "HTTP 404"
    )
    assert delivery_result(a_letter(), Delivered()) == DeliveryResult("sent")


def test_requested_wait_of_a_receiver_is_limited():
    assert delivery_result(a_letter(), DeliveryRefused("429", wait=60_000)).wait == 60_000
    assert delivery_result(a_letter(), DeliveryRefused("429", wait=1)).wait == 5_000
    assert delivery_result(a_letter(), DeliveryRefused("429", wait=10**9)).wait == 3_600_000


# -- channels as they are written

HOOK = {"webhook": "https://hooks.example/x?token=s3cret"}
MAIL = {"smtp": "smtp://me@there.example@mail.example", "to": ["you@there.example"]}


def refusal(given):
    with pytest.raises(InvalidSchedule) as refused:
        read_channels(given)
    return str(refused.value)


def test_channel_is_read_with_its_rule():
    given = tomllib.loads("""
    [notify.ops]
    webhook = "https://hooks.example/x"
    on = ["failure", "late", "failures:3"]
    schedules = ["backup/*", "report"]
    late = "30s"
    every = "1m"
    headers = {Authorization = "Bearer ${env:TOKEN}"}
    """)["notify"]
    (channel,) = read_channels(given)
    expected = Rule(frozenset({"failure", "late"}), frozenset({3}), ("backup/*", "report"), 30_000)
    assert channel.rule == expected
    assert channel.every == 60_000
    assert channel.headers == (("Authorization", "Bearer ${env:TOKEN}"),)


def test_channel_reports_failures_and_recoveries_by_default():
    (channel,) = read_channels({"ops": HOOK})
    assert channel.rule == Rule(frozenset({"failure", "recovery", "missed", "parked", "stuck"}))


@pytest.mark.parametrize(
    ("given", "content"),
    [
        (
            3,
            '3 is not a mapping of channel names to their settings ([notify.ops] with webhook = "https://...")',
        ),
        ({"o s": {}}, "'o s' is not a valid channel name (letters, digits, dots, - and _)"),
        (
            {"ops": 3},
            'ops: the channel is not a mapping ([notify.ops] with webhook = "https://...")',
        ),
        ({"ops": {}}, "ops: the channel has no destination (one of webhook, smtp, apprise)"),
        ({"ops": HOOK | MAIL}, "ops: it has webhook and smtp (one of webhook, smtp, apprise)"),
        ({"ops": HOOK | {"onn": []}}, "ops.onn: no field has this name (did you mean 'on'?)"),
        ({"ops": HOOK | {"to": []}}, "ops.to: no field has this name (known: "),
        (
            {"ops": HOOK | {"on": "failure"}},
            "ops.on: 'failure' is not a list with at least one item (",
        ),
        ({"ops": HOOK | {"on": []}}, "ops.on: [] is not a list with at least one item ("),
        (
            {"ops": HOOK | {"on": ["late", "failure", "recvery"]}},
            "ops.on[2]: 'recvery' is not a kind of notification (did you mean 'recovery'?)",
        ),
        (
            {"ops": HOOK | {"on": ["failures:0"]}},
            "ops.on[0]: 'failures:0' is not a kind of notification (",
        ),
        ({"ops": HOOK | {"on": [3]}}, "ops.on[0]: 3 is not a kind of notification ("),
        ({"ops": HOOK | {"schedules": ["a b"]}}, "ops.schedules[0]: 'a b' is not an id ("),
        ({"ops": HOOK | {"late": "0s"}}, "ops.late: '0s' is out of bounds (1s to 7d)"),
        ({"ops": HOOK | {"late": 30}}, "ops.late: the number 30 has no unit ("),
        ({"ops": HOOK | {"every": "2d"}}, "ops.every: '2d' is out of bounds (0s to 1d)"),
        ({"ops": {"webhook": 3}}, "ops.webhook: it is not a string (a string in quotes)"),
        ({"ops": {"webhook": "ftp://s3cret"}}, "ops.webhook: it is not a URL (https://host/path)"),
        (
            {"ops": {"webhook": "https://h/${HOME}"}},
            "ops.webhook: ${ is not followed by a variable (",
        ),
        (
            {"ops": {"webhook": "https://h/\n"}},
            "ops.webhook: it is too long, or contains characters that cannot",
        ),
        (
            {"ops": {"webhook": "secret://../x"}},
            "ops.webhook: it is not a valid name of a secret (",
        ),
        (
            {"ops": HOOK | {"headers": {"Host": "x"}}},
            "ops.headers: the header 'Host' cannot be set (",
        ),
        (
            {"ops": HOOK | {"headers": {"A": "a\r\nB: c"}}},
            "ops.headers.A: it is too long, or contains",
        ),
        (
            {"ops": MAIL | {"smtp": "mail.example"}},
            "ops.smtp: the value is not the URL of a mail server (",
        ),
        (
            {"ops": MAIL | {"smtp": "smtp://me:s3cret@h"}},
            'ops.smtp: the URL contains a password (set password = "${env:NAME}")',
        ),
        ({"ops": MAIL | {"smtp": "smtp://h:99999"}}, "ops.smtp: 99999 is not a port (1 to 65535)"),
        (
            {"ops": MAIL | {"smtp": "smtp://h", "password": "s3cret"}},
            "ops.password: a password requires a user in the URL (smtp://user@host)",
        ),
        ({"ops": {"smtp": "smtp://h"}}, "ops.to: None is not a list with at least one item ("),
        (
            {"ops": MAIL | {"to": ["a@b", "a@b\r\nBcc: c@d"]}},
            "ops.to[1]: 'a@b\\r\\nBcc: c@d' is not",
        ),
        ({"ops": MAIL | {"to": ["a@b,c@d"]}}, "ops.to[0]: 'a@b,c@d' is not an email address ("),
        (
            {"ops": MAIL | {"from": "me"}},
            "ops.from: 'me' is not an email address (onbeat@example.org)",
        ),
    ],
)
def test_invalid_channel_is_refused_by_field_without_secrets(given, content):
    found = refusal(given)
    assert found.startswith(content)
    assert "s3cret" not in found


def test_shown_channel_contains_no_secret():
    given = {
        "hook": {"webhook": "https://me:s3cret@hooks.example:8443/s3cret?k=s3cret"},
        "env": {"webhook": "${env:HOOK}"},
        "mail": MAIL | {"password": "s3cret"},
        "slack": {"apprise": "slack://s3cret/s3cret"},
        "kept": {"apprise": "secret://s3cret"},
    }
    channels = read_channels(given)
    assert [channel.shown for channel in channels] == [
        "https://hooks.example:8443", "webhook", "you@there.example by mail.example", "slack://", "apprise",
    ]  # fmt: skip
    assert not any("s3cret" in repr(channel) for channel in channels)


def test_references_of_a_channel_are_resolved_and_validated():
    (channel,) = read_channels({"ops": {"webhook": "${env:HOOK}", "headers": {"A": "${env:A}"}}})
    filled = channel.filled(lambda text: {"${env:HOOK}": "https://h/p", "${env:A}": "b"}[text])
    assert (filled.address, filled.headers) == ("https://h/p", (("A", "b"),))
    for wrong in ("s3cret", "https://h/\r\nX: y"):
        with pytest.raises(InvalidSchedule) as refused:
            channel.filled(lambda _, wrong=wrong: wrong)
        assert str(refused.value).startswith("notify.ops.webhook: ")
        assert wrong not in str(refused.value)


def test_notifications_page_has_valid_channels_and_every_field():
    page = (Path(__file__).parents[2] / "docs" / "notifications.md").read_text()
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    ops, boss = read_channels(tomllib.loads(example)["notify"])
    assert (ops.way, boss.way) == ("webhook", "smtp")
    rows = dict(re.findall(r"^\| `([\w:]+)` \| (.+) \|$", page, re.MULTILINE))
    assert {*KINDS, "failures:3"} <= rows.keys()
    assert rows.keys() >= set(WAYS)
    defaults = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \| ", page, re.MULTILINE))
    assert defaults.keys() == {"on", "schedules", "late", "every"}
    defaults = {name: json.loads(text) for name, text in defaults.items()}
    (usual, said) = read_channels({"ops": HOOK, "said": HOOK | defaults})
    assert (usual.rule, usual.every) == (said.rule, said.every)


@pytest.mark.parametrize(
    ("address", "server"),
    [
        ("smtp://mail.example", MailServer("mail.example", 25, "", is_encrypted=False)),
        ("smtp://me@mail.example", MailServer("mail.example", 587, "me", is_encrypted=False)),
        (
            "smtp://me@a.b@mail.example",
            MailServer("mail.example", 587, "me@a.b", is_encrypted=False),
        ),
        ("smtps://me@mail.example/", MailServer("mail.example", 465, "me", is_encrypted=True)),
        ("smtp://[::1]:2525", MailServer("::1", 2525, "", is_encrypted=False)),
    ],
)
def test_mail_server_has_the_default_port_of_its_scheme(address, server):
    assert MailServer.of(address) == server
    assert server.is_here is (server.host == "::1")
