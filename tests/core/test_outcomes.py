"""What follows the outcome of an attempt, which run is released, and overlap rechecks."""

from functools import partial

import pytest
from msgspec.structs import replace

from onbeat.core.decide.outcomes import (
    MOST_LOST,
    condition_holds,
    displace,
    next_step,
    recheck_overlap,
    to_release,
)
from onbeat.core.runs.decisions import (
    AwaitReport,
    Detach,
    Finish,
    Launch,
    Queue,
    RequestCancel,
    Retry,
    Tick,
)
from onbeat.core.runs.phase import Phase, Status
from onbeat.core.runs.run import Accepted, Busy, Canceled, Failed, Gone, Lost, Run, Succeeded
from onbeat.core.target import Target
from onbeat.testing import a_schedule
from tests.core.plans import (
    HOUR,
    MINUTE,
    SECOND,
    a_run,
    accepted,
    at,
    claimed,
    decided,
    lines,
    ms,
    queued,
    retrying,
    waiting,
    words,
)

BROKEN = Failed("it broke")
BUSY = Busy("in a session", 5 * MINUTE)
VARIED = {"retry": {"delays": ["30s", "2m"], "jitter": "5s"}}
JOB_7 = Accepted("job-7")
OUTCOMES = [Succeeded(), BROKEN, Accepted("x"), BUSY, Gone("no such"), Canceled("asked"), Lost()]


