"""The launcher of prompts: refusals, requests, and outcomes of answers."""

import asyncio

import pytest

from onbeat.core.runs.run import Accepted, Busy, Failed, Succeeded
from onbeat.core.target import Target, read_target
from onbeat.errors import InvalidSchedule
from onbeat.launchers.http.launcher import HttpLauncher
from onbeat.ports.http import HttpResponse
from onbeat.ports.store import Attempt
from onbeat.stores.sqlite.store import SqliteStore
from onbeat.systems.sessions.launcher import BUSY, SessionLauncher
from onbeat.testing import ManualClock

NOON = 1_767_268_800
CHECKS = HttpLauncher(version="1", environment={}).check
OK = HttpResponse(200, "OK", {"ok": True})


class Line:
    """A server with a list of answers, and the requests sent to it.

    What it is asked about a session, it answers with `states`, and then not at all.
    """

    def __init__(self, *answers, states=()):
        self.answers, self.states, self.sent, self.looked = list(answers), list(states), [], []
        self.trusted = set()  # each server, and whether requests to it are trusted

    async def ask(
        self, method, url, *, body=None, headers=None, public_only=False, trusted=False, **_
    ):
        self.trusted.add((url.partition("/api")[0], trusted))
        if method == "GET":
            self.looked.append(url)
            return self.states.pop(0) if self.states else HttpResponse(404, "Not Found")
        self.sent.append((method, url, body, dict(headers or {}), public_only))
        return self.answers.pop(0)


def made(session_id):
    return HttpResponse(200, "OK", {"sessionId": session_id})


def an_attempt(n=1, *, public_only=None, **fields):
    own = {} if public_only is None else {"public_only": public_only}
    target = read_target({"session": {"prompt": "Hello"} | fields} | own)
    return Attempt(
        run_id=n,
        schedule_id="daily",
        run_at=NOON + n,
        due_at=NOON * 1000,
        attempt=1,
        fence=1,
        target=target,
    )


def launch(line, *attempts, tidies=False, **given):
    """Return the outcomes of consecutive attempts with one registry."""

    async def whole():
        store = await SqliteStore.open(None, clock=ManualClock())
        known = {"url": "http://127.0.0.1:1", "cwd": "/srv", "busy_delay": 7, **given}
        launcher = SessionLauncher(check_url=CHECKS, ask=line.ask, store=store, **known)
        try:
            found = [await launcher.launch(each) for each in attempts]
            if tidies:
                await launcher.tidy()
            return found
        finally:
            await store.close()

    return asyncio.run(whole())


def test_success_returns_the_session_and_logs_the_requests():
    ((outcome, log),) = launch(Line(made("s-1"), OK), an_attempt())
    assert outcome == Succeeded({"sessionId": "s-1"})
    assert log.splitlines() == [
        "POST http://127.0.0.1:1/api/sessions",
        "HTTP 200 OK",
        "POST http://127.0.0.1:1/api/sessions/s-1/messages",
        "HTTP 200 OK",
        "the server does not report whether the session is busy",
    ]


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (HttpResponse(202, "Accepted"), Succeeded({"sessionId": "s"})),
        (HttpResponse(409, "Conflict"), Busy(BUSY, 7)),
        (HttpResponse(500, "Internal Server Error"), Failed("HTTP 500: Internal Server Error")),
        (HttpResponse(400, "Bad Request"), Failed("HTTP 400: Bad Request")),
        (HttpResponse(404, "Not Found"), Failed("HTTP 404: Not Found")),
        (Failed("no answer after 300s", "timeout"), Failed("no answer after 300s", "timeout")),
    ],
)
def test_answers_to_a_message_give_their_outcomes(answer, outcome):
    ((found, _),) = launch(Line(made("s"), answer), an_attempt())
    assert found == outcome


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (HttpResponse(503, "Service Unavailable"), "HTTP 503: Service Unavailable"),
        (HttpResponse(200, "OK", {"id": 7}), "the server created no session"),
        (HttpResponse(200, "OK", {"sessionId": "a\nb"}), "the server created no session"),
        (HttpResponse(200, "OK", {"sessionId": ".."}), "the server created no session"),
        (HttpResponse(200, "OK", {"sessionId": "."}), "the server created no session"),
        (HttpResponse(200, "OK", "hello"), "the server created no session"),
        (Failed("nobody is there"), "nobody is there"),
    ],
)
def test_failed_session_creation_is_a_retryable_error(answer, error):
    ((found, _),) = launch(Line(answer), an_attempt())
    assert found.error.startswith(error)
    assert found.retryable


