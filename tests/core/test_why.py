"""What `why` says: of runs by their reason, of instants that are no tick, and of what is to come."""

import json

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from onbeat import after, at, calendar, cron, daily, every, startup
from onbeat.core.decide.outcomes import UNREPORTED
from onbeat.core.explain.attempts import UNLAUNCHED
from onbeat.core.explain.facts import (
    DefinitionSpan,
    Facts,
    GroupFacts,
    NodeFacts,
    RunFacts,
    UpFacts,
)
from onbeat.core.explain.reasons import SENTENCES
from onbeat.core.explain.why import explain
from onbeat.core.explain.why_no_tick import why_no_tick
from onbeat.core.runs.decisions import Due
from onbeat.core.runs.run import REASONS, PastAttempt, ReasonDetail, Status
from onbeat.core.schedule import from_definition
from onbeat.core.time.instants import parse_instant
from onbeat.core.triggers.kinds import Manual
from onbeat.core.triggers.past import NO_PAST, Past
from onbeat.service.serialize import why_fields
from onbeat.testing import a_schedule

NOON = parse_instant("2026-01-01T12:00:00Z")
HOUR = 3600


def told(trigger, when, past=NO_PAST):
    """Return why an instant is no tick of a trigger."""
    t = parse_instant(when)
    assert not trigger.has(t, past)
    return why_no_tick(trigger, t, past)


def a_run(status=Status.SKIPPED, **fields):
    return RunFacts(7, NOON, status, NOON * 1000, **fields)


def a_skip(reason, **fields):
    """Return a run that was skipped as it was decided."""
    at = NOON * 1000
    return a_run(Status.SKIPPED, reason=reason, created_at=at, finished_at=at, **fields)


def asked(run=None, *, when=NOON, now=NOON + HOUR, **fields):
    """Explain an instant of a schedule, which is hourly unless told."""
    policy = {
        name: fields.pop(name) for name in list(fields) if name not in Facts.__struct_fields__
    }
    usual = {"decided_until": now, "created_at": (NOON - 86_400) * 1000}
    schedule = a_schedule("report", **policy)
    usual["spells"] = [DefinitionSpan(schedule, NOON - 86_400)]
    return explain(Facts("report", when, now * 1000, schedule, run=run, **usual | fields))