class TestAfter:
    def follows(self, outcome, *others, attempt=1, request_id="", ending=None, **given):
        run = a_run(attempt=attempt, request_id=request_id, ending=ending)
        return next_step(a_schedule(**given), run, outcome, [run, *others], now=ms("13:00"))

    def test_success_ends_a_run(self):
        assert self.follows(Succeeded(), retry=["30s"]) == Finish(Status.SUCCESS)

    def test_cancellation_ends_a_run(self):
        assert self.follows(Canceled("asked to"), retry=["30s"]) == Finish(
            Status.CANCELED, "canceled"
        )

    def test_failure_ends_a_run_without_retries(self):
        assert self.follows(BROKEN) == Finish(Status.FAILED, "error")

    @pytest.mark.parametrize(("attempt", "delay"), [(1, 30), (2, 120), (3, 600)])
    def test_each_failure_has_a_separate_retry_delay(self, attempt, delay):
        found = self.follows(BROKEN, attempt=attempt, retry=["30s", "2m", "10m"])
        assert found == Retry(ms("13:00") + delay * SECOND, "error")

    def test_run_fails_after_the_last_retry_delay(self):
        found = self.follows(BROKEN, attempt=4, retry=["30s", "2m", "10m"])
        assert found == Finish(Status.FAILED, "error")

    def test_new_tick_has_all_its_retries(self):
        schedule = a_schedule(retry=["30s", "2m"])
        spent = retrying("12:00")
        _, launch = decided(schedule, replace(spent, attempt=2), now="13:00").decisions
        fresh = Run(2, launch.tick.run_at, Phase.RUNNING, launch.tick.due_at, attempt=1)
        assert next_step(schedule, fresh, BROKEN, [], now=ms("13:05")) == Retry(
            ms("13:05") + 30 * SECOND, "error"
        )

    def test_failed_run_has_the_reason_of_its_failure(self):
        timeout = Failed("too long", "timeout")
        assert self.follows(timeout) == Finish(Status.FAILED, "timeout")
        assert self.follows(timeout, retry=["30s"]).reason == "timeout"

    @pytest.mark.parametrize("reason", ["exit", "timeout", "error", "launch_failed"])
    def test_failure_is_retried_only_for_reasons_of_retry_on(self, reason):
        retry = {"delays": ["30s", "2m"], "on": ["exit"]}
        found = self.follows(Failed("it failed", reason), retry=retry)
        again = Retry(ms("13:00") + 30 * SECOND, "exit")
        assert found == (again if reason == "exit" else Finish(Status.FAILED, reason))

    def test_final_failure_is_not_retried(self):
        final = Failed("it was refused", "error", retryable=False)
        found = self.follows(final, retry={"delays": ["30s"], "on": ["error"]})
        assert found == Finish(Status.FAILED, "error")

    def test_lost_run_is_not_retried_by_retry_on(self):
        retry = {"delays": ["30s"], "on": ["exit"]}
        assert self.follows(Lost(), on_lost="retry", retry=retry) == Retry(ms("13:00"), "lost")

    def test_non_retryable_failure_is_not_retried(self):
        gone = Failed("no such program", "launch_failed", retryable=False)
        assert self.follows(gone, retry=["30s"]) == Finish(Status.FAILED, "launch_failed")

    def test_lost_run_fails_unless_on_lost_is_retry(self):
        assert self.follows(Lost(), retry=["30s"]) == Finish(Status.FAILED, "lost")
        assert self.follows(Lost(), on_lost="retry") == Retry(ms("13:00"), "lost")

    def test_lost_reattachable_run_is_reattached_even_if_a_tick_is_queued(
        self,
    ):
        def follows(*others, schedule=a_schedule(overlap="queue"), **given):  # noqa: B008 - it is frozen
            run = a_run(reattachable=True, **given)
            return next_step(schedule, run, Lost(), [run, *others], now=ms("13:00"))

        again = Detach("lost")
        assert follows() == follows(queued("12:30")) == again
        assert follows(schedule=None) == again  # it was deleted meanwhile
        assert follows(ending="canceled") == Detach("canceled")  # found, and then ended
        assert follows(attempt=MOST_LOST + 1) == Finish(Status.FAILED, "lost")

    def test_detached_run_is_always_in_flight(
        self,
    ):
        going = a_run("14:00", Phase.DETACHED, attempt=1, reattachable=True)
        assert going.in_flight(ms("13:00"))
        assert replace(going, is_backfill=True).in_flight(ms("13:00"))
        assert not replace(going, request_id="by hand").in_flight(ms("13:00"))

    def test_replacing_a_detached_run_requests_its_cancellation_and_waits(self):
        going = a_run(phase=Phase.DETACHED, attempt=1, reattachable=True)
        assert displace([going]) == ([RequestCancel(going)], going)

    @pytest.mark.parametrize("retry", [[], ["30s", "2m"]])
    def test_run_that_keeps_losing_its_nodes_fails(self, retry):
        lose = partial(self.follows, Lost(), on_lost="retry", retry=retry)
        most = len(retry) + MOST_LOST
        assert {lose(attempt=n) for n in range(1, most + 1)} == {Retry(ms("13:00"), "lost")}
        assert lose(attempt=most + 1) == Finish(Status.FAILED, "lost")

    @pytest.mark.parametrize(
        ("outcome", "ended"),
        [
            (BROKEN, Finish(Status.FAILED, "error", queued("12:30"))),
            (Lost(), Finish(Status.FAILED, "lost", queued("12:30"))),
        ],
    )
    def test_queued_tick_takes_precedence_over_a_retry(self, outcome, ended):
        found = self.follows(
            outcome, queued("12:30"), overlap="queue", retry=["30s"], on_lost="retry"
        )
        assert found == ended

    def test_manual_run_is_retried_even_if_a_tick_is_queued(self):
        found = self.follows(BROKEN, queued("12:30"), request_id="by-hand", retry=["30s"])
        assert found == Retry(ms("13:00") + 30 * SECOND, "error")

    @pytest.mark.parametrize("outcome", [Succeeded(), BROKEN, Canceled("asked to"), Lost()])
    def test_ended_run_releases_the_first_of_the_queue(self, outcome):
        found = self.follows(outcome, queued("12:40"), queued("12:20"), queued("12:30"))
        assert found.release == queued("12:20")

    def test_no_run_is_released_while_another_is_in_flight(self):
        assert self.follows(Succeeded(), a_run("12:10"), queued("12:20")).release is None

    def test_missing_target_fails_a_run_without_retries(self):
        assert self.follows(Gone("no such session"), retry=["30s"], on_lost="retry") == Finish(
            Status.FAILED, "invalid_target"
        )

    @pytest.mark.parametrize("outcome", [BROKEN, Lost(), BUSY])
    def test_run_of_a_deleted_schedule_is_not_retried(self, outcome):
        assert isinstance(next_step(None, a_run(), outcome, [], now=ms("13:00")), Finish)

    @pytest.mark.parametrize("outcome", [BROKEN, Lost(), BUSY])
    def test_queued_backfill_does_not_prevent_a_retry(self, outcome):
        asked_for = queued("09:00", is_backfill=True)
        found = self.follows(outcome, asked_for, retry=["30s"], on_lost="retry")
        assert isinstance(found, Retry)