def test_session_id_cannot_be_a_path():
    line = Line(made("../x?y"), OK)
    launch(line, an_attempt())
    assert line.sent[-1][1] == "http://127.0.0.1:1/api/sessions/..%2Fx%3Fy/messages"


def test_every_attempt_at_a_run_has_its_key():
    line = Line(made("s"), Failed("no"), OK)
    attempt = an_attempt()
    launch(line, attempt, attempt)
    keys = [headers.get("Idempotency-Key") for *_, headers, _ in line.sent]
    assert keys == [None, attempt.key, attempt.key]


def test_with_feedback_the_server_gets_the_callback_and_the_run_is_accepted():
    async def callback(key):
        return {"Onbeat-Callback": f"http://here/{key}", "Onbeat-Callback-Token": "t"}

    line = Line(made("s"), OK)
    ((found, _),) = launch(line, an_attempt(feedback=True), callback=callback)
    assert found == Accepted("s")
    assert line.sent[-1][3]["Onbeat-Callback"].startswith("http://here/")


def test_public_only_allows_the_operator_s_own_server():
    line = Line(made("a"), OK, made("b"), OK)
    mine = an_attempt(2, url="http://chat.example", persist=False)
    launch(line, an_attempt(persist=False), mine, public_only=True)
    asked = {(url.partition("/api")[0], public_only) for _, url, _, _, public_only in line.sent}
    assert asked == {("http://127.0.0.1:1", False), ("http://chat.example", True)}


def test_only_requests_to_the_operator_s_own_server_are_trusted():
    line = Line(made("a"), OK, OK, made("b"), OK, OK)
    mine = an_attempt(2, url="http://chat.example", persist=False)
    launch(line, an_attempt(persist=False), mine, tidies=True)
    assert len(line.looked) >= 2
    assert line.trusted == {("http://127.0.0.1:1", True), ("http://chat.example", False)}


def test_public_only_applies_to_urls_of_targets_only():
    line = Line(made("s"), OK, made("t"), OK)
    mine = an_attempt(url="http://chat.example", public_only=True)
    launch(line, an_attempt(public_only=True), mine)
    assert [public for *_, public in line.sent] == [False, False, True, True]
    assert line.sent[-1][1].startswith("http://chat.example/api/sessions/")


def test_session_of_one_server_is_never_used_on_another():
    line = Line(made("s"), OK, made("s"), OK, OK)
    mine = an_attempt(url="http://chat.example")
    launch(line, mine, an_attempt(2), an_attempt(3))
    assert [url for _, url, *_ in line.sent] == [
        "http://chat.example/api/sessions",
        "http://chat.example/api/sessions/s/messages",
        "http://127.0.0.1:1/api/sessions",
        "http://127.0.0.1:1/api/sessions/s/messages",
        "http://127.0.0.1:1/api/sessions/s/messages",
    ]


def test_sessions_with_one_id_on_two_servers_are_distinct():
    gone = HttpResponse(200, "OK")
    line = Line(made("s"), OK, made("s"), OK, gone, gone)
    mine = an_attempt(2, url="http://chat.example", persist=False, feedback=True)
    launch(line, an_attempt(persist=False, feedback=True), mine, tidies=True)
    assert [f"{method} {url}" for method, url, *_ in line.sent[4:]] == [
        "DELETE http://127.0.0.1:1/api/sessions/s",
        "DELETE http://chat.example/api/sessions/s",
    ]


def test_ephemeral_session_is_deleted_when_the_next_run_has_its_session():
    gone = HttpResponse(404, "Not Found")
    line = Line(made("a"), OK, made("b"), OK, gone)
    launch(line, an_attempt(persist=False), an_attempt(2, persist=False), tidies=True)
    assert [f"{method} {url.rpartition('1/')[2]}" for method, url, *_ in line.sent] == [
        "POST api/sessions",
        "POST api/sessions/a/messages",
        "POST api/sessions",
        "POST api/sessions/b/messages",
        "DELETE api/sessions/a",
    ]