class TestTheReasons:
    def test_each_has_a_sentence_and_there_is_no_other(self):
        assert set(SENTENCES) == set(REASONS)
        assert len(set(SENTENCES.values())) == len(REASONS)

    @pytest.mark.parametrize("reason", [each for each in REASONS if each != "coalesced"])
    def test_a_row_that_has_one_is_told_in_its_sentence(self, reason):
        policy = {"group": "gpu", "start_deadline": "5m", "rate": "3/day"}
        status = Status.SKIPPED if reason not in ("exit", "lost", "timeout") else Status.FAILED
        run = a_run(status, reason=reason, attempt=1, error="it broke\nin two lines", exit_code=3)
        found = asked(run, **policy)
        assert found.reason == reason
        assert reason in found.headline
        first = found.sentences[0]
        assert "{" not in first
        assert "None" not in first
        assert "\n" not in first

    def test_the_blocker_is_named_with_its_times_and_what_a_queue_would_have_done(self):
        blocker = RunFacts(
            6, NOON - HOUR, Status.SUCCESS, 0, attempt=1, started_at=(NOON - HOUR) * 1000 + 7,
            finished_at=NOON * 1000 + 30_120,
        )  # fmt: skip
        found = asked(a_skip("overlap", blocked_by=6), blocker=blocker)
        assert found.sentences == [
            (
                "run 6 (tick of 2026-01-01T11:00:00Z) was running since 2026-01-01T11:00:00.007Z, "
                "and overlap is skip"
            ),
            "run 6 ended at 2026-01-01T12:00:30.120Z: SUCCESS",
        ]
        assert found.instead == (
            "with overlap=queue it would have started at 2026-01-01T12:00:30.120Z"
        )

    def test_those_behind_others_would_have_started_later(self):
        blocker = RunFacts(6, NOON, Status.SUCCESS, 0, started_at=0, finished_at=NOON * 1000)
        run = a_run(reason="overlap", blocked_by=6)
        found = asked(run, blocker=blocker, is_first_behind=False)
        assert found.instead.startswith("with overlap=queue it would have started after those")

    def test_a_blocker_that_has_not_started_is_to_be_asked_of(self):
        blocker = RunFacts(6, NOON - HOUR, Status.ENQUEUED, 0)
        found = asked(a_skip("overlap", blocked_by=6), blocker=blocker)
        assert found.sentences[0] == (
            "run 6 (tick of 2026-01-01T11:00:00Z) was waiting to start, and overlap is skip"
        )
        assert found.sentences[1] == "run 6 has not started yet: ask why of 2026-01-01T11:00:00Z"
        assert found.instead == "with overlap=queue it would start when that one ends"

    def test_a_tick_that_another_run_stands_for_is_coalesced(self):
        run = RunFacts(
            7, NOON, Status.SUCCESS, 0, attempt=1, first_run_at=NOON - 3 * HOUR, tick_count=4,
            triggered_by="catchup", started_at=NOON * 1000, finished_at=NOON * 1000 + 5,
            created_at=NOON * 1000,
        )  # fmt: skip
        found = asked(run, when=NOON - HOUR)
        assert (found.kind, found.reason) == ("coalesced", "coalesced")
        assert found.headline == "run 7 stands for it"
        assert found.sentences[0] == (
            "4 due ticks were decided together at 2026-01-01T12:00:00.000Z: "
            "run 7 (tick of 2026-01-01T12:00:00Z) stands for them"
        )
        assert asked(run).kind == "ran"

    def test_a_range_says_what_it_stands_for(self):
        run = a_run(reason="paused", first_run_at=NOON - HOUR, tick_count=2)
        told = "one row stands for 2 ticks, from 2026-01-01T11:00:00Z to 2026-01-01T12:00:00Z"
        assert told in asked(run).sentences

    @pytest.mark.parametrize(
        ("reason", "policy", "instead"),
        [
            ("queue_full", {"overlap": "queue"}, "with queue_keep=latest it would have waited"),
            ("missed", {"catchup": "none"}, "with catchup=once the latest due tick would have run"),
            ("missed", {}, "with a catchup_window of at least 0 s it would have been caught up"),
            ("rate", {"rate": "1/day"}, "with a higher rate it could have started"),
            ("deadline", {"start_deadline": "5s"}, "without a start_deadline it would have"),
            ("superseded", {"overlap": "replace"}, "with overlap=queue it would have had its turn"),
            ("lost", {}, "with on_lost=retry it would have been started again"),
            ("exit", {}, "with retry=[30s] it would have been tried again"),
            ("overlap", {"overlap": "allow", "max_active": 1}, "without max_active it would have"),
        ],
    )
    def test_where_a_policy_decided_it_says_what_another_would_have_done(
        self, reason, policy, instead
    ):
        status = Status.FAILED if reason in ("lost", "exit") else Status.SKIPPED
        rule = "catchup" if policy.get("catchup") == "none" else "window"
        run = a_run(
            status, reason=reason, attempt=1 if status is Status.FAILED else 0,
            error="its node fell silent", deadline_at=NOON * 1000, finished_at=NOON * 1000,
            detail=ReasonDetail(rule=rule if reason == "missed" else None),
        )  # fmt: skip
        assert asked(run, **policy).instead.startswith(instead)

    @pytest.mark.parametrize("reason", ["gate_off", "paused", "condition", "disabled", "signal"])
    def test_where_none_would_have_it_says_nothing(self, reason):
        assert asked(a_run(reason=reason)).instead is None