class TestCancellationRequested:
    """A run whose cancellation was requested is not retried."""

    def ends(self, outcome, ending="superseded", **given):
        run = a_run(ending=ending)
        return next_step(a_schedule(**given), run, outcome, [run], now=ms("13:00"))

    @pytest.mark.parametrize("ending", ["superseded", "canceled", "timeout"])
    def test_canceled_run_has_the_requested_reason(self, ending):
        assert self.ends(Canceled("killed"), ending) == Finish(Status.CANCELED, ending)

    def test_run_canceled_without_a_request_has_the_reason_canceled(self):
        assert self.ends(Canceled("killed"), None) == Finish(Status.CANCELED, "canceled")

    def test_run_to_be_canceled_is_not_retried(self):
        assert self.ends(BROKEN, retry=["30s"]) == Finish(Status.FAILED, "error")
        assert self.ends(Lost(), on_lost="retry") == Finish(Status.FAILED, "lost")

    def test_run_to_be_canceled_may_succeed(self):
        assert self.ends(Succeeded()) == Finish(Status.SUCCESS)

    def test_canceled_run_releases_the_queued_run(self):
        run = a_run(ending="superseded")
        schedule, others = a_schedule(overlap="replace"), [run, queued("12:30")]
        for outcome in (Canceled("killed"), BROKEN, Succeeded(), Lost()):
            found = next_step(schedule, run, outcome, others, now=ms("13:00"))
            assert found.release == queued("12:30")


class TestAccepted:
    """An accepted run is awaited until its deadline."""

    def awaited(self, accepted=JOB_7, **given):
        found = next_step(a_schedule(**given), a_run(), accepted, [], now=ms("13:00"))
        assert found.external_id == accepted.external_id
        return found.deadline_at - ms("13:00")

    def test_accepted_run_is_awaited_by_its_external_id(self):
        found = next_step(a_schedule(), a_run(), Accepted("job-7"), [], now=ms("13:00"))
        assert found == AwaitReport(ms("14:00"), "job-7")

    @pytest.mark.parametrize("every", ["1s", "5m", "1h", "12h"])
    def test_accepted_run_has_an_hour_whenever_the_next_tick_is(self, every):
        assert self.awaited(every=every) == HOUR

    @pytest.mark.parametrize("timeout", ["1s", "2h"])
    def test_timeout_of_the_schedule_is_the_deadline_of_an_accepted_run(self, timeout):
        schedule = a_schedule(timeout=timeout)
        assert self.awaited(timeout=timeout) == schedule.policy.timeout
        assert self.awaited(Accepted("x", 9 * HOUR), timeout=timeout) == schedule.policy.timeout

    def test_launcher_gives_the_deadline_where_the_schedule_has_no_timeout(self):
        assert self.awaited(Accepted("x", 9 * HOUR)) == 9 * HOUR
        assert self.awaited(Accepted("x", MINUTE)) == MINUTE

    def test_accepted_run_releases_no_queued_run(self):
        found = next_step(
            a_schedule(), a_run(), Accepted(), [a_run(), queued("12:30")], now=ms("13:00")
        )
        assert isinstance(found, AwaitReport)

    @pytest.mark.parametrize(("deadline", "is_awaited"), [("13:00", False), (None, True)])
    def test_accepted_run_past_its_deadline_is_not_in_flight(self, deadline, is_awaited):
        run = accepted(deadline_at=ms(deadline) if deadline else None)
        assert run.is_accepted
        assert run.in_flight(ms("13:00")) is is_awaited

    def test_accepted_run_before_its_deadline_is_in_flight(self):
        run = accepted(deadline_at=ms("13:00"))
        assert run.in_flight(ms("13:00") - 1)
        assert lines(decided(a_schedule(), run, now="13:00")) == ["launch 13:00"]
        later = replace(run, deadline_at=ms("13:00") + 1)
        assert lines(decided(a_schedule(), later, now="13:00")) == ["skip 13:00 overlap 12:00"]

    def test_leased_run_past_a_deadline_is_still_in_flight(self):
        assert a_run(deadline_at=ms("12:30")).in_flight(ms("13:00"))
        assert not a_run().is_accepted

    def test_accepted_run_past_its_deadline_releases_the_queue(self):
        runs = [accepted(deadline_at=ms("13:00")), queued("12:30")]
        assert to_release(runs, now=ms("13:00") - 1) is None
        assert to_release(runs, now=ms("13:00")) == queued("12:30")

    def test_start_deadline_of_a_waiting_run_does_not_end_its_flight(self):
        assert waiting(deadline_at=ms("12:30")).in_flight(ms("13:00"))


