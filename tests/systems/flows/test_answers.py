"""What a panel answers, and what is read from it."""

import pytest

from onbeat.core.runs.run import Failed, Succeeded
from onbeat.ports.http import HttpResponse
from onbeat.systems.flows.answers import (
    IN_DOUBT,
    FlowStatus,
    Form,
    Launched,
    Unavailable,
    UnknownFlow,
    Unreadable,
    is_canceled,
    panel_error_text,
    read_form,
    read_launch,
    read_status,
    status_line,
)

PATH = "/-/127.0.0.1/8125/-/"
UNSENT = Failed("connection refused", "launch_failed")
UNANSWERED = Failed("no answer within 60 s", "timeout")
FORBIDDEN = Failed("an address that is not public", "invalid_target", retryable=False)
NO_OBJECT = "no JSON object of up to 1 MiB"
PHRASES = {200: "OK", 204: "No Content", 404: "Not Found", 502: "Bad Gateway"}


def answer(status, body=None):
    return HttpResponse(status, PHRASES.get(status, ""), body)


def not_launched(error, reason="launch_failed"):
    return Failed(error, reason, retryable=False)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (answer(200, {"elements": [{"name": "query"}, {"name": "limit"}]}), {"query", "limit"}),
        (answer(200, {"elements": [{"type": "text"}, "markdown", {"name": 3}]}), set()),
        (answer(200, {"elements": []}), set()),
        (answer(200, {"elements": "query"}), None),
        (answer(200, {}), None),
        (answer(200, "<html>"), None),
        (answer(302), None),
    ],
)
def test_form_has_the_names_of_its_fields(given, found):
    assert read_form(PATH, given) == Form(None if found is None else frozenset(found))


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (UNSENT, Unavailable("connection refused")),
        (UNANSWERED, Unavailable("no answer within 60 s")),
        (answer(502), Unavailable("HTTP 502: Bad Gateway")),
        (answer(503, {"detail": "starting"}), Unavailable("HTTP 503: starting")),
        (answer(429), Unavailable("HTTP 429")),
        (
            answer(404, {"error": "no such flow"}),
            not_launched(f"the panel has no flow {PATH}: HTTP 404: Not Found: no such flow"),
        ),
        (answer(403, "for operators only"), not_launched("HTTP 403: for operators only")),
    ],
)
def test_missing_form_is_unavailable_or_a_failed_launch(given, found):
    assert read_form(PATH, given) == found


@pytest.mark.parametrize(
    ("fields", "missing"),
    [(None, []), (frozenset(), ["limit", "query"]), (frozenset({"query", "more"}), ["limit"])],
)
def test_inputs_missing_from_a_known_form_are_named_in_order(fields, missing):
    assert Form(fields).missing({"query": "x", "limit": 5}) == missing


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (answer(200, {"result": "abc", "elements": []}), Launched("abc")),
        (answer(200, {"result": "abc", "errors": {}}), Launched("abc")),
        (answer(200, {"result": "a" * 200}), Launched("a" * 200)),
        (answer(200, {"result": "a" * 201}), not_launched("the panel returned an invalid id")),
        (answer(200, {"result": "a\nb"}), not_launched("the panel returned an invalid id")),
        (answer(200, {"result": ""}), not_launched("the panel returned an invalid id")),
        (
            answer(200, {"errors": {"query": ["a", "b"], "limit": "c", "_global_": []}}),
            not_launched("the flow refused its inputs: query: a, b; limit: c"),
        ),
        (
            answer(200, {"result": "abc", "errors": {"query": ["required"]}}),
            not_launched("the flow refused its inputs: query: required"),
        ),
        (
            answer(200, {"errors": {"_global_": []}}),
            not_launched("the flow refused its inputs: no reason given"),
        ),
        (
            answer(200, {"errors": ["required"]}),
            not_launched("the panel returned no id: unknown whether a flow was launched"),
        ),
        (
            answer(200, {"result": 7}),
            not_launched("the panel returned no id: unknown whether a flow was launched"),
        ),
        (
            answer(200, "<html>"),
            not_launched("the panel returned no id: unknown whether a flow was launched"),
        ),
        (
            answer(404, {"detail": "gone"}),
            not_launched("the panel refused the launch: HTTP 404: Not Found: gone"),
        ),
    ],
)
def test_launch_has_an_id_or_is_refused(given, found):
    assert read_launch(given) == found


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (UNSENT, Unavailable("connection refused")),
        (answer(503), Unavailable("HTTP 503")),
        (answer(429), Unavailable("HTTP 429")),
        (FORBIDDEN, FORBIDDEN),
        (UNANSWERED, not_launched(f"no answer within 60 s: {IN_DOUBT}", "lost")),
        (answer(500), not_launched(f"HTTP 500: {IN_DOUBT}", "lost")),
        (answer(502), not_launched(f"HTTP 502: Bad Gateway: {IN_DOUBT}", "lost")),
    ],
)
def test_launch_without_an_answer_is_lost_if_it_may_have_arrived(given, found):
    assert read_launch(given) == found


