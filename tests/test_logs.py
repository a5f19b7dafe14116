"""Events as log lines: one a line, for people and for machines, with the reasons."""

import asyncio
import io
import json
import logging
import re
import time
from typing import get_args

import msgspec
import pytest

from onbeat.app import logs
from onbeat.core.decide.plan import plan
from onbeat.core.runs.run import Failed
from onbeat.events import (
    AnyEvent,
    GateChanged,
    HistoryPruned,
    NodeStopped,
    RunCanceled,
    RunClaimed,
    RunEnqueued,
    RunFailed,
    RunRetrying,
    RunSkipped,
    RunStarted,
    RunSucceeded,
    ScheduleCreated,
    ScheduleParked,
    SchedulePaused,
)
from onbeat.ports.store import Finished, Node
from onbeat.stores.sqlite.store import SqliteStore
from onbeat.testing import ManualClock, a_schedule

NOON = 1_767_268_800  # 2026-01-01T12:00:00Z
KINDS = get_args(AnyEvent)
RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z")
AT, MS = "2026-01-01T12:00:00Z", "2026-01-01T12:00:00.000Z"


@pytest.fixture(autouse=True)
def as_it_was():
    """Leave the logger as it was found."""
    before = logs.log.handlers, logs.log.level, logs.log.propagate
    yield
    logs.log.handlers, logs.log.propagate = before[0], before[2]
    logs.log.setLevel(before[1])


@pytest.fixture
def written():
    """Log events, and return the written text."""

    def written(*events, as_json=False, level="debug"):
        stream = io.StringIO()
        logs.set_up(level=level, as_json=as_json, stream=stream)
        logs.write_log(events)
        return stream.getvalue()

    return written


@pytest.fixture
def line(written):
    """Return the one line of an event, as text."""

    def line(event):
        text = written(event)
        assert text.count("\n") == 1
        assert text.endswith("\n")
        return text.rstrip("\n")

    return line


@pytest.fixture
def told(written):
    """Return the one line of an event, as JSON."""

    def told(event):
        text = written(event, as_json=True)
        assert text.count("\n") == 1
        return json.loads(text)

    return told


def an_event(kind):
    """Return an event with something in every field."""
    some = {"run_at": NOON, "first_run_at": NOON - 3600, "due_at": NOON * 1000, "open": True}
    fields = {}
    for field in msgspec.structs.fields(kind):
        a_text = field.type is str or field.type == str | None
        fields[field.name] = some.get(field.name, f"some {field.name}" if a_text else 7)
    return kind(**fields)


def name_of(kind):
    return kind.__name__


# -- every event


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_every_event_is_a_json_object_with_all_its_fields(told, kind):
    event = an_event(kind)
    found = told(event)
    assert found["event"] == event.name
    assert found["level"] == event.level
    assert RFC_3339.fullmatch(found["at"])
    said = {field.name for field in msgspec.structs.fields(kind)} - {"definition"}
    assert found.keys() == {"at", "level", "event"} | said


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_every_event_is_a_line_with_all_its_fields(line, kind):
    event = an_event(kind)
    text = line(event)
    assert re.match(rf"\d\d:\d\d:\d\d\.\d{{3}} {re.escape(event.name)} ", text)
    for field in msgspec.structs.fields(kind):
        if field.name == "schedule_id":
            assert " some schedule_id" in text
        elif field.name != "definition":
            assert f" {field.name}=" in text


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_event_with_required_fields_only_is_logged(line, told, kind):
    needed = {
        field.name: "x" if field.type is str else 7
        for field in msgspec.structs.fields(kind)
        if field.required
    }
    event = kind(**needed)
    assert event.name in line(event)
    assert told(event).keys() == {"at", "level", "event"} | needed.keys() - {"definition"}


# -- times


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_times_of_events_are_logged_as_rfc_3339(line, told, kind):
    event = an_event(kind)
    text, found = line(event), told(event)
    for name in {"run_at", "first_run_at", "due_at"} & found.keys():
        assert RFC_3339.fullmatch(found[name]), name
        assert f" {name}={found[name]}" in text