class TestBusy:
    """A busy target is tried again, which is not a failure."""

    def follows(self, *others, schedule=None, **fields):
        run = a_run(**fields)
        asked = schedule or a_schedule(retry=["30s", "2m"])
        return next_step(asked, run, BUSY, [run, *others], now=ms("13:00"))

    def test_busy_target_is_retried_at_the_time_it_requested(self):
        assert self.follows() == Retry(ms("13:05"), "busy", is_deferral=True)

    def test_busy_target_is_retried_without_limit_and_without_a_retry_policy(self):
        found = self.follows(schedule=a_schedule(), attempt=50, deferrals=49)
        assert found == Retry(ms("13:05"), "busy", is_deferral=True)

    @pytest.mark.parametrize("deferrals", [0, 1, 7])
    def test_busy_target_uses_no_retry(self, deferrals):
        schedule = a_schedule(retry=["30s", "2m"])
        for tries, delay in [(1, 30 * SECOND), (2, 2 * MINUTE)]:
            run = a_run(attempt=tries + deferrals, deferrals=deferrals)
            found = next_step(schedule, run, BROKEN, [run], now=ms("13:00"))
            assert found == Retry(ms("13:00") + delay, "error")
        run = a_run(attempt=3 + deferrals, deferrals=deferrals)
        assert next_step(schedule, run, BROKEN, [run], now=ms("13:00")) == Finish(
            Status.FAILED, "error"
        )

    def test_busy_target_uses_no_attempt_of_a_lost_run(self):
        run = a_run(attempt=MOST_LOST + 3, deferrals=3)
        found = next_step(a_schedule(on_lost="retry"), run, Lost(), [run], now=ms("13:00"))
        assert found == Retry(ms("13:00"), "lost")

    def test_busy_run_is_skipped_if_a_newer_tick_is_queued(self):
        found = self.follows(queued("12:30"), attempt=3, deferrals=2)
        assert found == Finish(Status.SKIPPED, "busy", queued("12:30"))

    def test_busy_run_fails_if_an_attempt_of_it_failed(self):
        found = self.follows(queued("12:30"), attempt=3, deferrals=1)
        assert found == Finish(Status.FAILED, "busy", queued("12:30"))

    def test_accepted_run_to_be_canceled_is_canceled_with_its_reason(self):
        assert self.follows(ending="superseded") == Finish(Status.CANCELED, "superseded")
        found = self.follows(ending="canceled", attempt=3, deferrals=1)
        assert found == Finish(Status.CANCELED, "canceled")

    def test_manual_run_is_retried_even_if_a_tick_is_queued(self):
        found = self.follows(queued("12:30"), request_id="by-hand")
        assert found == Retry(ms("13:05"), "busy", is_deferral=True)