class TestWaiting:
    def waits(self, **fields):
        nodes = fields.pop("nodes", [NodeFacts("one", frozenset({"command"}))])
        names = RunFacts.__struct_fields__
        run = {name: fields.pop(name) for name in list(fields) if name in names}
        found = asked(a_run(Status.ENQUEUED, **run), nodes=nodes, **fields)
        assert found.kind == "waiting"
        return list(found.sentences)

    def test_for_a_free_place(self):
        assert self.waits() == ["it waits for a free place: one could start it"]

    def test_for_a_node(self):
        assert self.waits(nodes=[]) == ["no node is up: it waits for one (onbeat up)"]

    def test_for_a_node_that_offers_it(self):
        found = self.waits(nodes=[NodeFacts("one", frozenset({"python"}))])
        assert found == ["it waits for a node that offers command; up are one"]

    def test_in_the_queue(self):
        assert self.waits(blocked_by=6) == ["it waits in the queue, behind run 6"]

    def test_for_a_place_in_its_group(self):
        group = GroupFacts("gpu", 1, [RunFacts(6, NOON, Status.STARTED, 0, schedule_id="other")])
        assert self.waits(group=group) == [
            "it waits for a place in group gpu, which has 1: run 6 of other"
        ]

    def test_for_its_next_attempt(self):
        later = (NOON + 2 * HOUR) * 1000
        run = {"attempt": 1, "reason": "exit", "due_at": later}
        found = asked(RunFacts(7, NOON, Status.ENQUEUED, **run))
        assert list(found.sentences) == [
            "attempt 1 ended: exit", "attempt 2 is due at 2026-01-01T14:00:00.000Z, in 60 min",
        ]  # fmt: skip

    def test_for_the_gate_and_for_the_end_of_a_pause(self):
        found = self.waits(gate_closed_at=NOON * 1000, is_paused=True, pause_note="holiday")
        assert found == [
            "the gate is closed since 2026-01-01T12:00:00.000Z: nothing starts",
            "the schedule is paused (holiday)",
        ]

    def test_not_for_ever(self):
        found = self.waits(deadline_at=(NOON + 2 * HOUR) * 1000)
        assert found[-1] == "it is given up if it has not started by 2026-01-01T14:00:00.000Z"


class TestRunning:
    def test_it_says_since_when_and_whether_it_was_asked_to_end(self):
        run = a_run(
            Status.STARTED, attempt=2, started_at=NOON * 1000, leased_by="n", reason="superseded",
            end_asked_at=NOON * 1000 + 1,
        )  # fmt: skip
        found = asked(run, nodes=[NodeFacts("one", frozenset(), "n")])
        assert found.kind == "running"
        assert found.sentences == [
            "attempt 2, since 2026-01-01T12:00:00.000Z",
            "its end was requested at 2026-01-01T12:00:00.001Z: superseded",
        ]

    @pytest.mark.parametrize(
        ("nodes", "by"), [([], "the next node that starts"), (["two"], "another node")]
    )
    def test_of_a_node_that_fell_silent_it_says_that_nothing_is_known(self, nodes, by):
        run = a_run(Status.STARTED, attempt=1, started_at=NOON * 1000, leased_by="gone")
        found = asked(run, nodes=[NodeFacts(name, frozenset(), name) for name in nodes])
        told = "its node is silent: whether it still runs is not known;"
        assert found.sentences[1:] == [f"{told} {by} decides it"]

    @pytest.mark.parametrize(
        ("policy", "limit"),
        [({"warn_after": "5s"}, "its warn_after of 5 s"), ({}, "three times its usual p99")],
    )
    def test_stuck_run_is_named_with_its_limit(self, policy, limit):
        run = a_run(Status.STARTED, attempt=1, started_at=NOON * 1000, stuck_at=NOON * 1000 + 6000)
        said = f"it takes longer than {limit}: reported at 2026-01-01T12:00:06.000Z"
        assert said in asked(run, **policy).sentences

    def test_what_was_accepted_has_until_its_deadline(self):
        run = a_run(Status.STARTED, attempt=1, external_id="x1", deadline_at=NOON * 1000 + 5)
        told = "its target has accepted it as x1, and has until 2026-01-01T12:00:00.005Z"
        assert told in asked(run).sentences

    def test_accepted_run_that_blocks_a_tick_is_named_with_its_deadline(self):
        blocker = RunFacts(
            6,
            NOON,
            Status.STARTED,
            0,
            attempt=1,
            started_at=NOON * 1000,
            deadline_at=NOON * 1000 + 5,
        )
        told = asked(a_skip("overlap", blocked_by=6), blocker=blocker).sentences
        assert told[0] == (
            "run 6 (tick of 2026-01-01T12:00:00Z) was running since 2026-01-01T12:00:00.000Z, "
            "and overlap is skip"
        )
        assert (
            "run 6 is accepted by its target, and in flight until it is reported, or until "
            "2026-01-01T12:00:00.005Z (onbeat cancel 6 frees the schedule at once)"
        ) in told

    def test_run_that_was_not_reported_by_its_deadline_needs_a_longer_timeout(self):
        run = a_run(Status.FAILED, reason="timeout", error=UNREPORTED, attempt=1)
        assert asked(run).instead == "with a longer timeout its report would have been waited for"