def test_run_at_has_seconds_and_due_at_has_milliseconds(told):
    found = told(RunEnqueued("report", 1, NOON, NOON * 1000 + 250))
    assert (found["run_at"], found["due_at"]) == (AT, "2026-01-01T12:00:00.250Z")


def test_history_from_is_logged_as_rfc_3339(line, told):
    event = HistoryPruned(NOON * 1000, 3)
    assert told(event)["history_from"] == MS
    assert f"history_from={MS}" in line(event)


# -- reasons


@pytest.mark.parametrize(
    ("event", "reasons"),
    [
        (RunSkipped("report", 7, NOON, "overlap", blocked_by=6), {"reason": "overlap", "blocked_by": 6}),
        (RunSkipped("report", 7, NOON, "missed", NOON - 3600, 61), {"reason": "missed", "first_run_at": "2026-01-01T11:00:00Z", "tick_count": 61}),
        (RunFailed("report", 7, NOON, 3, "exit", "exit code 2"), {"reason": "exit", "error": "exit code 2", "attempt": 3}),
        (RunRetrying("report", 7, NOON, 1, NOON * 1000, "timeout", "still running"), {"reason": "timeout", "error": "still running", "due_at": MS}),
        (RunCanceled("report", 7, NOON, "the schedule was deleted"), {"error": "the schedule was deleted"}),
        (ScheduleParked("report", "InvalidSchedule: no"), {"error": "InvalidSchedule: no"}),
        (SchedulePaused("report", "until Monday"), {"note": "until Monday"}),
    ],
    ids=lambda given: getattr(given, "name", None),
)  # fmt: skip
def test_line_has_the_reason_of_an_event(line, told, event, reasons):
    assert reasons.items() <= told(event).items()
    text = line(event)
    for name, value in reasons.items():
        shown = json.dumps(value) if " " in str(value) else value
        assert f" {name}={shown}" in text


def test_log_has_every_decision_start_and_reason():
    stream = io.StringIO()
    logs.set_up(level="info", as_json=True, stream=stream)
    clock, node = ManualClock(), Node("node-1", "here", frozenset({"command"}))

    def planned(schedule, run_at, unfinished, past, now):
        return plan(schedule, run_at, unfinished, past, now=now)

    async def story():
        store = await SqliteStore.open(
            None, clock=clock, inline=True, listener=lambda _, events: logs.write_log(events)
        )
        await store.register(node)
        await store.upsert([a_schedule("report", every="1h")])
        clock.advance("1h")
        (attempt,) = (await store.plan_due(planned, limit=10, node=node, slots=1)).attempts
        clock.advance("1h")
        await store.plan_due(planned, limit=10)
        await store.finish([Finished(attempt, Failed("exit code 1", "exit", exit_code=1))])
        await store.close()

    asyncio.run(story())
    found = [json.loads(text) for text in stream.getvalue().splitlines()]
    names = ("event", "run_at", "reason", "error")
    assert [tuple(each.get(name) for name in names) for each in found] == [
        ("node.started", None, None, None),
        ("schedule.created", "2026-01-01T13:00:00Z", None, None),
        ("run.started", "2026-01-01T13:00:00Z", None, None),
        ("run.skipped", "2026-01-01T14:00:00Z", "overlap", None),
        ("run.failed", "2026-01-01T13:00:00Z", "exit", "exit code 1"),
    ]


# -- how loudly


def test_log_level_filters_events(written):
    claimed = RunClaimed("report", 7, NOON, "node-1", 1)
    started = RunStarted("report", 7, NOON, 1, "node-1", 1)
    failed = RunFailed("report", 7, NOON, 1, "exit")
    gate = GateChanged(open=False)
    every = (claimed, started, gate, failed)

    def names(level):
        text = written(*every, as_json=True, level=level)
        return [json.loads(each)["event"] for each in text.splitlines()]

    assert names("debug") == ["run.claimed", "run.started", "gate.changed", "run.failed"]
    assert names("info") == ["run.started", "gate.changed", "run.failed"]
    assert names("warning") == ["gate.changed", "run.failed"]
    assert names("error") == ["run.failed"]


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_level_of_every_event_exists_in_logging(kind):
    assert kind.level in {"debug", "info", "warning", "error"}


