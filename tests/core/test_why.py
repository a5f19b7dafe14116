"""The answers of `why`: for runs by reason, for instants that are not ticks, for future ticks."""

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
from onbeat.core.runs.phase import Phase
from onbeat.core.runs.run import REASONS, PastAttempt, ReasonDetail
from onbeat.core.schedule import from_definition
from onbeat.core.time.instants import parse_instant
from onbeat.core.triggers.kinds import Manual
from onbeat.core.triggers.past import NO_PAST, Past
from onbeat.service.serialize import why_fields
from onbeat.testing import a_schedule

NOON = parse_instant("2026-01-01T12:00:00Z")
HOUR = 3600


def reason_for(trigger, when, past=NO_PAST):
    """Return why an instant is not a tick of a trigger."""
    t = parse_instant(when)
    assert not trigger.has(t, past)
    return why_no_tick(trigger, t, past)


def a_run(phase=Phase.SKIPPED, **fields):
    return RunFacts(7, NOON, phase, NOON * 1000, **fields)


def a_skip(reason, **fields):
    """Return a run that was skipped as it was decided."""
    at = NOON * 1000
    return a_run(Phase.SKIPPED, reason=reason, created_at=at, finished_at=at, **fields)


def explained(run=None, *, when=NOON, now=NOON + HOUR, target=None, **fields):
    """Explain an instant of a schedule, which is hourly by default."""
    policy = {
        name: fields.pop(name) for name in list(fields) if name not in Facts.__struct_fields__
    }
    usual = {"decided_until": now, "created_at": (NOON - 86_400) * 1000}
    schedule = a_schedule("report", **policy, **({"run": target} if target else {}))
    usual["definition_spans"] = [DefinitionSpan(schedule, NOON - 86_400)]
    return explain(Facts("report", when, now * 1000, schedule, run=run, **usual | fields))