class TestWithoutARow:
    def test_a_tick_to_come(self):
        found = asked(when=NOON + 3 * HOUR)
        assert (found.kind, found.headline) == ("to_come", "it is to come, in 2 h")
        assert (found.previous, found.following) == (NOON + 2 * HOUR, NOON + 4 * HOUR)

    def test_one_that_jitter_moves(self):
        due = Due(NOON + 2 * HOUR, (NOON + 2 * HOUR) * 1000 + 1500)
        found = asked(when=NOON + 2 * HOUR, due=due)
        assert found.sentences == [
            "it is due at 2026-01-01T14:00:01.500Z: jitter or hours (within) moved it"
        ]

    def test_one_that_would_meet_a_pause(self):
        found = asked(when=NOON + 3 * HOUR, is_paused=True, paused_until=(NOON + HOUR) * 1000)
        assert found.sentences == ["the schedule is paused until 2026-01-01T13:00:00.000Z"]

    def test_one_that_is_due_and_undecided(self):
        found = asked(when=NOON, decided_until=NOON - 1)
        assert found.kind == "undecided"
        assert found.sentences == ["no node is up: it is decided when one is (onbeat up)"]

    def test_one_from_before_it_was_there(self):
        found = explain(Facts("report", NOON, NOON * 1000, None, created_at=(NOON + 60) * 1000))
        assert found.headline == "the schedule exists since 2026-01-01T12:01:00.000Z"

    def test_one_that_is_forgotten(self):
        assert asked(history_from=(NOON + 60) * 1000).kind == "forgotten"

    def test_a_schedule_that_was_not_there(self):
        found = explain(Facts("report", NOON, NOON * 1000, None))
        assert (found.kind, found.previous) == ("not_there", None)

    def test_an_instant_that_is_no_tick_has_its_neighbours(self):
        found = asked(when=NOON + 60)
        assert (found.kind, found.previous, found.following) == ("no_tick", NOON, NOON + HOUR)

    @pytest.mark.parametrize(
        ("when", "previous", "following"),
        [
            (NOON - HOUR, None, NOON),
            (NOON, NOON - HOUR, None),
            (NOON + 3 * HOUR, NOON, None),
            (NOON + 3 * HOUR + 60, NOON, None),
        ],
    )
    def test_ticks_after_max_runs_is_used_up_are_no_neighbours(self, when, previous, following):
        schedule = a_schedule("report", max_runs=2)
        found = explain(
            Facts(
                "report", when, (NOON + 5 * HOUR) * 1000, schedule, decided_until=NOON,
                past=Past(created_at=NOON - HOUR - 60, runs_used=2),
                spells=[DefinitionSpan(schedule, NOON - HOUR - 60)],
            )
        )  # fmt: skip
        assert (found.previous, found.following) == (previous, following)

    @pytest.mark.parametrize(
        ("definition", "said"),
        [
            ({"enabled": False}, "the schedule is disabled (enabled: false): it will be skipped"),
            (
                {"run": {"command": ["true"], "enabled": False}},
                "what it starts is disabled (run.enabled: false): it will be skipped",
            ),
        ],
    )
    def test_tick_to_come_of_a_disabled_schedule_says_that_it_will_be_skipped(
        self, definition, said
    ):
        given = {"every": "1h", "run": {"command": ["true"]}} | definition
        schedule = from_definition("report", json.dumps(given))
        found = explain(
            Facts(
                "report",
                NOON + HOUR,
                NOON * 1000,
                schedule,
                spells=[DefinitionSpan(schedule, NOON)],
            )
        )
        assert (found.kind, found.sentences) == ("to_come", [said])

    def test_the_fields_are_plain(self):
        assert to_builtins(why_fields(asked(when=NOON + 60))) == {
            "schedule_id": "report", "at": "2026-01-01T12:01:00Z", "kind": "no_tick",
            "reason": None, "headline": "it is not a tick",
            "sentences": ["it is not on the grid of every hour"], "instead": None, "run_id": None,
            "status": None, "previous": "2026-01-01T12:00:00Z", "next": "2026-01-01T13:00:00Z",
            "triggered_by": None, "attempts": [], "note": "", "also": [],
        }  # fmt: skip