def test_unavailable_server_gets_one_deletion_request_and_no_run_waits():
    line = Line(made("a"), OK, made("b"), OK, made("c"), OK, Failed("no answer"))
    attempts = [an_attempt(n, persist=False, feedback=True) for n in (1, 2, 3)]
    found = launch(line, *attempts, tidies=True)
    assert [outcome for outcome, _ in found] == [Accepted("a"), Accepted("b"), Accepted("c")]
    assert [method for method, *_ in line.sent] == ["POST"] * 6 + ["DELETE"]


def test_launch_without_a_server_fails_without_retry():
    ((found, _),) = launch(Line(), an_attempt(), url="")
    assert (found.reason, found.retryable) == ("invalid_target", False)


@pytest.mark.parametrize(
    ("session", "error"),
    [
        ("Hello", "session: 'Hello' is not a mapping"),
        ({}, "session.prompt: it is missing"),
        ({"prompt": " "}, "session.prompt: it is empty"),
        ({"prompt": 7}, "session.prompt: 7 is not a string"),
        ({"prompt": "x", "persist": 1}, "session.persist: 1 is not a boolean"),
        ({"prompt": "x", "mode": "y"}, "session.mode: no field has this name"),
        ({"prompt": "x", "url": "ftp://x"}, "session.url: 'ftp://x' is not a valid URL"),
        ({"prompt": "x", "url": "http://u:p@x"}, "session.url: 'x' is not a valid URL"),
    ],
)
def test_invalid_session_target_is_refused_when_defined(session, error):
    launcher = SessionLauncher(check_url=CHECKS, url="http://127.0.0.1:1")
    with pytest.raises(InvalidSchedule) as refused:
        launcher.check(Target("session", {"session": session}))
    assert str(refused.value).startswith(error)


def test_private_address_is_refused_with_public_only():
    launcher = SessionLauncher(check_url=CHECKS, url="http://127.0.0.1:1")
    fields = {"session": {"prompt": "x", "url": "http://127.0.0.1:2"}, "public_only": True}
    with pytest.raises(
        InvalidSchedule, match=r"session\.url: '127\.0\.0\.1' has no public address"
    ):
        launcher.check(Target("session", fields))
    launcher.check(Target("session", {"session": {"prompt": "x"}, "public_only": True}))


def test_target_needs_a_url_without_a_server_in_the_settings():
    launcher = SessionLauncher(check_url=CHECKS, url="")
    with pytest.raises(InvalidSchedule, match=r"session\.url: no chat server is configured"):
        launcher.check(Target("session", {"session": {"prompt": "x"}}))
    launcher.check(Target("session", {"session": {"prompt": "x", "url": "http://127.0.0.1:2"}}))


def test_sent_prompt_cannot_be_canceled():
    launcher = SessionLauncher(check_url=CHECKS, url="")
    assert not launcher.can_cancel(Target("session", {"session": {"prompt": "x"}}))


def test_run_that_is_not_launched_here_is_not_left():
    line = Line(made("s"), OK, states=[HttpResponse(200, "OK", {"isBusy": True})] * 2)

    async def whole():
        store = await SqliteStore.open(None, clock=ManualClock())
        launcher = SessionLauncher(
            check_url=CHECKS, ask=line.ask, store=store, url="http://127.0.0.1:1"
        )
        assert launcher.leave([1]) == frozenset()
        outcome, _ = await launcher.launch(an_attempt(1))
        await store.close()
        return outcome

    assert asyncio.run(whole()) == Succeeded({"sessionId": "s"})


def test_node_without_a_server_offers_only_targets_with_a_url():
    assert SessionLauncher(check_url=CHECKS, url="").offers() == ("session:url",)
    with_one = SessionLauncher(check_url=CHECKS, url="http://127.0.0.1:1")
    assert with_one.offers() == ("session", "session:url")
    assert read_target({"session": {"prompt": "x"}}).needs == "session"
    own = read_target({"session": {"prompt": "x", "url": "http://chat.example"}})
    assert own.needs == "session:url"


def test_ephemeral_session_never_becomes_the_schedule_s_session():
    line = Line(made("a"), OK, made("b"), OK)
    launch(line, an_attempt(persist=False), an_attempt(2))
    assert line.sent[-1][1].endswith("/api/sessions/b/messages")