class TestReasons:
    def test_every_reason_has_one_sentence(self):
        assert set(SENTENCES) == set(REASONS)
        assert len(set(SENTENCES.values())) == len(REASONS)

    @pytest.mark.parametrize("reason", [each for each in REASONS if each != "coalesced"])
    def test_row_with_a_reason_is_explained_by_its_sentence(self, reason):
        policy = {"group": "gpu", "start_deadline": "5m", "rate": "3/day"}
        status = Phase.SKIPPED if reason not in ("exit", "lost", "timeout") else Phase.FAILED
        run = a_run(status, reason=reason, attempt=1, error="it broke\nin two lines", exit_code=3)
        found = explained(run, **policy)
        assert found.reason == reason
        assert reason in found.headline
        first = found.sentences[0]
        assert "{" not in first
        assert "None" not in first
        assert "\n" not in first

    def test_overlap_names_the_blocker_and_what_a_queue_would_have_done(self):
        blocker = RunFacts(
            6, NOON - HOUR, Phase.SUCCESS, 0, attempt=1, started_at=(NOON - HOUR) * 1000 + 7,
            finished_at=NOON * 1000 + 30_120,
        )  # fmt: skip
        found = explained(a_skip("overlap", blocked_by=6), blocker=blocker)
        assert found.sentences == [
            (
                "run 6 (tick of 2026-01-01T11:00:00Z) had been running since "
                "2026-01-01T11:00:00.007Z (overlap skip)"
            ),
            "run 6 ended at 2026-01-01T12:00:30.120Z: SUCCESS",
        ]
        assert found.instead == (
            "with overlap=queue it would have started at 2026-01-01T12:00:30.120Z"
        )

    def test_tick_behind_others_would_have_started_after_them(self):
        blocker = RunFacts(6, NOON, Phase.SUCCESS, 0, started_at=0, finished_at=NOON * 1000)
        run = a_run(reason="overlap", blocked_by=6)
        found = explained(run, blocker=blocker, is_first_blocked=False)
        assert found.instead.startswith("with overlap=queue it would have started after the ticks")

    def test_blocker_that_has_not_started_refers_to_its_own_why(self):
        blocker = RunFacts(6, NOON - HOUR, Phase.WAITING, 0)
        found = explained(a_skip("overlap", blocked_by=6), blocker=blocker)
        assert found.sentences[0] == (
            "run 6 (tick of 2026-01-01T11:00:00Z) was waiting to start (overlap skip)"
        )
        assert found.sentences[1] == "run 6 has not started yet (see why at 2026-01-01T11:00:00Z)"
        assert found.instead == "with overlap=queue it would start when that run ends"

    def test_tick_covered_by_another_run_is_coalesced(self):
        run = RunFacts(
            7, NOON, Phase.SUCCESS, 0, attempt=1, first_run_at=NOON - 3 * HOUR, tick_count=4,
            triggered_by="catchup", started_at=NOON * 1000, finished_at=NOON * 1000 + 5,
            created_at=NOON * 1000,
        )  # fmt: skip
        found = explained(run, when=NOON - HOUR)
        assert (found.kind, found.reason) == ("coalesced", "coalesced")
        assert found.headline == "it is covered by run 7"
        assert found.sentences[0] == (
            "4 due ticks were decided together at 2026-01-01T12:00:00.000Z: "
            "run 7 (tick of 2026-01-01T12:00:00Z) covers them"
        )
        assert explained(run).kind == "ran"

    def test_range_names_the_ticks_that_it_covers(self):
        run = a_run(reason="paused", first_run_at=NOON - HOUR, tick_count=2)
        sentence = "one row covers 2 ticks, from 2026-01-01T11:00:00Z to 2026-01-01T12:00:00Z"
        assert sentence in explained(run).sentences

    @pytest.mark.parametrize(
        ("reason", "policy", "instead"),
        [
            ("queue_full", {"overlap": "queue"}, "with queue_keep=latest it would have waited"),
            ("missed", {"catchup": "none"}, "with catchup=once the latest due tick would have run"),
            ("missed", {}, "with a catchup_window of at least 0 s it would have been caught up"),
            ("rate", {"rate": "1/day"}, "with a higher rate it could have started"),
            ("deadline", {"start_deadline": "5s"}, "without a start_deadline it would have"),
            (
                "superseded",
                {"overlap": "replace"},
                "with overlap=queue it would have started in its turn",
            ),
            ("lost", {}, "with on_lost=retry it would have been started again"),
            ("exit", {}, "with retry=[30s] it would have been tried again"),
            ("overlap", {"overlap": "allow", "max_active": 1}, "without max_active it would have"),
        ],
    )
    def test_decision_by_a_policy_names_what_another_policy_would_do(self, reason, policy, instead):
        status = Phase.FAILED if reason in ("lost", "exit") else Phase.SKIPPED
        rule = "catchup" if policy.get("catchup") == "none" else "window"
        run = a_run(
            status, reason=reason, attempt=1 if status is Phase.FAILED else 0,
            error="its node fell silent", deadline_at=NOON * 1000, finished_at=NOON * 1000,
            detail=ReasonDetail(rule=rule if reason == "missed" else None),
        )  # fmt: skip
        assert explained(run, **policy).instead.startswith(instead)

    @pytest.mark.parametrize(
        ("target", "error", "is_retried"),
        [
            ({"command": ["./sync.sh"]}, "still running after 5 s", True),
            ({"http": "https://example.com"}, "no answer after 5 s", True),
            ({"flow": {"url": "/-/f"}}, "still running after 5 s", False),
        ],
    )
    def test_attempt_that_timed_out_is_retried_if_its_kind_allows_it(
        self, target, error, is_retried
    ):
        ended = a_run(
            Phase.FAILED, reason="timeout", attempt=1, error=error, finished_at=NOON * 1000
        )
        instead = "with retry=[30s] it would have been tried again" if is_retried else None
        assert explained(ended, target=target, timeout="5s").instead == instead

    @pytest.mark.parametrize("reason", ["gate_off", "paused", "condition", "disabled", "signal"])
    def test_decision_without_a_policy_has_no_alternative(self, reason):
        assert explained(a_run(reason=reason)).instead is None