# -- lines that stay lines


def test_definition_is_not_logged(line, told):
    event = ScheduleCreated("report", 1, '{"every":"1h","run":{"command":["true"]}}', NOON)
    assert "command" not in line(event)
    assert "definition" not in told(event)


@pytest.mark.parametrize(
    "error",
    [
        "no data",
        "a\n  b",
        'it said "no" twice',
        "naïve ☃",
        "a\\b c",
        "a\nb",
        "a\rb",
        "\x1b[2J",
    ],
)
def test_error_with_control_characters_stays_on_one_line(written, error):
    text = written(RunFailed("report", 7, NOON, 1, "error", error))
    assert len(text.splitlines()) == 1
    assert text.rstrip("\n").isprintable()
    machine = written(RunFailed("report", 7, NOON, 1, "error", error), as_json=True)
    assert len(machine.splitlines()) == 1
    assert json.loads(machine)["error"] == error


def test_lone_surrogate_is_logged_in_json(told):
    assert told(RunFailed("report", 7, NOON, 1, "error", "ol\udce9"))["error"] == "ol\udce9"


# -- beside events


@pytest.mark.parametrize("as_json", [True, False])
def test_messages_of_the_engine_have_the_same_format(written, as_json):
    stream = io.StringIO()
    logs.set_up(level="info", as_json=as_json, stream=stream)
    logging.getLogger("onbeat.engine").warning("heartbeat failed: %s", "the disk is full")
    text = stream.getvalue()
    assert len(text.splitlines()) == 1
    assert "heartbeat failed: the disk is full" in text
    if as_json:
        assert json.loads(text)["level"] == "warning"


@pytest.mark.parametrize("as_json", [True, False])
def test_exception_is_logged_with_its_traceback(as_json):
    stream = io.StringIO()
    logs.set_up(level="info", as_json=as_json, stream=stream)
    broken = RuntimeError("boom")
    logging.getLogger("onbeat.engine").error("run %d: its launcher failed", 7, exc_info=broken)
    text = stream.getvalue()
    if as_json:
        assert "RuntimeError: boom" in json.loads(text)["trace"]
    else:
        assert text.splitlines()[0].endswith("run 7: its launcher failed")
        assert text.splitlines()[-1] == "RuntimeError: boom"


def test_repeated_setup_logs_each_event_once(written):
    written(NodeStopped("node-1"))
    assert written(NodeStopped("node-1")).count("node.stopped") == 1


def test_events_are_not_propagated_to_other_loggers(caplog, written):
    written(NodeStopped("node-1"))
    assert caplog.records == []


def test_program_with_other_logging_receives_events(caplog):
    caplog.set_level("INFO")
    logs.write_log([RunSkipped("report", 7, NOON, "overlap")])
    assert [record.name for record in caplog.records] == ["onbeat"]
    assert caplog.records[0].fields["reason"] == "overlap"


def test_message_of_an_event_has_schedule_and_error(caplog):
    caplog.set_level("INFO")
    logs.write_log([RunFailed("report", 7, NOON, 1, "exit", "exit code 2")])
    message = caplog.records[0].getMessage()
    for word in ("run.failed", "report", "exit code 2"):
        assert word in message


# -- on a terminal


class Screen(io.StringIO):
    """A terminal, of which the width is not known."""

    def isatty(self):
        return True


