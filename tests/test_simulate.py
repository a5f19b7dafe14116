"""Forecasts match the engine, and counted ticks match simulated ones."""

import asyncio
import tracemalloc
from collections import Counter

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from onbeat import cron
from onbeat.core.runs.decisions import Due
from onbeat.core.runs.phase import Phase
from onbeat.core.runs.run import Run, Succeeded
from onbeat.core.snapshot import (
    Snapshot,
    as_of,
    newly_defined,
    redefined,
    with_definitions,
    with_start,
)
from onbeat.core.time.instants import parse_instant
from onbeat.engine.dispatcher import Dispatcher
from onbeat.engine.planner import Planner
from onbeat.errors import InvalidSchedule
from onbeat.ports.store import Node
from onbeat.simulate.forecasts import forecast_fields
from onbeat.simulate.simulation import Simulation
from onbeat.stores.sqlite.store import SqliteStore
from onbeat.testing import ManualClock, RecordingLauncher, a_schedule

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
NODE = Node("node-1", "here", frozenset({"command"}))
NOON = parse_instant("2026-03-28T12:00:00Z") * 1000  # clocks in Berlin go forward that night


class Lasting(RecordingLauncher):
    """A launcher whose runs last as long as a test specifies, by a manual clock."""

    def __init__(self, clock, lengths):
        super().__init__()
        self._clock, self._lengths = clock, lengths
        self.running = {}  # when each ends, and the future to resolve then

    async def launch(self, attempt):
        over = asyncio.get_running_loop().create_future()
        end = self._clock.now() + self._lengths.get(attempt.schedule_id, SECOND)
        self.running[attempt.run_id] = end, over
        try:
            await over
        finally:
            del self.running[attempt.run_id]
        return Succeeded(), ""


class Life:
    """The real planner, dispatcher and store, on a clock that is moved to each next change."""

    def __init__(self, schedules, lengths, places, pauses):
        self._schedules, self._lengths = schedules, lengths
        self._places, self._pauses = places, pauses

    def rows(self, first, until, *, look_at=None):
        """Return all runs at `until`.

        How things stood at the instant `look_at` is kept as `snapshot`.
        """
        self._look_at, self.schedules = look_at, None
        return asyncio.run(self._live(first, until))

    async def _live(self, first, until):
        clock = ManualClock(first)
        store = await SqliteStore.open(None, clock=clock, inline=True)
        self.launcher = Lasting(clock, self._lengths)
        dispatcher = Dispatcher(store, clock, NODE, {"command": self.launcher}, concurrency=10_000)
        planner = Planner(store, clock, NODE, dispatcher)
        try:
            await self._define(store)
            while True:
                await self._happen(store, planner, dispatcher)
                ends = [end for end, _ in self.launcher.running.values()]
                due = await store.next_due(after=clock.now())
                soonest = min([*ends, *([] if due is None else [due])], default=until)
                if self.schedules is None and self._look_at is not None and soonest > self._look_at:
                    clock.advance(self._look_at - clock.now())
                    self.schedules = await store.read_snapshot()
                if soonest >= until:
                    return await store.runs(limit=1_000_000)
                clock.advance(max(soonest - clock.now(), 0))
        finally:
            for _, over in self.launcher.running.values():
                over.set_result(None)
            await asyncio.sleep(0)
            await store.close()

    async def _define(self, store):
        await store.upsert(self._schedules)
        for name, places in self._places.items():
            await store.set_group(name, places=places)
        for schedule_id, until in self._pauses.items():
            await store.pause(schedule_id, until=until)
        await store.acquire(NODE)
        await store.register(NODE)

    async def _happen(self, store, planner, dispatcher):
        """Decide and start all that is due; then end the runs that have reached their length."""
        while True:
            planned = await planner.plan_once()
            expired = await store.expire(limit=500)
            claimed = await dispatcher.claim_once()
            for _ in range(3):
                await asyncio.sleep(0)
            if not (planned.ticks or expired or claimed):
                break
        now = store.clock.now()
        dispatcher.cancel(await store.to_end(NODE))
        for end, over in list(self.launcher.running.values()):
            if end <= now and not over.done():
                over.set_result(None)
        for _ in range(3):
            await asyncio.sleep(0)
        if dispatcher.recorder.unrecorded:
            await dispatcher.recorder.record_once()
            await self._happen(store, planner, dispatcher)