class TestWaiting:
    def waits(self, **fields):
        nodes = fields.pop("nodes", [NodeFacts("one", frozenset({"command"}))])
        names = RunFacts.__struct_fields__
        run = {name: fields.pop(name) for name in list(fields) if name in names}
        found = explained(a_run(Phase.WAITING, **run), nodes=nodes, **fields)
        assert found.kind == "waiting"
        return list(found.sentences)

    def test_waiting_run_names_the_nodes_that_offer_it(self):
        assert self.waits() == ["it waits for a free place on a node that offers it: one"]

    def test_waiting_run_without_nodes_states_that_none_is_up(self):
        assert self.waits(nodes=[]) == ["it waits for a node: no node is up (start one: onbeat up)"]

    def test_waiting_run_names_what_no_node_offers(self):
        found = self.waits(nodes=[NodeFacts("one", frozenset({"python"}))])
        assert found == ["it waits for a node that offers command; nodes up: one"]

    def test_queued_run_names_the_run_before_it(self):
        assert self.waits(blocked_by=6) == ["it waits in the queue behind run 6"]

    def test_run_waiting_for_its_group_names_the_users_of_its_places(self):
        group = GroupFacts("gpu", 1, [RunFacts(6, NOON, Phase.RUNNING, 0, schedule_id="other")])
        assert self.waits(group=group) == [
            "it waits for a place in group gpu (1 place, used by run 6 of other)"
        ]

    def test_run_waiting_for_a_retry_names_its_due_time(self):
        later = (NOON + 2 * HOUR) * 1000
        run = {"attempt": 1, "reason": "exit", "due_at": later}
        found = explained(RunFacts(7, NOON, Phase.WAITING, **run))
        assert list(found.sentences) == [
            "attempt 1 ended: exit", "attempt 2 is due at 2026-01-01T14:00:00.000Z, in 60 min",
        ]  # fmt: skip

    def test_waiting_run_names_a_closed_gate_and_a_pause(self):
        found = self.waits(gate_closed_at=NOON * 1000, is_paused=True, pause_note="holiday")
        assert found == [
            "the gate has been closed since 2026-01-01T12:00:00.000Z: nothing starts",
            "the schedule is paused (holiday)",
        ]

    def test_waiting_run_names_its_deadline(self):
        found = self.waits(deadline_at=(NOON + 2 * HOUR) * 1000)
        assert found[-1] == "it is dropped if it has not started by 2026-01-01T14:00:00.000Z"