@pytest.fixture
def shown(monkeypatch):
    """Log events to a terminal that many milliseconds after NOON; return the lines."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    lines = []

    def shown(*events, has_colours=False, level="info"):
        screen = Screen()
        logs.set_up(level=level, as_json=False, stream=screen, has_colours=has_colours)
        for after, event in events:
            record = (NOON * 1000 + after) / 1000
            monkeypatch.setattr("logging.time.time", lambda at=record: at)
            logs.write_log([event])
        lines[:] = screen.getvalue().splitlines()
        return lines

    yield shown
    monkeypatch.undo()
    time.tzset()


def test_terminal_line_of_a_run_has_local_time_lateness_and_outcome(shown):
    assert shown(
        (12, RunStarted("report", 7, NOON, 1, "node-1", 1, due_at=NOON * 1000)),
        (40, RunSucceeded("report", 7, NOON, 1)),
    ) == [
        "13:00:00  started    report                run 7, +12 ms",
        "13:00:00  succeeded  report                run 7, after 28 ms",
    ]


def test_lateness_of_a_waiting_run_counts_from_its_due_time(shown):
    lines = shown(
        (0, RunEnqueued("report", 7, NOON, NOON * 1000 + 1000, "manual")),
        (2500, RunStarted("report", 7, NOON, 2, "node-1", 1)),
        (3700, RunFailed("report", 7, NOON, 2, "exit", "exit code 2", failures=3)),
    )
    assert lines == [
        "13:00:00  enqueued   report                run 7, manual, due 13:00:01",
        "13:00:02  started    report                run 7, attempt 2, +1.5 s",
        "13:00:03  failed     report                run 7, after 1.2 s, attempt 2, 3 in a row, exit code 2",
    ]


def test_lateness_of_a_retry_counts_from_its_due_time(shown):
    lines = shown(
        (0, RunRetrying("report", 7, NOON, 1, NOON * 1000 + 2000, "exit", "exit code 2")),
        (2004, RunStarted("report", 7, NOON, 2, "node-1", 1, triggered_by="retry")),
    )
    assert lines[1] == "13:00:02  started    report                run 7, attempt 2, +4 ms"


def test_other_events_are_short_on_a_terminal(shown):
    lines = shown(
        (0, ScheduleCreated("report", 1, "{}", NOON + 3600)),
        (0, ScheduleCreated("report", 1, "{}", NOON + 86_400)),
        (0, RunSkipped("report", 7, NOON, "overlap", blocked_by=6)),
        (0, RunRetrying("report", 8, NOON, 1, NOON * 1000 + 30_000, "exit", "exit code 2")),
        (0, GateChanged(open=False)),
        (0, NodeStopped("0123456789abcdef")),
        (0, SchedulePaused("report", "until Monday")),
    )
    assert lines == [
        "13:00:00  created    report                revision 1, next 14:00:00",
        "13:00:00  created    report                revision 1, next 2026-01-02 13:00:00",
        "13:00:00  skipped    report                run 7, overlap, run 6 is in flight",
        "13:00:00  retrying   report                run 8, attempt 2 at 13:00:30, exit code 2",
        "13:00:00  gate                             closed: nothing is decided and nothing starts",
        "13:00:00  node down  0123456789ab",
        '13:00:00  paused     report                note="until Monday"',
    ]


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_every_event_fits_on_a_terminal_line(shown, kind):
    event = an_event(kind)
    (line,) = shown((0, event), level="debug")
    assert len(line) <= 100
    assert re.match(r"13:00:00  \S", line)


def test_error_cannot_control_the_terminal(shown):
    error = "a\n\x1b[2J" + "b" * 200
    (line,) = shown((0, RunFailed("report", 7, NOON, 1, "error", error)))
    assert line.isprintable()
    assert line.endswith("…")
    assert len(line) == 100


def test_outcome_is_coloured_on_a_terminal_with_colours(shown):
    failed = RunFailed("report", 7, NOON, 1, "exit", "exit code 2")
    assert "\x1b" not in shown((0, failed))[0]
    assert "\x1b[31mfailed   \x1b[0m" in shown((0, failed), has_colours=True)[0]


def test_message_on_a_terminal_has_its_level_and_is_not_cut(shown):
    shown()
    logging.getLogger("onbeat.engine").warning("no heartbeat: %s", "x" * 200)
    line = logs.log.handlers[0].stream.getvalue().splitlines()[-1]
    assert re.fullmatch(r"\d\d:\d\d:\d\d  warning    no heartbeat: x{200}", line)


def test_json_is_written_to_a_terminal_on_request():
    screen = Screen()
    logs.set_up(level="info", as_json=True, stream=screen)
    logs.write_log([NodeStopped("node-1")])
    assert json.loads(screen.getvalue())["event"] == "node.stopped"