BERLIN = "Europe/Berlin"


class TestNoTick:
    def test_each_field_that_fails_is_named(self):
        trigger = cron("0 9 * * MON-FRI", tz=BERLIN)
        assert told(trigger, "2026-01-03T08:30:00Z") == (
            "2026-01-03T09:30:00+01:00 in Europe/Berlin: minute is 30, not 0 and "
            "day of week is Saturday, not MON-FRI"
        )

    @pytest.mark.parametrize(
        ("text", "when", "problem"),
        [
            ("30 0 9 * * *", "2026-01-03T09:00:31Z", "second is 31, not 30"),
            ("0 */6 * * *", "2026-01-03T09:00:00Z", "hour is 9, not */6"),
            ("0 9 L * *", "2026-01-30T09:00:00Z", "day of month is 30, not L"),
            ("0 9 * JUL *", "2026-01-30T09:00:00Z", "month is January, not JUL"),
            ("0 9 * * MON#1", "2026-01-12T09:00:00Z", "day of week is Monday, not MON#1"),
            ("0 0 9 1 1 ? 2030", "2026-01-01T09:00:00Z", "year is 2026, not 2030"),
        ],
    )
    def test_whatever_field_it_is(self, text, when, problem):
        assert told(cron(text), when).endswith(f": {problem}")

    def test_where_either_day_may_match_both_have_to_fail(self):
        trigger = cron("0 9 13 * FRI")
        assert told(trigger, "2026-01-14T09:00:00Z").endswith(
            "day of month is 14, not 13 and day of week is Wednesday, not FRI"
        )
        assert told(trigger, "2026-01-13T10:00:00Z").endswith(": hour is 10, not 9")

    def test_a_calendar_and_a_time_of_day_are_told_alike(self):
        monday = calendar(day_of_week="MON")
        assert told(monday, "2026-01-05T00:01:00Z").endswith(": minute is 1, not 0")
        assert told(daily("17:00"), "2026-01-05T16:00:00Z").endswith(": hour is 16, not 17")

    def test_the_second_time_on_the_night_of_a_change_is_none(self):
        trigger = cron("30 2 * * *", tz=BERLIN)
        assert trigger.has(parse_instant("2026-10-25T00:30:00Z"), NO_PAST)
        assert told(trigger, "2026-10-25T01:30:00Z").endswith(
            "the clocks show this time twice that night, and the first one counts"
        )

    def test_a_grid_and_single_times(self):
        assert told(every("90m"), "2026-01-01T01:00:00Z") == (
            "it is not on the grid of every 90 minutes"
        )
        later = every("1h", start_at="2026-02-01T00:00")
        assert told(later, "2026-01-01T01:00:00Z") == "it is before the first, 2026-02-01T00:00:00"
        assert told(at("2026-02-01T00:00"), "2026-01-01T01:00:00Z") == (
            "it is not one of the times that are given"
        )

    def test_what_only_events_cause(self):
        when = "2026-01-01T01:00:00Z"
        assert (
            told(startup("30s"), when) == "no tick follows a start of the scheduler 30s before it"
        )
        assert told(after("success", "1h"), when) == (
            "no tick follows a run of its own that succeeded 1h before it"
        )
        assert told(after("completion", schedule="load"), when) == (
            "no tick follows a run of load that ended just before it"
        )

    def test_what_is_started_by_hand_has_no_ticks(self):
        assert told(Manual(), "2026-01-01T01:00:00Z") == (
            "it has no ticks: it runs only when it is started"
        )

    def test_what_is_closed_is_told_with_what_closes_it(self):
        hours = every("1h", within={"hours": "09:00-17:00", "days": "MON-FRI"}, exclude=["01-06"])
        assert told(hours, "2026-01-05T20:00:00Z") == (
            "it is outside the hours, 09:00-17:00 on MON-FRI"
        )
        assert told(hours, "2026-01-06T10:00:00Z") == (
            "it is excluded (01-06), until 2026-01-07T00:00:00Z"
        )
        assert told(hours, "2026-01-05T10:30:00Z").startswith("it is not on the grid")

    def test_what_was_moved_has_another_that_stands_for_it(self):
        moved = every("1h", within={"hours": "09:00-17:00", "outside": "move"})
        assert told(moved, "2026-01-05T20:00:00Z").startswith(
            "it is outside the hours, and another"
        )

    def test_limits_are_named(self):
        limited = every("1h", end_at="2026-01-02T00:00", max_runs=3, delay="90m")
        assert (
            told(limited, "2026-01-03T00:00:00Z") == "it is after its end_at, 2026-01-02T00:00:00"
        )
        used = Past(runs_used=3)
        assert told(limited, "2026-01-01T05:00:00Z", used) == "its max_runs of 3 are used up"
        new = Past(created_at=parse_instant("2026-01-01T00:00:00Z"))
        assert told(limited, "2026-01-01T01:00:00Z", new) == (
            "it is within the first 90m after the schedule was defined"
        )
        begun = daily("09:00", start_at="2026-01-02T00:00")
        assert (
            told(begun, "2026-01-01T09:00:00Z") == "it is before its start_at, 2026-01-02T00:00:00"
        )

    def test_of_a_combination_each_part_that_counts(self):
        either = daily("09:00") | daily("10:00")
        text = told(either, "2026-01-01T11:00:00Z")
        assert text.count("hour is 11") == 2
        both = cron("0 9 * * *") & cron("0 * * * MON")
        assert told(both, "2026-01-06T09:00:00Z").endswith("day of week is Tuesday, not MON")
        without = cron("0 * * * *") - daily("09:00")
        assert told(without, "2026-01-06T09:00:00Z").startswith("it is taken out (minus): at 09:00")