def forecast_of(schedules, lengths, places=None, pauses=None, *, first=NOON, until, **given):
    """Return the forecast and all its rows, for schedules defined at `first`."""
    found = Snapshot(first, places=places or {}, is_up=False)
    found = with_definitions(found, schedules)
    told = []
    for standing in found.schedules:
        name, rest = standing.schedule.schedule_id, {}
        if name in (pauses or {}):
            end = pauses[name]
            rest = {"is_paused": True, "paused_until": end, "due": Due(end // 1000, end)}
        told.append(replace(standing, length=lengths.get(name), **rest))
    found = with_start(replace(found, schedules=tuple(told)))
    rows = []
    simulation = Simulation(found, until=until, witness=rows.append, **given)
    for _ in simulation.steps():
        pass
    return simulation.forecast(), rows


def as_kept(rows, until):
    """Return the fields of finished runs that are compared, of the store or of the forecast."""
    return sorted(
        (row.schedule_id, row.run_at, str(row.status), row.reason, row.started_at, row.finished_at)
        for row in rows
        if row.finished_at is not None and row.finished_at < until
    )


MIXED = {
    "plain": ({"every": "15m"}, 90 * SECOND),
    "dropped": ({"cron": "*/5 * * * *"}, 7 * MINUTE),
    "as-long-as-its-gap": ({"every": "30m"}, 30 * MINUTE),
    "queued": ({"every": "10m", "overlap": "queue", "queue_limit": 3}, 12 * MINUTE + 345),
    "latest": (
        {"every": "10m", "overlap": "queue", "queue_limit": 2, "queue_keep": "latest"},
        25 * MINUTE,
    ),
    "allowed": ({"every": "2m", "overlap": "allow", "max_active": 3}, 7 * MINUTE),
    "free": ({"every": "3m", "overlap": "allow"}, 10 * MINUTE + 1),
    "replaced": ({"every": "7m", "overlap": "replace"}, 10 * MINUTE),
    "rated": ({"every": "10m", "rate": "3/hour"}, SECOND),
    "jittered": ({"every": "20m", "jitter": "5m"}, 3 * SECOND),
    "around": ({"every": "20m", "jitter": "4m", "jitter_around": True}, 18 * MINUTE),
    "group-a": ({"every": "5m", "group": "g", "start_deadline": "40s"}, 4 * MINUTE),
    "group-b": ({"every": "5m", "group": "g", "start_deadline": "3m", "priority": 1}, 4 * MINUTE),
    "group-c": ({"every": "6m", "group": "g", "overlap": "queue"}, 3 * MINUTE + 7),
    "follower": ({"after": {"schedule": "plain", "outcome": "success"}}, 2 * SECOND),
    "last": ({"after": {"schedule": "follower", "outcome": "completion", "delay": "1m"}}, 250),
    "itself": ({"any": [{"daily": "14:00"}, {"after": {"success": "2h"}}]}, 11 * MINUTE),
    "by-hand": ({"manual": True}, SECOND),
    "started": ({"startup": "30s"}, 5 * SECOND),
    "berlin": ({"daily": "02:30", "timezone": "Europe/Berlin"}, SECOND),
    "wild": ({"cron": "*/20 * * * *", "timezone": "Europe/Berlin"}, 25 * SECOND),
    "hours": (
        {"every": "30m", "within": {"hours": ["15:00-23:00"], "outside": "move"}},
        SECOND,
    ),
    "closed": ({"every": "30m", "exclude": ["2026-03-29"]}, SECOND),
    "five": ({"every": "1h", "max_runs": 5}, SECOND),
    "ends": ({"every": "1h", "end_at": "2026-03-28T20:00:00Z"}, SECOND),
    "once": ({"at": ["2026-03-28T13:13:13Z", "2026-03-29T01:00:00Z"]}, SECOND),
    "disabled": ({"every": "1h", "enabled": False}, SECOND),
    "rested": ({"every": "1h"}, SECOND),
    "retried": ({"every": "45m", "retry": ["30s", "2m"]}, 40 * SECOND),
}  # fmt: skip


def test_forecast_of_a_day_matches_the_engine_row_by_row():
    schedules = [a_schedule(name, **given) for name, (given, _) in MIXED.items()]
    lengths = {name: length for name, (_, length) in MIXED.items()}
    places, pauses, until = {"g": 2}, {"rested": NOON + 6 * HOUR}, NOON + DAY
    kept = Life(schedules, lengths, places, pauses).rows(NOON, until)
    found, rows = forecast_of(schedules, lengths, places, pauses, until=until, counts=False)
    real, told = as_kept(kept, until), as_kept(rows, until)
    assert len(real) > 1500
    for name in MIXED:
        assert [row for row in told if row[0] == name] == [row for row in real if row[0] == name]
    by_schedule = {each.schedule_id: each for each in found.schedules}
    started = Counter(row.schedule_id for row in kept if row.started_at is not None)
    assert {name: each.fires for name, each in by_schedule.items()} == {
        name: started[name] for name in MIXED
    }
    reasons = {row.reason for row in kept if row.status == "SKIPPED"}
    assert reasons == set(found.skips)
    assert reasons >= {"overlap", "queue_full", "group_full", "rate", "disabled", "paused"}


LENGTHS = st.sampled_from([1, 400, 1000, 1001, 20_000, 60_000, 61_500, 300_000, 3_600_000])
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe"])
TIMES = st.one_of(
    st.sampled_from(["20s", "1m", "5m", "7m", "1h", "1d"]).map(lambda text: {"every": text}),
    st.sampled_from(
        ["*/5 * * * *", "0 * * * *", "30 2 * * *", "15,45 1-3 * * *", "*/10 0,2 * * SAT,SUN",
         "20,40 */7 3 * * *", "0 30 2 29 3 *", "59 59 1 * * *"]
    ).map(lambda text: {"cron": text}),
    st.just({"any": [{"daily": "02:30"}, {"cron": "*/20 * * * *"}]}),
    st.just({"daily": "03:15"}),
)  # fmt: skip
AROUND = st.sampled_from(
    [{}, {}, {"exclude": ["2026-03-29"]}, {"end_at": "2026-03-29T01:30:00Z"}, {"delay": "90m"},
     {"start_at": "2026-03-28T22:00:00Z"}, {"within": {"hours": ["01:00-04:00"]}},
     {"within": {"hours": ["01:00-02:00"], "outside": "move"}}]
)  # fmt: skip
POLICIES = st.sampled_from(
    [{}, {}, {"overlap": "queue", "queue_limit": 2}, {"overlap": "allow"}, {"enabled": False},
     {"overlap": "allow", "max_active": 2}, {"overlap": "replace"}, {"priority": 3},
     {"jitter": "2m"}, {"rate": "4/hour"}, {"max_runs": 7}, {"catchup": "spread"}, {"group": "g"},
     {"group": "g", "overlap": "queue"}, {"start_deadline": "30s", "group": "g"}]
)  # fmt: skip
FOLLOW = st.sampled_from([None, None, {"schedule": "s0", "outcome": "success"}])


@st.composite
def schedule_sets(draw):
    """Schedules with any policies, and the lengths of their runs."""
    found, lengths = [], {}
    for i in range(draw(st.integers(1, 5))):
        fields = draw(TIMES) | {"timezone": draw(ZONES)}
        if i and (after := draw(FOLLOW)) is not None:
            fields = {"after": after}
        fields |= draw(AROUND) | draw(POLICIES)
        try:
            found.append(a_schedule(f"s{i}", **fields))
        except InvalidSchedule:  # it would have no ticks
            reject()
        lengths[f"s{i}"] = draw(LENGTHS)
    return found, lengths


@settings(max_examples=60, deadline=None)
@given(schedule_sets(), st.sampled_from([0, 11 * HOUR + 1500]), st.sampled_from([None, "s0"]))
def test_counted_ticks_equal_simulated_ticks(drawn, later, only):
    schedules, lengths = drawn
    asked = {"until": NOON + 20 * HOUR, "since": NOON + later, "only": only and [only]}
    counted, _ = forecast_of(schedules, lengths, {"g": 2}, **asked)
    played, _ = forecast_of(schedules, lengths, {"g": 2}, **asked, counts=False)
    assert forecast_fields(counted) == forecast_fields(played)


@settings(max_examples=25, deadline=None)
@given(schedule_sets())
def test_forecast_matches_the_engine_for_any_policies(drawn):
    schedules, lengths = drawn
    first = parse_instant("2026-03-29T00:30:00Z") * 1000
    until = first + 2 * HOUR
    kept = Life(schedules, lengths, {"g": 2}, {}).rows(first, until)
    _, rows = forecast_of(schedules, lengths, {"g": 2}, first=first, until=until, counts=False)
    assert as_kept(rows, until) == as_kept(kept, until)


def test_forecast_from_a_snapshot_matches_the_engine():
    schedules = [a_schedule(name, **given) for name, (given, _) in MIXED.items()]
    lengths = {name: length for name, (_, length) in MIXED.items()}
    places, pauses, until = {"g": 2}, {"rested": NOON + 6 * HOUR}, NOON + 9 * HOUR
    begin = NOON + 4 * HOUR + 23 * MINUTE + 4321
    life = Life(schedules, lengths, places, pauses)
    kept = life.rows(NOON, until, look_at=begin)
    found = life.schedules
    assert found.now == begin
    assert found.places == places
    for standing in found.schedules:
        assert standing.length in (None, lengths[standing.schedule.schedule_id])
    assert sum(standing.length is not None for standing in found.schedules) > 15
    assert sum(len(standing.unfinished) for standing in found.schedules) > 8
    told = [replace(each, length=lengths[each.schedule.schedule_id]) for each in found.schedules]
    rows = []
    forecast = simulated(
        replace(found, schedules=tuple(told)), until=until, counts=False, witness=rows.append
    )
    real = [row for row in as_kept(kept, until) if row[-1] >= begin]
    assert as_kept(rows, until) == real
    assert forecast.fires == sum(begin <= (row.started_at or 0) < until for row in kept)


def simulated(snapshot, **given):
    """Return a forecast from a snapshot."""
    simulation = Simulation(snapshot, **given)
    done = list(simulation.steps())
    assert done == sorted(done)
    assert all(0 <= each <= 1 for each in done)
    return simulation.forecast()


def standing_of(*schedules, now=NOON, **given):
    """Return the snapshot just after these schedules were defined."""
    return with_definitions(Snapshot(now, **given), schedules)


def test_days_of_a_forecast_are_those_of_the_zone():
    snapshot = standing_of(a_schedule("hourly", every="1h"))
    found = simulated(snapshot, until=NOON + 2 * DAY, timezone="Europe/Berlin")
    days = {day.date: day.fires for day in found.days}
    assert days == {"2026-03-28": 10, "2026-03-29": 23, "2026-03-30": 14}
    assert found.fires == 47


def test_forecast_has_the_peak_its_time_and_its_schedules():
    snapshot = standing_of(
        a_schedule("often", every="20s"),
        a_schedule("hourly", every="1h"),
        a_schedule("later", cron="0 30 * * * *"),
    )
    found = simulated(snapshot, until=NOON + 2 * HOUR, run_length=2 * SECOND)
    assert found.peak == 2
    assert found.peak_at == NOON + 30 * MINUTE
    assert found.busiest == {"often": 3, "later": 1}


def test_run_that_ends_as_another_starts_is_not_concurrent():
    snapshot = standing_of(a_schedule("queued", every="1m", overlap="queue"))
    found = simulated(snapshot, until=NOON + HOUR, run_length=90 * SECOND)
    assert found.peak == 1
    (queued,) = found.schedules
    assert queued.waited > 30
    assert queued.ticks == queued.fires + queued.waiting == 59
    assert queued.longest_wait == (queued.fires - 1) * 30 * SECOND


def test_tick_at_the_end_of_a_run_overlaps_it():
    snapshot = standing_of(a_schedule("tight", every="1m"))
    found = simulated(snapshot, until=NOON + HOUR, run_length=MINUTE)
    assert (found.fires, found.skips) == (30, {"overlap": 29})


def test_paused_schedule_skips_every_tick():
    (standing,) = standing_of(a_schedule("rested", every="1h")).schedules
    standing = replace(standing, is_paused=True, due=None)
    found = simulated(Snapshot(NOON, (standing,)), until=NOON + DAY)
    assert (found.ticks, found.fires, found.skips) == (23, 0, {"paused": 23})
    assert [(day.date, day.skips) for day in found.days] == [("2026-03-28", 11), ("2026-03-29", 12)]


def test_ticks_missed_before_the_simulation_follow_the_catchup_policy():
    (standing,) = standing_of(a_schedule("late", every="1h"), now=NOON - 5 * HOUR).schedules
    found = simulated(Snapshot(NOON + SECOND, (standing,)), until=NOON + 2 * HOUR)
    assert (found.ticks, found.fires, found.skips) == (6, 2, {"coalesced": 4})


def both_ways(*schedules, until, **given):
    """Return a forecast, checked to be the same with counted and with simulated ticks."""
    counted = simulated(standing_of(*schedules), until=until, **given)
    played = simulated(standing_of(*schedules), until=until, counts=False, **given)
    assert forecast_fields(counted) == forecast_fields(played)
    return counted


# The first span is an hour: it ends at one o'clock.


def test_counted_run_continues_when_its_schedule_is_simulated():
    # In the first span its runs end before the next tick, afterwards they do not.
    schedule = a_schedule("busier", cron="50 12 * * *", overlap="queue")
    schedule = replace(schedule, trigger=schedule.trigger | cron("*/5 13-14 * * *"))
    beside = a_schedule("beside", cron="55 12 * * *", overlap="allow")
    found = both_ways(schedule, beside, until=NOON + 4 * HOUR, run_length=12 * MINUTE)
    busier = found.schedules[1]
    assert busier.waited == busier.fires - 1
    assert busier.longest_wait > HOUR
    assert found.peak == 2


def test_run_blocks_ticks_of_the_next_span():
    ends_then = a_schedule("tight", cron="50 12 * * *")
    ends_then = replace(ends_then, trigger=ends_then.trigger | cron("0,30 13 * * *"))
    found = both_ways(ends_then, until=NOON + 2 * HOUR, run_length=10 * MINUTE)
    assert (found.fires, found.skips) == (2, {"overlap": 1})


def test_run_counts_for_the_peak_of_the_next_span():
    schedules = [a_schedule(f"s{i}", cron=f"{50 + i} 12 * * *") for i in range(3)]
    found = both_ways(
        *schedules, a_schedule("late", cron="5 13 * * *"), until=NOON + DAY, run_length=20 * MINUTE
    )
    assert (found.peak, found.peak_at) == (4, NOON + HOUR + 5 * MINUTE)
    assert found.busiest == {"late": 1, "s0": 1, "s1": 1, "s2": 1}


def test_ticks_moved_to_an_opening_start_there():
    hours = {"hours": ["12:00-12:45"], "outside": "move"}
    schedule = a_schedule("moved", cron="30 * * * *", within=hours)
    found = both_ways(schedule, until=NOON + DAY + 50 * MINUTE)
    assert [(day.date, day.fires) for day in found.days] == [("2026-03-28", 1), ("2026-03-29", 2)]


def test_run_behind_an_expired_one_starts():
    schedules = [
        a_schedule("first", cron="0 13 * * *", group="g"),
        a_schedule("queued", cron="0,1 13 * * *", group="g", overlap="queue", start_deadline="2m"),
    ]
    found = both_ways(*schedules, until=NOON + 2 * HOUR, run_length=2 * MINUTE + 30 * SECOND)
    by_name = {each.schedule_id: each for each in found.schedules}
    assert by_name["queued"].skips == {"group_full": 1}
    assert by_name["queued"].fires == 1


def test_run_waiting_through_a_pause_starts_at_its_end():
    (standing,) = standing_of(a_schedule("rested", every="1h")).schedules
    until = NOON + 30 * MINUTE
    waiting = Run(1, NOON // 1000, Phase.SCHEDULED, until - 10 * SECOND, NOON)
    standing = replace(
        standing,
        is_paused=True,
        paused_until=until,
        due=Due(until // 1000, until),
        unfinished=(waiting,),
    )
    found = simulated(Snapshot(NOON, (standing,)), until=NOON + 50 * MINUTE)
    assert (found.ticks, found.fires, found.peak_at) == (0, 1, until)


def test_accepted_run_blocks_ticks_until_its_deadline_and_no_longer():
    (standing,) = standing_of(a_schedule("remote", every="5m")).schedules
    accepted = Run(
        1, NOON // 1000, Phase.ACCEPTED, NOON, NOON, attempt=1, deadline_at=NOON + 12 * MINUTE
    )
    standing = replace(standing, unfinished=(accepted,), started_at={1: NOON})
    found = simulated(Snapshot(NOON, (standing,)), until=NOON + 16 * MINUTE, run_length=HOUR)
    (remote,) = found.schedules
    assert (remote.ticks, remote.fires, remote.skips) == (3, 1, {"overlap": 2})


def test_backlog_is_decided_before_its_runs_end():
    schedule = a_schedule("late", every="1m", catchup="all", overlap="queue", queue_limit=1000)
    (standing,) = standing_of(schedule, now=NOON - 4 * HOUR).schedules
    found = simulated(Snapshot(NOON, (standing,)), until=NOON + HOUR, run_length=1)
    assert found.fires == 4 * 60 + 59


def test_schedules_of_the_same_group_are_simulated_too():
    snapshot = standing_of(
        a_schedule("mine", every="10m", group="g"),
        a_schedule("other", every="10m", group="g", priority=9),
        a_schedule("elsewhere", every="1s"),
    )
    found = simulated(snapshot, until=NOON + HOUR, only=["mine"], run_length=MINUTE)
    (mine,) = found.schedules
    assert (mine.fires, mine.waited, mine.longest_wait) == (5, 5, MINUTE)
    assert found.fires == 5
    assert found.peak == 1
    (group,) = found.groups
    assert (group.name, group.places, group.peak) == ("g", 1, 1)


def test_time_before_since_is_simulated_but_not_counted():
    snapshot = standing_of(a_schedule("five", every="1h", max_runs=5))
    found = simulated(snapshot, until=NOON + DAY, since=NOON + 3 * HOUR + 1)
    assert (found.ticks, found.fires) == (2, 2)


def test_simulation_is_limited_to_five_years():
    found = simulated(
        standing_of(a_schedule("yearly", cron="0 0 1 1 *")), until=NOON + 9 * 366 * DAY
    )
    assert found.cut_off == "a simulation covers at most five years"
    assert found.last - found.first == 5 * 366 * DAY
    assert found.asked == NOON + 9 * 366 * DAY
    assert found.fires == 5


@pytest.mark.parametrize(
    ("given", "told"),
    [({"most_played": 100}, "100 ticks had to be decided one by one"),
     ({"most_counted": 1000}, "1000 ticks were counted")],
)  # fmt: skip
def test_too_many_ticks_cut_the_simulation_off(given, told):
    schedules = a_schedule("queued", every="1m", overlap="queue"), a_schedule("plain", every="30s")
    found = simulated(standing_of(*schedules), until=NOON + 9 * DAY, run_length=70_000, **given)
    assert told in found.cut_off
    assert NOON < found.last < found.asked == NOON + 9 * DAY
    whole = simulated(standing_of(*schedules), until=found.last, run_length=70_000)
    assert whole.schedules == found.schedules
    assert (whole.days, whole.peak, whole.peak_at) == (found.days, found.peak, found.peak_at)


def test_year_of_many_schedules_is_simulated_in_small_steps_and_bounded_memory():
    schedules = [a_schedule(f"s{i}", cron=f"{i % 60} * * * *") for i in range(100)]
    tracemalloc.start()
    try:
        simulation = Simulation(standing_of(*schedules), until=NOON + 365 * DAY)
        steps = sum(1 for _ in simulation.steps())
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert simulation.forecast().fires == 100 * 365 * 24 - 2  # two would have ticked at noon
    assert steps > 20
    assert most < 60_000_000


def test_unchanged_timing_keeps_the_position_and_a_new_one_restarts():
    old = newly_defined(a_schedule("report", every="7h"), now=NOON - HOUR)
    same = redefined(old, a_schedule("report", every="7h", overlap="queue"), now=NOON)
    assert (same.due, same.decided_until) == (old.due, old.decided_until)
    assert same.schedule.policy.overlap == "queue"
    other = redefined(old, a_schedule("report", every="30m"), now=NOON)
    assert other.due == Due(NOON // 1000 + 1800, NOON + 30 * MINUTE)
    assert other.past.created_at == (NOON - HOUR) // 1000


def test_missing_or_circular_followed_schedules_are_refused():
    with pytest.raises(InvalidSchedule, match="b follows 'a', which does not exist"):
        standing_of(a_schedule("b", after={"schedule": "a", "outcome": "success"}))
    with pytest.raises(InvalidSchedule, match="a follows b follows a"):
        standing_of(
            a_schedule("a", after={"schedule": "b", "outcome": "success"}),
            a_schedule("b", after={"schedule": "a", "outcome": "success"}),
        )


def test_snapshot_as_of_the_past_has_schedules_defined_then():
    found = standing_of(a_schedule("hourly", every="1h"), a_schedule("first", startup="1m"))
    before = with_start(as_of(found, NOON - DAY))
    forecast = simulated(before, until=NOON)
    assert {each.schedule_id: each.fires for each in forecast.schedules} == {
        "hourly": 24,
        "first": 1,
    }