class TestRunning:
    def test_running_run_names_its_start_and_a_requested_cancellation(self):
        run = a_run(
            Phase.CANCELING, attempt=2, started_at=NOON * 1000, leased_by="n", reason="superseded",
            end_asked_at=NOON * 1000 + 1,
        )  # fmt: skip
        found = explained(run, nodes=[NodeFacts("one", frozenset(), "n")])
        assert found.kind == "running"
        assert found.sentences == [
            "attempt 2 has been running since 2026-01-01T12:00:00.000Z",
            "its cancellation was requested at 2026-01-01T12:00:00.001Z: superseded",
        ]

    @pytest.mark.parametrize(
        ("nodes", "by"), [([], "the next node that starts"), (["two"], "another node")]
    )
    def test_running_run_of_a_silent_node_is_unknown(self, nodes, by):
        run = a_run(Phase.RUNNING, attempt=1, started_at=NOON * 1000, leased_by="gone")
        found = explained(run, nodes=[NodeFacts(name, frozenset(), name) for name in nodes])
        sentence = "its node is silent: whether it still runs is unknown;"
        assert found.sentences[1:] == [f"{sentence} {by} will decide it"]

    @pytest.mark.parametrize(
        ("policy", "limit"),
        [({"warn_after": "5s"}, "its warn_after of 5 s"), ({}, "three times its usual p99")],
    )
    def test_stuck_run_is_named_with_its_limit(self, policy, limit):
        run = a_run(Phase.RUNNING, attempt=1, started_at=NOON * 1000, stuck_at=NOON * 1000 + 6000)
        said = f"it takes longer than {limit}: reported as stuck at 2026-01-01T12:00:06.000Z"
        assert said in explained(run, **policy).sentences

    def test_accepted_run_names_its_deadline(self):
        run = a_run(Phase.ACCEPTED, attempt=1, external_id="x1", deadline_at=NOON * 1000 + 5)
        sentence = "its target accepted it as x1 and has until 2026-01-01T12:00:00.005Z to report its outcome"
        assert sentence in explained(run).sentences

    def test_accepted_run_that_blocks_a_tick_is_named_with_its_deadline(self):
        blocker = RunFacts(
            6,
            NOON,
            Phase.ACCEPTED,
            0,
            attempt=1,
            started_at=NOON * 1000,
            deadline_at=NOON * 1000 + 5,
        )
        sentence = explained(a_skip("overlap", blocked_by=6), blocker=blocker).sentences
        assert sentence[0] == (
            "run 6 (tick of 2026-01-01T12:00:00Z) had been running since 2026-01-01T12:00:00.000Z "
            "(overlap skip)"
        )
        assert (
            "run 6 was accepted by its target and is in flight until its report, or until "
            "2026-01-01T12:00:00.005Z (onbeat cancel 6 frees the schedule now)"
        ) in sentence

    def test_run_that_was_not_reported_by_its_deadline_needs_a_longer_timeout(self):
        run = a_run(Phase.FAILED, reason="timeout", error=UNREPORTED, attempt=1)
        assert (
            explained(run).instead
            == "with a longer timeout it would have stayed in flight until its report"
        )