class TestRetryJitter:
    def delay(self, run_id, attempt, **given):
        run = Run(run_id, at("12:00"), Phase.RUNNING, ms("12:00"), attempt=attempt)
        return next_step(a_schedule(**given), run, BROKEN, [run], now=ms("13:00")).due_at - ms(
            "13:00"
        )

    @pytest.mark.parametrize(("attempt", "least"), [(1, 30 * SECOND), (2, 2 * MINUTE)])
    def test_retry_jitter_only_lengthens_a_delay(self, attempt, least):
        found = [self.delay(run_id, attempt, **VARIED) - least for run_id in range(500)]
        assert 0 <= min(found) < 100
        assert 4900 < max(found) <= 5 * SECOND

    def test_retry_jitter_is_stable_for_an_attempt(self):
        assert self.delay(7, 1, **VARIED) == self.delay(7, 1, **VARIED)

    def test_retry_jitter_differs_between_runs_and_attempts(self):
        assert len({self.delay(run_id, 1, **VARIED) for run_id in range(20)}) > 15
        assert self.delay(7, 1, **VARIED) - 30_000 != self.delay(7, 2, **VARIED) - 120_000

    def test_retry_delay_without_jitter_is_exact(self):
        assert {self.delay(run_id, 1, retry=["30s"]) for run_id in range(20)} == {30 * SECOND}


class TestRun:
    @pytest.mark.parametrize(
        ("attempt", "deferrals", "status"),
        [
            (0, 0, "SKIPPED"),
            (1, 1, "SKIPPED"),
            (3, 3, "SKIPPED"),
            (1, 0, "FAILED"),
            (3, 2, "FAILED"),
        ],
    )
    def test_waiting_run_ends_as_skipped_unless_an_attempt_failed(self, attempt, deferrals, status):
        run = waiting(attempt=attempt, deferrals=deferrals)
        assert run.unstarted_end is Phase[status]

    def test_requested_run_is_distinguished_from_ticks(self):
        assert waiting(request_id="by-hand").is_requested
        assert waiting(is_backfill=True).is_requested
        assert not waiting().is_requested

    def test_backfill_is_rechecked_when_claimed(self):
        assert waiting(is_backfill=True).awaits_recheck
        assert not claimed(is_backfill=True).awaits_recheck
        assert not waiting().awaits_recheck

    def test_run_that_waits_for_a_busy_target_blocks_no_tick(self):
        assert not waiting(is_backfill=True).in_flight(ms("13:00"))
        assert claimed(is_backfill=True).in_flight(ms("13:00"))
        assert a_run(is_backfill=True).in_flight(ms("13:00"))

    def test_run_to_be_canceled_is_in_flight_until_it_ends(self):
        assert a_run(ending="superseded").in_flight(ms("13:00"))


class TestReleasing:
    def test_empty_queue_releases_no_run(self):
        assert to_release([], now=ms("13:00")) is None
        assert to_release([retrying(), waiting(due_at=ms("14:00"))], now=ms("13:00")) is None

    def test_earliest_queued_tick_is_released_first(self):
        runs = [queued("12:30"), queued("12:10"), queued("12:20")]
        assert to_release(runs, now=ms("13:00")) == queued("12:10")

    @pytest.mark.parametrize("before", [a_run(), waiting()])
    def test_run_in_flight_holds_the_queue(self, before):
        assert to_release([before, queued("12:30")], now=ms("13:00")) is None

    @pytest.mark.parametrize(
        "beside", [a_run(request_id="by-hand"), retrying(), waiting(due_at=ms("13:00") + 1)]
    )
    def test_run_not_in_flight_does_not_hold_the_queue(self, beside):
        assert to_release([beside, queued("12:30")], now=ms("13:00")) == queued("12:30")

    def test_later_run_that_awaits_recheck_does_not_hold_the_queue(self):
        later = waiting("12:50", created_at=ms("12:55"), due_at=ms("12:58"))
        assert to_release([later, queued("12:30")], now=ms("13:00")) == queued("12:30")
        assert to_release([later, queued("12:55")], now=ms("13:00")) is None
        held = replace(later, phase=Phase.CLAIMED)
        assert to_release([held, queued("12:30")], now=ms("13:00")) is None

    def test_backfills_are_released_last(self):
        runs = [queued("09:00", is_backfill=True), queued("08:00", is_backfill=True)]
        assert to_release([*runs, queued("12:30")], now=ms("13:00")) == queued("12:30")
        assert to_release(runs, now=ms("13:00")) == runs[1]

    @pytest.mark.parametrize("overlap", ["skip", "queue"])
    def test_backfill_is_not_released_before_a_new_tick(self, overlap):
        runs = [queued("09:00", is_backfill=True), queued("12:30")]
        found = decided(a_schedule(overlap=overlap), *runs, now="13:00")
        assert lines(found)[0] == "release 12:30"