def ms(clock):
    return parse_instant(f"2026-01-01T{clock}Z") * 1000


class TestMissed:
    def missed(self, rule, decided="15:00:00", **fields):
        run = a_run(
            reason="missed", created_at=ms(decided), finished_at=ms(decided),
            detail=ReasonDetail(rule=rule),
        )  # fmt: skip
        return asked(run, **fields)

    def test_a_time_that_was_past_when_it_was_defined_names_the_grace_alone(self):
        found = self.missed("at_definition")
        assert found.sentences == [
            (
                "missed: it was 3 h past when the schedule was defined at "
                "2026-01-01T15:00:00.000Z (grace 60 s)"
            ),
            "times before the definition are not caught up",
        ]
        assert found.instead == "with a grace of at least 10800 s it would have started then"

    def test_an_outage_is_named_with_both_its_ends(self):
        up = [UpFacts("one", ms("01:00:00"), ms("11:10:00")), UpFacts("two", ms("14:59:59"))]
        found = self.missed("catchup", catchup="none", up=up)
        assert found.sentences == [
            (
                "missed: no node was up from 2026-01-01T11:10:00.000Z to 2026-01-01T14:59:59.000Z "
                "(grace 60 s, catchup none)"
            )
        ]
        assert found.instead == (
            "with catchup=once the latest due tick would have run, and stood for it"
        )

    def test_before_the_first_node_there_was_none(self):
        found = self.missed("window", up=[UpFacts("one", ms("14:59:59"))])
        assert found.sentences == [
            (
                "missed: no node was up before 2026-01-01T14:59:59.000Z "
                "(grace 60 s, catchup once, catchup_window 24 h)"
            )
        ]

    def test_while_a_node_was_up_only_the_lateness_is_named(self):
        found = self.missed("catchup", catchup="none", up=[UpFacts("one", ms("01:00:00"))])
        assert found.sentences == [
            (
                "missed: it was decided at 2026-01-01T15:00:00.000Z, 3 h after it was due "
                "(grace 60 s, catchup none)"
            )
        ]

    def test_a_node_that_only_runs_does_not_count_as_up(self):
        up = [
            UpFacts("one", ms("01:00:00"), ms("11:10:00")),
            UpFacts("runs", ms("01:00:00"), plans=False),
            UpFacts("two", ms("14:59:59")),
        ]
        found = self.missed("catchup", catchup="none", up=up)
        assert "no node with the role plan was up from" in found.sentences[0]