@pytest.mark.parametrize(
    ("given", "found"),
    [
        *((answer(200, {"status": each}), FlowStatus(each)) for each in ("starting", "awaiting")),
        (answer(200, {"status": "running", "final": "1"}), FlowStatus("running")),
        (answer(200, {}), FlowStatus("None")),
        (answer(200, "<html>"), Unreadable(f"HTTP 200 OK, and {NO_OBJECT}: '<html>'")),
        (answer(200, ["running"]), Unreadable(f"HTTP 200 OK, and {NO_OBJECT}: ['running']")),
        (answer(302), Unreadable(f"HTTP 302, and {NO_OBJECT}: None")),
        (UNSENT, Unavailable("connection refused")),
        (UNANSWERED, Unavailable("no answer within 60 s")),
        (answer(502), Unavailable("HTTP 502: Bad Gateway")),
        (answer(403), Unavailable("HTTP 403")),
        (
            answer(404, {"detail": "Execution nope not found after 1s."}),
            UnknownFlow("HTTP 404: Not Found: Execution nope not found after 1s."),
        ),
        (answer(410), UnknownFlow("HTTP 410")),
    ],
)
def test_status_of_a_flow_that_has_not_ended_has_no_outcome(given, found):
    assert read_status(given) == found


@pytest.mark.parametrize(
    ("final", "result"),
    [
        ('{"Text": {"body": "done"}}', {"Text": {"body": "done"}}),
        ("3", 3),
        ("not JSON", "not JSON"),
        ("[" * 10_000, "[" * 10_000),
        ({"already": "decoded"}, {"already": "decoded"}),
        (None, None),
    ],
)
def test_result_of_a_finished_flow_is_decoded(final, result):
    found = read_status(answer(200, {"status": "finished", "final": final}))
    assert found == FlowStatus("finished", Succeeded(result))


@pytest.mark.parametrize(
    ("final", "error"),
    [
        ('{"Text": {"body": "no more quota"}}', "no more quota"),
        ("no more quota", "no more quota"),
        ('{"code": 3, "text": "x"}', "{'code': 3, 'text': 'x'}"),
        ("", "the flow failed without an error message"),
        ('{"Text": {"body": ""}}', "the flow failed without an error message"),
        (None, "the flow failed without an error message"),
    ],
)
def test_error_of_a_failed_flow_is_its_innermost_text(final, error):
    found = read_status(answer(200, {"status": "error", "final": final}))
    assert found == FlowStatus("error", Failed(error))


@pytest.mark.parametrize(
    ("given", "canceled"),
    [
        (answer(204), True),
        (answer(200), True),
        (answer(404), True),
        (answer(410), True),
        (answer(302), False),
        (answer(403), False),
        (answer(502), False),
        (UNSENT, False),
    ],
)
def test_flow_is_canceled_once_the_panel_confirms_it_or_does_not_know_it(given, canceled):
    assert is_canceled(given) is canceled


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (answer(204), "HTTP 204 No Content"),
        (answer(299), "HTTP 299"),
        (UNSENT, "connection refused"),
    ],
)
def test_status_line_names_the_status_or_the_failure(given, line):
    assert status_line(given) == line


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (UNSENT, "connection refused"),
        (answer(502), "HTTP 502: Bad Gateway"),
        (answer(502, " a\n  reason "), "HTTP 502: Bad Gateway: a reason"),
        (answer(502, {"detail": "d", "error": "e"}), "HTTP 502: Bad Gateway: d"),
        (answer(502, {"detail": ["d"], "message": "m"}), "HTTP 502: Bad Gateway: m"),
        (answer(502, {"reason": "r"}), "HTTP 502: Bad Gateway"),
        (answer(502, "x" * 600), f"HTTP 502: Bad Gateway: {'x' * 500}"),
    ],
)
def test_error_of_an_answer_has_the_reason_of_the_panel(given, error):
    assert panel_error_text(given) == error