class TestInstantsWithoutARow:
    def test_future_tick_names_its_distance_and_its_neighbours(self):
        found = explained(when=NOON + 3 * HOUR)
        assert (found.kind, found.headline) == ("to_come", "it is due in 2 h")
        assert (found.previous, found.following) == (NOON + 2 * HOUR, NOON + 4 * HOUR)

    def test_future_tick_moved_by_jitter_names_its_due_time(self):
        due = Due(NOON + 2 * HOUR, (NOON + 2 * HOUR) * 1000 + 1500)
        found = explained(when=NOON + 2 * HOUR, due=due)
        assert found.sentences == [
            "it is due at 2026-01-01T14:00:01.500Z, moved by jitter or by hours (within)"
        ]

    def test_future_tick_of_a_paused_schedule_names_the_pause(self):
        found = explained(when=NOON + 3 * HOUR, is_paused=True, paused_until=(NOON + HOUR) * 1000)
        assert found.sentences == ["the schedule is paused until 2026-01-01T13:00:00.000Z"]

    def test_due_undecided_tick_names_the_missing_node(self):
        found = explained(when=NOON, decided_until=NOON - 1)
        assert found.kind == "undecided"
        assert found.sentences == ["it will be decided when a node is up (start one: onbeat up)"]

    def test_instant_before_the_first_definition_is_not_there(self):
        found = explain(Facts("report", NOON, NOON * 1000, None, created_at=(NOON + 60) * 1000))
        assert found.headline == "the schedule has existed since 2026-01-01T12:01:00.000Z"

    def test_instant_before_the_history_is_forgotten(self):
        assert explained(history_from=(NOON + 60) * 1000).kind == "forgotten"

    def test_instant_without_a_schedule_has_no_neighbours(self):
        found = explain(Facts("report", NOON, NOON * 1000, None))
        assert (found.kind, found.previous) == ("not_there", None)

    def test_instant_that_is_not_a_tick_has_neighbours(self):
        found = explained(when=NOON + 60)
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
    def test_ticks_after_max_runs_are_not_neighbours(self, when, previous, following):
        schedule = a_schedule("report", max_runs=2)
        found = explain(
            Facts(
                "report", when, (NOON + 5 * HOUR) * 1000, schedule, decided_until=NOON,
                past=Past(created_at=NOON - HOUR - 60, runs_used=2),
                definition_spans=[DefinitionSpan(schedule, NOON - HOUR - 60)],
            )
        )  # fmt: skip
        assert (found.previous, found.following) == (previous, following)

    @pytest.mark.parametrize(
        ("definition", "said"),
        [
            ({"enabled": False}, "the schedule is disabled (enabled: false): it will be skipped"),
            (
                {"run": {"command": ["true"], "enabled": False}},
                "its target is disabled (run.enabled: false): it will be skipped",
            ),
        ],
    )
    def test_future_tick_of_a_disabled_schedule_will_be_skipped(self, definition, said):
        given = {"every": "1h", "run": {"command": ["true"]}} | definition
        schedule = from_definition("report", json.dumps(given))
        found = explain(
            Facts(
                "report",
                NOON + HOUR,
                NOON * 1000,
                schedule,
                definition_spans=[DefinitionSpan(schedule, NOON)],
            )
        )
        assert (found.kind, found.sentences) == ("to_come", [said])

    def test_why_fields_are_plain_values(self):
        assert to_builtins(why_fields(explained(when=NOON + 60))) == {
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
        assert reason_for(trigger, "2026-01-03T08:30:00Z") == (
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
    def test_every_failing_field_is_named(self, text, when, problem):
        assert reason_for(cron(text), when).endswith(f": {problem}")

    def test_both_day_fields_are_named_if_either_may_match(self):
        trigger = cron("0 9 13 * FRI")
        assert reason_for(trigger, "2026-01-14T09:00:00Z").endswith(
            "day of month is 14, not 13 and day of week is Wednesday, not FRI"
        )
        assert reason_for(trigger, "2026-01-13T10:00:00Z").endswith(": hour is 10, not 9")

    def test_calendar_and_daily_name_failing_fields(self):
        monday = calendar(day_of_week="MON")
        assert reason_for(monday, "2026-01-05T00:01:00Z").endswith(": minute is 1, not 0")
        assert reason_for(daily("17:00"), "2026-01-05T16:00:00Z").endswith(": hour is 16, not 17")

    def test_second_pass_of_a_repeated_time_is_not_a_tick(self):
        trigger = cron("30 2 * * *", tz=BERLIN)
        assert trigger.has(parse_instant("2026-10-25T00:30:00Z"), NO_PAST)
        assert reason_for(trigger, "2026-10-25T01:30:00Z").endswith(
            "the clocks show this time twice that night, and only the first is a tick"
        )

    def test_every_and_at_explain_instants_without_a_tick(self):
        assert reason_for(every("90m"), "2026-01-01T01:00:00Z") == (
            "it is not on the grid of every 90 minutes"
        )
        later = every("1h", start_at="2026-02-01T00:00")
        assert (
            reason_for(later, "2026-01-01T01:00:00Z")
            == "it is before the first tick, 2026-02-01T00:00:00"
        )
        assert reason_for(at("2026-02-01T00:00"), "2026-01-01T01:00:00Z") == (
            "it is not one of the listed times"
        )

    def test_event_triggers_explain_instants_without_a_tick(self):
        when = "2026-01-01T01:00:00Z"
        assert (
            reason_for(startup("30s"), when)
            == "no start of the scheduler 30s before it caused a tick"
        )
        assert reason_for(after("success", "1h"), when) == (
            "no run of this schedule that succeeded 1h before it caused a tick"
        )
        assert reason_for(after("completion", schedule="load"), when) == (
            "no run of load that ended just before it caused a tick"
        )

    def test_manual_trigger_has_no_ticks(self):
        assert reason_for(Manual(), "2026-01-01T01:00:00Z") == (
            "it has no ticks: its trigger is manual"
        )

    def test_closed_instant_names_the_hours_or_the_exclusion(self):
        hours = every("1h", within={"hours": "09:00-17:00", "days": "MON-FRI"}, exclude=["01-06"])
        assert reason_for(hours, "2026-01-05T20:00:00Z") == (
            "it is outside the hours, 09:00-17:00 on MON-FRI"
        )
        assert reason_for(hours, "2026-01-06T10:00:00Z") == (
            "it is excluded (01-06), until 2026-01-07T00:00:00Z"
        )
        assert reason_for(hours, "2026-01-05T10:30:00Z").startswith("it is not on the grid")

    def test_tick_merged_by_outside_move_is_explained(self):
        moved = every("1h", within={"hours": "09:00-17:00", "outside": "move"})
        assert reason_for(moved, "2026-01-05T20:00:00Z").startswith(
            "it is outside the hours, and another"
        )

    def test_why_names_the_limits_of_a_trigger(self):
        limited = every("1h", end_at="2026-01-02T00:00", max_runs=3, delay="90m")
        assert (
            reason_for(limited, "2026-01-03T00:00:00Z")
            == "it is after its end_at, 2026-01-02T00:00:00"
        )
        used = Past(runs_used=3)
        assert reason_for(limited, "2026-01-01T05:00:00Z", used) == "its max_runs of 3 is used up"
        new = Past(created_at=parse_instant("2026-01-01T00:00:00Z"))
        assert reason_for(limited, "2026-01-01T01:00:00Z", new) == (
            "it is within the first 90m after the schedule was defined (delay)"
        )
        begun = daily("09:00", start_at="2026-01-02T00:00")
        assert (
            reason_for(begun, "2026-01-01T09:00:00Z")
            == "it is before its start_at, 2026-01-02T00:00:00"
        )

    def test_combination_explains_each_relevant_part(self):
        either = daily("09:00") | daily("10:00")
        text = reason_for(either, "2026-01-01T11:00:00Z")
        assert text.count("hour is 11") == 2
        both = cron("0 9 * * *") & cron("0 * * * MON")
        assert reason_for(both, "2026-01-06T09:00:00Z").endswith("day of week is Tuesday, not MON")
        without = cron("0 * * * *") - daily("09:00")
        assert reason_for(without, "2026-01-06T09:00:00Z").startswith(
            "it is excluded by minus: at 09:00"
        )


def ms(clock):
    return parse_instant(f"2026-01-01T{clock}Z") * 1000


class TestMissed:
    def missed(self, rule, decided="15:00:00", **fields):
        run = a_run(
            reason="missed", created_at=ms(decided), finished_at=ms(decided),
            detail=ReasonDetail(rule=rule),
        )  # fmt: skip
        return explained(run, **fields)

    def test_single_time_past_at_its_definition_names_only_the_grace(self):
        found = self.missed("at_definition")
        assert found.sentences == [
            (
                "missed: the schedule was defined at 2026-01-01T15:00:00.000Z, "
                "3 h after it was due (grace 60 s)"
            ),
            "times before the definition are not caught up",
        ]
        assert found.instead == "with a grace of at least 10800 s it would have started"

    def test_outage_is_named_with_start_and_end(self):
        up = [UpFacts("one", ms("01:00:00"), ms("11:10:00")), UpFacts("two", ms("14:59:59"))]
        found = self.missed("catchup", catchup="none", up=up)
        assert found.sentences == [
            (
                "missed: no node was up from 2026-01-01T11:10:00.000Z to 2026-01-01T14:59:59.000Z "
                "(grace 60 s, catchup none)"
            )
        ]
        assert found.instead == (
            "with catchup=once the latest due tick would have run and covered it"
        )

    def test_missed_tick_before_the_first_node_names_its_start(self):
        found = self.missed("window", up=[UpFacts("one", ms("14:59:59"))])
        assert found.sentences == [
            (
                "missed: no node was up before 2026-01-01T14:59:59.000Z "
                "(grace 60 s, catchup once, catchup_window 24 h)"
            )
        ]

    def test_missed_tick_while_a_node_was_up_names_only_the_lateness(self):
        found = self.missed("catchup", catchup="none", up=[UpFacts("one", ms("01:00:00"))])
        assert found.sentences == [
            (
                "missed: it was decided at 2026-01-01T15:00:00.000Z, 3 h after it was due "
                "(grace 60 s, catchup none)"
            )
        ]

    def test_node_without_the_role_plan_does_not_count_as_up(self):
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

    def test_dropped_retry_has_a_separate_sentence(self):
        run = a_run(
            Phase.FAILED, reason="superseded", attempt=1, started_at=ms("12:00:01"),
            finished_at=ms("12:05:00"), tried=self.tried("exit"), exit_code=1,
            detail=ReasonDetail(waited_for="retry", newer=NOON + 300),
        )  # fmt: skip
        found = explained(run)
        assert found.sentences == [
            "it was replaced by a newer tick, 2026-01-01T12:05:00Z",
            "attempt 1 ran from 2026-01-01T12:00:01.000Z to 2026-01-01T12:00:01.007Z: exit code 1",
            "attempt 2 was due at 2026-01-01T12:00:00.000Z and was dropped at 2026-01-01T12:05:00.000Z",
        ]

    def test_run_that_never_started_names_what_it_waited_for(self):
        run = a_run(
            reason="superseded", attempt=3, finished_at=ms("12:05:00"),
            tried=self.tried("busy", "busy", "busy"), error="Ray cannot be reached",
            detail=ReasonDetail(waited_for="retry"),
        )  # fmt: skip
        assert explained(run).sentences[:2] == [
            "it was replaced by a newer tick",
            (
                "attempts 1 to 3 were made from 2026-01-01T12:00:01.000Z to "
                "2026-01-01T12:00:03.007Z: its target was busy: why"
            ),
        ]

    def test_ended_run_names_the_node_that_was_missing(self):
        run = a_run(
            reason="superseded", finished_at=ms("12:05:00"), needs="ray",
            detail=ReasonDetail(waited_for="node"),
        )  # fmt: skip
        assert explained(run).sentences[1] == (
            "it was ended at 2026-01-01T12:05:00.000Z while it waited for a node that offers "
            "ray; no such node was up (start a node with the setting ray_address and Ray installed: "
            "docs/ray.md)"
        )

    @pytest.mark.parametrize("reason", ["launch_failed", "invalid_target", "busy"])
    @pytest.mark.parametrize("earlier", [(), ("launch_failed",), ("busy", "launch_failed")])
    @pytest.mark.parametrize("started_at", [ms("12:00:05"), None])
    def test_run_that_could_not_be_launched_never_ran(self, reason, earlier, started_at):
        run = a_run(
            Phase.FAILED, reason=reason, attempt=len(earlier) + 1, error="no such file",
            started_at=started_at, finished_at=ms("12:00:06"), tried=self.tried(*earlier),
        )  # fmt: skip
        sentences = " ".join(explained(run).sentences)
        assert "no such file" in sentences
        assert "ran from" not in sentences

    def test_single_attempt_that_could_not_be_launched_names_its_times(self):
        run = a_run(
            Phase.FAILED, reason="launch_failed", attempt=1, error="no such file",
            started_at=ms("12:00:00"), finished_at=ms("12:00:01"),
        )  # fmt: skip
        assert explained(run).sentences == [
            "it could not be launched: no such file",
            "the attempt was made at 2026-01-01T12:00:00.000Z and ended at 2026-01-01T12:00:01.000Z",
        ]

    def test_only_the_latest_of_many_attempts_are_listed(self):
        reasons = ["exit", "error"] * 5
        tried = self.tried(*reasons)
        found = explained(RunFacts(7, NOON, Phase.WAITING, 0, attempt=10, tried=tried))
        assert found.sentences[0] == "5 earlier attempts are not listed"
        assert [s.partition(" ran")[0] for s in found.sentences[1:6]] == [
            f"attempt {n}" for n in range(6, 11)
        ]


class TestRunsThatWereNotLaunched:
    """A run that was announced and never launched did not run from its announcement to its end."""

    def announced(self, reason, error=UNLAUNCHED, **fields):
        status = Phase.CANCELED if reason in ("canceled", "superseded", "timeout") else Phase.FAILED
        return a_run(
            status, reason=reason, error=error, attempt=1, started_at=ms("12:00:01"),
            finished_at=ms("12:00:02"), **fields,
        )  # fmt: skip

    def test_run_canceled_before_its_launch_did_not_run(self):
        assert explained(self.announced("canceled")).sentences == [
            "it was canceled before it was launched",
            (
                "it was announced at 2026-01-01T12:00:01.000Z and ended at "
                "2026-01-01T12:00:02.000Z without being launched"
            ),
        ]

    @pytest.mark.parametrize("error", [UNLAUNCHED, "it broke"])
    @pytest.mark.parametrize("reason", REASONS)
    @pytest.mark.parametrize(
        "tried", [(), (PastAttempt(1, 0, 7, "exit", 1, "why"),)], ids=["one", "two"]
    )
    def test_failed_launch_is_never_explained_as_a_run(self, reason, error, tried):
        run = self.announced(reason, error, tried=tried)
        run = replace(run, attempt=1 + len(tried))
        sentences = explained(run, group="gpu", rate="3/day").sentences
        if any("launched" in each for each in sentences):
            assert not [each for each in sentences if each.startswith("it ran from")]
            assert not [each for each in sentences if each.startswith(f"attempt {run.attempt} ran")]

    def test_blocker_that_was_never_launched_is_not_called_running(self):
        blocker = replace(self.announced("canceled"), run_id=6, run_at=NOON - HOUR)
        run = a_run(reason="overlap", created_at=ms("12:00:01"), finished_at=ms("12:00:01"))
        assert (
            explained(run, blocker=blocker)
            .sentences[0]
            .startswith("run 6 (tick of 2026-01-01T11:00:00Z) was waiting to start (overlap skip)")
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
    def test_every_cause_has_a_sentence(self, cause, note, said):
        run = a_run(
            Phase.SUCCESS, attempt=1, started_at=ms("12:00:00"), finished_at=ms("12:00:00"),
            triggered_by=cause, request_id="a-1", created_at=ms("12:00:00"),
            detail=ReasonDetail(by="ann", note=note),
        )  # fmt: skip
        assert explained(run).sentences[-1] == said

    def test_why_names_times_caller_and_note_of_a_pause(self):
        detail = ReasonDetail(since=ms("09:00:00"), until=ms("13:00:00"), by="ann", note="holiday")
        found = explained(a_skip("paused", detail=detail))
        assert found.sentences == [
            (
                "the schedule was paused from 2026-01-01T09:00:00.000Z to 2026-01-01T13:00:00.000Z, "
                "by ann (holiday)"
            )
        ]

    def test_closed_gate_without_an_end_names_its_start(self):
        found = explained(a_skip("gate_off", detail=ReasonDetail(since=ms("09:00:00"))))
        assert found.sentences == [
            (
                "the gate was closed since 2026-01-01T09:00:00.000Z, when an edit at "
                "2026-01-01T12:00:00.000Z decided it"
            )
        ]

    def test_deleted_and_redefined_schedule_names_both_times(self):
        schedule = a_schedule("report")
        definition_spans = [
            DefinitionSpan(None, 0, NOON - 7200), DefinitionSpan(schedule, NOON - 7200, NOON - 3600),
            DefinitionSpan(None, NOON - 3600, NOON + 60), DefinitionSpan(schedule, NOON + 60),
        ]  # fmt: skip
        facts = Facts(
            "report",
            NOON,
            NOON * 1000,
            None,
            created_at=ms("12:01:00"),
            definition_spans=definition_spans,
        )
        assert explain(facts).headline == (
            "the schedule was deleted at 2026-01-01T11:00:00Z and defined again at "
            "2026-01-01T12:01:00Z"
        )