class TestRecheck:
    """A run that was decided before it was due is judged again when it is."""

    def judged(self, run, *others, **given):
        _, own = recheck_overlap(a_schedule(**given), run, [run, *others], now=ms("13:00"))
        return own

    def test_recheck_launches_an_unblocked_run(self):
        run = waiting("12:50", due_at=ms("13:00"))
        assert self.judged(run) == Launch(Tick(at("12:50"), ms("13:00")))
        assert self.judged(run, a_run(request_id="by-hand"), queued("12:55")) == Launch(
            Tick(at("12:50"), ms("13:00"))
        )

    @pytest.mark.parametrize(
        ("overlap", "becomes"),
        [
            ("skip", "skip 12:50 overlap 12:55"),
            ("queue", "queue 12:50 behind 12:55"),
            ("allow", "launch 12:50"),
        ],
    )
    def test_run_in_flight_blocks_a_recheck_by_the_overlap_policy(self, overlap, becomes):
        found = self.judged(waiting("12:50"), a_run("12:55"), overlap=overlap)
        assert words(found) == becomes

    @pytest.mark.parametrize("overlap", ["skip", "queue"])
    def test_later_run_that_awaits_recheck_does_not_block(self, overlap):
        first = waiting("12:50", due_at=ms("12:58"))
        second = waiting("12:55", due_at=ms("12:59"))
        assert words(self.judged(first, second, overlap=overlap)) == "launch 12:50"
        found = words(self.judged(second, first, overlap=overlap))
        assert found in ("skip 12:55 overlap 12:50", "queue 12:55 behind 12:50")

    def test_claimed_run_that_was_rechecked_blocks(self):
        first = waiting("12:50", due_at=ms("12:58"))
        second = claimed("12:55", due_at=ms("12:59"))
        assert words(self.judged(first, second)) == "skip 12:50 overlap 12:55"

    def test_recheck_launches_a_manual_run_beside_others(self):
        by_hand = waiting("12:50", request_id="by-hand")
        assert words(self.judged(by_hand, a_run("12:55"))) == "launch 12:50"

    def test_recheck_skips_a_retry_behind_a_newer_run(self):
        retry = retrying("12:50", due="13:00")
        assert words(self.judged(retry)) == "launch 12:50"
        assert words(self.judged(retry, a_run("12:55"))) == "skip 12:50 superseded 12:55"

    @pytest.mark.parametrize("overlap", ["skip", "queue", "replace"])
    def test_backfill_is_queued_under_any_overlap_policy(self, overlap):
        asked_for = waiting("09:00", is_backfill=True, due_at=ms("12:58"))
        found = recheck_overlap(a_schedule(overlap=overlap), asked_for, [a_run()], now=ms("13:00"))
        assert found == ((), Queue(Tick(at("09:00"), ms("12:58")), at("12:00")))

    def test_recheck_launches_a_backfill_within_max_active(self):
        asked_for = waiting("09:00", is_backfill=True, due_at=ms("12:58"))
        assert words(self.judged(asked_for, a_run(), overlap="allow")) == "launch 09:00"
        two = {"overlap": "allow", "max_active": 2}
        assert words(self.judged(asked_for, a_run(), **two)) == "launch 09:00"
        found = self.judged(asked_for, a_run("11:00"), a_run(), **two)
        assert words(found) == "queue 09:00 behind 11:00"
        assert words(self.judged(asked_for)) == "launch 09:00"

    def test_recheck_skips_a_run_at_max_active(self):
        run = waiting("12:50", due_at=ms("13:00"), created_at=ms("12:50"))
        two = {"overlap": "allow", "max_active": 2}
        assert words(self.judged(run, a_run(), **two)) == "launch 12:50"
        found = self.judged(run, a_run("11:00"), a_run(), **two)
        assert words(found) == "skip 12:50 overlap 11:00"