class TestAttempts:
    def tried(self, *reasons):
        return [
            PastAttempt(
                n, ms("12:00:00") + n * 1000, ms("12:00:00") + n * 1000 + 7, reason, 1, "why"
            )
            for n, reason in enumerate(reasons, 1)
        ]

    def test_a_dropped_retry_is_a_sentence_apart_from_its_attempt(self):
        run = a_run(
            Status.FAILED, reason="superseded", attempt=1, started_at=ms("12:00:01"),
            finished_at=ms("12:05:00"), tried=self.tried("exit"), exit_code=1,
            detail=ReasonDetail(waited_for="retry", newer=NOON + 300),
        )  # fmt: skip
        found = asked(run)
        assert found.sentences == [
            "a newer tick, 2026-01-01T12:05:00Z, took its place",
            "attempt 1 ran from 2026-01-01T12:00:01.000Z to 2026-01-01T12:00:01.007Z: exit code 1",
            "attempt 2 was due at 2026-01-01T12:00:00.000Z, and was dropped at 2026-01-01T12:05:00.000Z",
        ]

    def test_what_could_not_start_says_what_it_waited_for_and_what_ended_it(self):
        run = a_run(
            reason="superseded", attempt=3, finished_at=ms("12:05:00"),
            tried=self.tried("busy", "busy", "busy"), error="Ray cannot be reached",
            detail=ReasonDetail(waited_for="retry"),
        )  # fmt: skip
        assert asked(run).sentences[:2] == [
            "a newer tick took its place",
            (
                "attempts 1 to 3 were made from 2026-01-01T12:00:01.000Z to "
                "2026-01-01T12:00:03.007Z: its target could not take it: why"
            ),
        ]

    def test_without_a_node_that_offers_it_the_node_is_named(self):
        run = a_run(
            reason="superseded", finished_at=ms("12:05:00"), needs="ray",
            detail=ReasonDetail(waited_for="node"),
        )  # fmt: skip
        assert asked(run).sentences[1] == (
            "it was ended at 2026-01-01T12:05:00.000Z: until then it waited for a node that offers "
            "ray, and none was up (start a node with the setting ray_address and Ray installed: "
            "docs/ray.md)"
        )

    @pytest.mark.parametrize("reason", ["launch_failed", "invalid_target", "busy"])
    def test_what_was_not_launched_is_never_said_to_have_run(self, reason):
        run = a_run(
            Status.FAILED, reason=reason, attempt=1, error="no such file",
            started_at=ms("12:00:00"), finished_at=ms("12:00:01"),
        )  # fmt: skip
        told = " ".join(asked(run).sentences)
        assert "no such file" in told
        assert "ran from" not in told

    def test_only_the_latest_of_many_attempts_are_listed(self):
        reasons = ["exit", "error"] * 5
        tried = self.tried(*reasons)
        found = asked(RunFacts(7, NOON, Status.ENQUEUED, 0, attempt=10, tried=tried))
        assert found.sentences[0] == "5 attempts before that are not listed"
        assert [s.partition(" ran")[0] for s in found.sentences[1:6]] == [
            f"attempt {n}" for n in range(6, 11)
        ]