class TestRecheckUnderReplace:
    def judged(self, run, *others):
        schedule = a_schedule(overlap="replace")
        about, own = recheck_overlap(schedule, run, [run, *others], now=ms("13:00"))
        return lines([*about, own])

    def test_recheck_under_replace_cancels_an_older_run_and_waits(self):
        run = waiting("12:50", due_at=ms("13:00"))
        assert self.judged(run, a_run()) == ["end 12:00", "queue 12:50 behind 12:00"]
        asked = a_run(ending="superseded")
        assert self.judged(run, asked) == ["queue 12:50 behind 12:00"]

    def test_recheck_under_replace_supersedes_an_older_unstarted_run(self):
        run = waiting("12:50", due_at=ms("13:00"))
        assert self.judged(run, waiting()) == ["supersede 12:00", "launch 12:50"]
        found = self.judged(run, waiting("11:00"), a_run())
        assert found == ["supersede 11:00", "end 12:00", "queue 12:50 behind 12:00"]

    @pytest.mark.parametrize("other", [a_run("12:55"), waiting("12:55")])
    def test_recheck_under_replace_skips_a_run_older_than_the_one_in_flight(self, other):
        run = waiting("12:50", due_at=ms("13:00"))
        assert self.judged(run, other) == ["skip 12:50 superseded 12:55"]
        assert self.judged(run, a_run(), other)[-1].startswith("skip 12:50 superseded")

    def test_retry_does_not_replace_a_newer_run(self):
        retry = retrying("12:50", due="13:00")
        assert self.judged(retry, a_run("12:55")) == ["skip 12:50 superseded 12:55"]

    def test_manual_run_replaces_no_other(self):
        assert self.judged(waiting("12:50", request_id="x"), a_run()) == ["launch 12:50"]


class TestDisplace:
    def test_displace_without_runs_waits_for_none(self):
        assert displace([]) == ([], None)

    def test_displace_supersedes_waiting_runs_and_cancels_running_ones(self):
        decisions, left = displace([waiting("11:00"), a_run("11:30"), a_run("12:00")])
        assert lines(decisions) == ["supersede 11:00", "end 11:30", "end 12:00"]
        assert left == a_run("12:00")

    def test_displace_waits_for_a_run_that_is_already_ending(self):
        ending = a_run(ending="canceled")
        assert displace([ending]) == ([], ending)


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__)
@pytest.mark.parametrize("ending", [None, "superseded"])
@pytest.mark.parametrize("schedule", [None, a_schedule(retry=["30s"], on_lost="retry")])
def test_every_outcome_is_decided_and_canceled_runs_are_not_retried(outcome, ending, schedule):
    run = a_run(ending=ending)
    found = next_step(schedule, run, outcome, [run], now=ms("13:00"))
    assert isinstance(found, (Finish, Retry, Detach, AwaitReport))
    assert not (isinstance(found, Retry) and (ending or schedule is None))


@pytest.mark.parametrize(
    ("kind", "outcome", "answer"),
    [
        ("command", Succeeded(), True), ("command", Failed("exit 1", "exit", exit_code=1), False),
        ("command", Failed("killed", "signal"), None), ("command", Failed("long", "timeout"), None),
        ("python", Succeeded(result=True), True), ("python", Succeeded(result=0), False),
        ("python", Succeeded(), False), ("python", BROKEN, None),
        ("http", Succeeded(), True), ("http", Accepted(), True), ("http", BUSY, False),
        ("http", Gone("404"), False), ("http", Failed("403", retryable=False), False),
        ("http", Failed("503"), None), ("command", Lost(), None), ("command", Canceled("x"), None),
    ],
)  # fmt: skip
def test_condition_outcome_is_true_false_or_unknown(kind, outcome, answer):
    assert condition_holds(Target(kind, {kind: "x"}), outcome) is answer


def test_accepted_run_to_be_canceled_is_in_flight_until_it_ends():
    late = Run(1, 0, Phase.ACCEPTED, 0, 0, attempt=1, deadline_at=5_000)
    assert not late.in_flight(5_000), "its outcome was not reported in time"
    assert replace(late, phase=Phase.REVOKED, ending="superseded").in_flight(5_000)