class TestRunsThatWereNotLaunched:
    """A run that was announced and never launched did not run from its announcement to its end."""

    def announced(self, reason, error=UNLAUNCHED, **fields):
        status = (
            Status.CANCELED if reason in ("canceled", "superseded", "timeout") else Status.FAILED
        )
        return a_run(
            status, reason=reason, error=error, attempt=1, started_at=ms("12:00:01"),
            finished_at=ms("12:00:02"), **fields,
        )  # fmt: skip

    def test_a_run_that_was_canceled_before_its_launch_did_not_run(self):
        assert asked(self.announced("canceled")).sentences == [
            "it was canceled before it was launched",
            (
                "it was announced at 2026-01-01T12:00:01.000Z, and ended at "
                "2026-01-01T12:00:02.000Z without being launched"
            ),
        ]

    @pytest.mark.parametrize("error", [UNLAUNCHED, "it broke"])
    @pytest.mark.parametrize("reason", REASONS)
    @pytest.mark.parametrize(
        "tried", [(), (PastAttempt(1, 0, 7, "exit", 1, "why"),)], ids=["one", "two"]
    )
    def test_no_run_was_not_launched_and_ran(self, reason, error, tried):
        run = self.announced(reason, error, tried=tried)
        run = replace(run, attempt=1 + len(tried))
        sentences = asked(run, group="gpu", rate="3/day").sentences
        if any("launched" in each for each in sentences):
            assert not [each for each in sentences if each.startswith("it ran from")]
            assert not [each for each in sentences if each.startswith(f"attempt {run.attempt} ran")]

    def test_a_blocker_that_was_never_launched_was_not_running(self):
        blocker = replace(self.announced("canceled"), run_id=6, run_at=NOON - HOUR)
        run = a_run(reason="overlap", created_at=ms("12:00:01"), finished_at=ms("12:00:01"))
        assert (
            asked(run, blocker=blocker)
            .sentences[0]
            .startswith(
                "run 6 (tick of 2026-01-01T11:00:00Z) was waiting to start, and overlap is skip"
            )
        )


class TestCauses:
    @pytest.mark.parametrize(
        ("cause", "note", "said"),
        [
            ("manual", "", "it was started manually by ann at 2026-01-01T12:00:00.000Z"),
            ("artifact", "LogEntry", "artifact a-1 (LogEntry) triggered it at 2026-01-01T12:00:00.000Z"),
            ("next_run", "12:00", "nextRun in last-run.json was set to 12:00"),
            ("backfill", "", "it was backfilled by ann"),
        ],
    )  # fmt: skip
    def test_each_has_a_sentence_of_its_own(self, cause, note, said):
        run = a_run(
            Status.SUCCESS, attempt=1, started_at=ms("12:00:00"), finished_at=ms("12:00:00"),
            triggered_by=cause, request_id="a-1", created_at=ms("12:00:00"),
            detail=ReasonDetail(by="ann", note=note),
        )  # fmt: skip
        assert asked(run).sentences[-1] == said

    def test_a_pause_has_its_times_its_caller_and_its_note(self):
        detail = ReasonDetail(since=ms("09:00:00"), until=ms("13:00:00"), by="ann", note="holiday")
        found = asked(a_skip("paused", detail=detail))
        assert found.sentences == [
            (
                "the schedule was paused from 2026-01-01T09:00:00.000Z to 2026-01-01T13:00:00.000Z, "
                "by ann (holiday)"
            )
        ]

    def test_a_gate_that_was_still_closed_has_no_end(self):
        found = asked(a_skip("gate_off", detail=ReasonDetail(since=ms("09:00:00"))))
        assert found.sentences == [
            (
                "the gate was closed since 2026-01-01T09:00:00.000Z, when an edit at "
                "2026-01-01T12:00:00.000Z decided it"
            )
        ]

    def test_a_schedule_that_was_deleted_and_defined_again_says_both(self):
        schedule = a_schedule("report")
        spells = [
            DefinitionSpan(None, 0, NOON - 7200), DefinitionSpan(schedule, NOON - 7200, NOON - 3600),
            DefinitionSpan(None, NOON - 3600, NOON + 60), DefinitionSpan(schedule, NOON + 60),
        ]  # fmt: skip
        facts = Facts("report", NOON, NOON * 1000, None, created_at=ms("12:01:00"), spells=spells)
        assert explain(facts).headline == (
            "the schedule was deleted at 2026-01-01T11:00:00Z and defined again at "
            "2026-01-01T12:01:00Z"
        )
