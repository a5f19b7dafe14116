"""Traps in the pseudo-code of the origin: an hour of minutely ticks, 59 of which are checked.

Each case is also played with a crash of the node in the middle, while a run is on its way. The
executor runs elsewhere: it continues, and reports outcomes to the node that is up then.
"""

import asyncio
import itertools
from hashlib import sha256

import apsw
import pytest

from onbeat.core.runs.run import Accepted, Succeeded
from onbeat.core.time.instants import parse_instant
from tests.systems.workflows.conftest import WorkflowsHarness
from tests.waiting import forever

MINUTELY = {"schedule_id": "m", "cron_expr": "* * * * *", "end_at": "2026-01-01T12:59:30Z"}
NOON = parse_instant("2026-01-01T12:00:00Z")
MINUTES = [NOON + 60 * n for n in range(1, 60)]
IN_THE_MIDDLE = (NOON + 30 * 60 + 2) * 1000  # two seconds into the thirtieth run


def key_of(run_at):
    return sha256(f"m:{run_at}".encode()).hexdigest()


class Hour(WorkflowsHarness):
    """A world whose executor accepts runs, and may report their outcomes."""

    def __init__(self, folder, *, lasts=None, **settings):
        super().__init__(f"sqlite:///{folder}/onbeat.db", **settings)
        self.lasts, self.ends, self.begun = lasts, {}, {}

    def begin(self, meta):
        """Begin a run, unless its key is known; it will end `lasts` seconds later."""
        key = meta["idempotency_key"]
        if key not in self.begun:
            self.begun[key] = self.clock.now()
            if self.lasts is not None:
                self.ends[key] = self.clock.now() + self.lasts * 1000
        return Accepted(f"run-{key[:8]}")

    async def tell_ends(self):
        for key in [key for key, at in self.ends.items() if at <= self.clock.now()]:
            del self.ends[key]
            await self.beat.report(key, Succeeded())
            await self.beat.settle()

    async def go_on_until(self, last, *, crash_at=None, down="0s"):
        """Stop at every minute and at every end, and crash the node if requested."""
        while self.clock.now() < last:
            now = self.clock.now()
            moments = [(now // 60_000 + 1) * 60_000, *self.ends.values(), last]
            moments += [crash_at] if crash_at is not None else []
            await self.let_pass(min(at for at in moments if at > now) - now)
            if self.clock.now() == crash_at:
                await self.crash(down)
            await self.tell_ends()


def play(hour, *, crashes, minutes=60, down="0s", **given):
    """Play an hour, and return the runs: in order, with `run_at` in seconds."""

    async def story(its):
        await its.with_dag(**(MINUTELY | given))
        last = (NOON + 60 * minutes) * 1000
        await its.go_on_until(last, crash_at=IN_THE_MIDDLE if crashes else None, down=down)
        return await its.runs("m")

    return hour.play(story)


def assert_each_has_its_row(rows):
    assert [parse_instant(row["run_at"]) for row in rows] == MINUTES
    assert [row["idempotency_key"] for row in rows] == [key_of(minute) for minute in MINUTES]


crashing = pytest.mark.parametrize("crashes", [False, True], ids=["", "crash"])


@crashing
@pytest.mark.req("W5", "W46")
def test_allow_starts_59_of_59(tmp_path, crashes):
    hour = Hour(tmp_path)
    rows = play(hour, crashes=crashes, overlap_policy="allow")
    assert hour.keys == [key_of(minute) for minute in MINUTES]
    assert_each_has_its_row(rows)
    assert {row["status"] for row in rows} == {"SUCCESS"}


@crashing
@pytest.mark.req("W47")
def test_skip_starts_59_of_59_if_the_executor_answers_200_and_reports_nothing(tmp_path, crashes):
    hour = Hour(tmp_path)
    rows = play(hour, crashes=crashes)
    assert hour.keys == [key_of(minute) for minute in MINUTES]
    assert_each_has_its_row(rows)
    assert {row["status"] for row in rows} == {"SUCCESS"}


@crashing
@pytest.mark.req("W47", "W58", "W83")
@pytest.mark.parametrize("timeout", [10, 60])
def test_skip_waits_for_a_silent_202_until_its_deadline_and_starts_again(
    tmp_path, crashes, timeout
):
    hour = Hour(tmp_path, workflows_timeout=timeout * 60_000)
    hour.answer = hour.begin
    rows = play(hour, crashes=crashes, minutes=59 if timeout == 60 else 60)
    started = MINUTES[::timeout]
    assert hour.keys == [key_of(minute) for minute in started]
    assert_each_has_its_row(rows)
    told = [row["status"] for row in rows if parse_instant(row["run_at"]) in started]
    assert told == ["FAILED"] * (len(started) - 1) + ["STARTED"]
    others = [row for row in rows if parse_instant(row["run_at"]) not in started]
    assert {(row["status"], row["reason"]) for row in others} == {("SKIPPED", "overlap")}


@crashing
@pytest.mark.req("W48", "W58", "W83")
def test_queue_waits_for_a_silent_202_until_its_deadline_and_loses_no_tick(tmp_path, crashes):
    hour = Hour(tmp_path, workflows_timeout=2 * 60_000)
    hour.answer = hour.begin
    rows = play(hour, crashes=crashes, overlap_policy="queue", minutes=120)
    assert hour.keys == [key_of(minute) for minute in MINUTES]
    assert_each_has_its_row(rows)
    assert {(row["status"], row["reason"]) for row in rows[:-1]} == {("FAILED", "timeout")}


@pytest.mark.req("W47", "W48", "W58", "W83")
@pytest.mark.parametrize(
    ("overlap", "every", "lasts"), [("skip", 10, 15), ("queue", 5, 7)], ids=["skip", "queue"]
)
def test_executor_that_answers_202_and_reports_longer_runs_is_waited_for_by_default(
    tmp_path, overlap, every, lasts
):
    hour = Hour(tmp_path, lasts=lasts)
    hour.answer = hour.begin

    async def story(its):
        end = {"end_at": "2026-01-01T12:02:00Z", "overlap_policy": overlap}
        await its.with_dag(**(MINUTELY | {"cron_expr": f"*/{every} * * * * *"} | end))
        for _ in range(300):
            await its.let_pass("1s")
            await its.tell_ends()
        return await its.runs("m")

    rows = hour.play(story)
    ticks = list(range(NOON + every, NOON + 121, every))
    assert [parse_instant(row["run_at"]) for row in rows] == ticks
    begun, serial = list(hour.begun.values()), lasts * 1000
    if overlap == "skip":  # each second tick finds the run of the one before it
        assert [row["status"] for row in rows] == ["SUCCESS", "SKIPPED"] * (len(ticks) // 2)
        assert hour.keys == [key_of(tick) for tick in ticks[::2]]
    else:  # one after another, and none is lost
        assert {row["status"] for row in rows} == {"SUCCESS"}
        assert hour.keys == [key_of(tick) for tick in ticks]
        assert {after - before for before, after in itertools.pairwise(begun)} == {serial}


@crashing
@pytest.mark.req("W47", "W58")
def test_skip_starts_59_of_59_reported_runs_of_five_seconds(tmp_path, crashes):
    hour = Hour(tmp_path, lasts=5, workflows_feedback=True)
    hour.answer = hour.begin
    rows = play(hour, crashes=crashes)
    assert hour.keys == [key_of(minute) for minute in MINUTES]
    assert_each_has_its_row(rows)
    assert {row["status"] for row in rows} == {"SUCCESS"}


@crashing
@pytest.mark.req("W48", "W58")
def test_queue_starts_59_of_59_that_last_five_seconds(tmp_path, crashes):
    hour = Hour(tmp_path, lasts=5, workflows_feedback=True)
    hour.answer = hour.begin
    rows = play(hour, crashes=crashes, overlap_policy="queue")
    assert hour.keys == [key_of(minute) for minute in MINUTES]
    assert_each_has_its_row(rows)
    assert {row["status"] for row in rows} == {"SUCCESS"}


@crashing
@pytest.mark.req("W48", "W58")
def test_queue_starts_59_of_59_that_last_90_seconds_one_after_another(tmp_path, crashes):
    hour = Hour(tmp_path, lasts=90, workflows_feedback=True)
    hour.answer = hour.begin
    rows = play(hour, crashes=crashes, overlap_policy="queue", minutes=100)
    assert hour.keys == [key_of(minute) for minute in MINUTES]
    assert_each_has_its_row(rows)
    assert {row["status"] for row in rows} == {"SUCCESS"}
    begun = list(hour.begun.values())
    assert {after - before for before, after in itertools.pairwise(begun)} == {90_000}


@pytest.mark.req("W5", "W50", "W57")
@pytest.mark.parametrize("down", ["0s", "10m"])
@pytest.mark.parametrize("answer", ["200", "202"])
def test_allow_starts_59_of_59_across_a_crash_with_fire_immediately(tmp_path, down, answer):
    tells = answer == "202"
    hour = Hour(tmp_path, lasts=5 if tells else None, workflows_feedback=tells)
    hour.answer = hour.begin if tells else None
    given = {"overlap_policy": "allow", "catchup_policy": "fire_immediately"}
    rows = play(hour, crashes=True, down=down, **given)
    assert hour.keys == [key_of(minute) for minute in MINUTES]
    assert_each_has_its_row(rows)
    assert {row["status"] for row in rows} == {"SUCCESS"}


@pytest.mark.req("W5", "W55")
def test_hand_over_interrupted_by_a_crash_is_repeated_with_the_same_key(tmp_path):
    hour = Hour(tmp_path)

    async def story(its):
        await its.with_dag(**MINUTELY)
        for minute in MINUTES:
            if minute == MINUTES[29]:
                its.answer = forever  # in progress when the node dies
                its.clock.advance(minute * 1000 - its.clock.now())
                its.beat.wake()
                while len(its.keys) < 30:  # noqa: ASYNC110 - the executor tells nobody
                    await asyncio.sleep(0)
                its.answer = None
                await its.crash()
            await its.let_pass(minute * 1000 - its.clock.now())
        return await its.runs("m")

    rows = hour.play(story)
    assert hour.keys == [key_of(minute) for minute in (*MINUTES[:30], *MINUTES[29:])]
    assert_each_has_its_row(rows)
    assert {row["status"] for row in rows} == {"SUCCESS"}


@pytest.mark.req("W51", "W57")
def test_spread_ticks_keep_their_keys_after_a_restart(tmp_path):
    hour = Hour(tmp_path)

    async def story(its):
        ten = {"cron_expr": "*/10 * * * *", "catchup_policy": "spread", "overlap_policy": "allow"}
        await its.with_dag(**(MINUTELY | ten | {"end_at": None}))
        await its.crash("35m")  # ticks of 12:10, 12:20 and 12:30
        await its.let_pass("20s")
        assert len(its.keys) == 2
        await its.crash()
        for _ in range(60):
            await its.let_pass("1s")
        return [parse_instant(run["run_at"]) for run in await its.runs("m")]

    owed = [NOON + 600, NOON + 1200, NOON + 1800]
    assert hour.play(story) == owed
    assert hour.keys == [key_of(run_at) for run_at in owed]


def test_six_fields_are_seconds_first(tmp_path):
    hour = Hour(tmp_path)

    async def story(its):
        await its.with_dag(**(MINUTELY | {"cron_expr": "0 */5 * * * *", "end_at": None}))
        for _ in range(16):
            await its.let_pass("1m")

    hour.play(story)
    assert [text[11:19] for text in hour.started] == ["12:05:00", "12:10:00", "12:15:00"]


@pytest.mark.req("W3", "W87")
@pytest.mark.parametrize(
    ("start", "cron", "fired"),
    [
        (
            "2026-10-31T12:00:00Z",
            "30 1 * * *",
            ["2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"],  # once in the hour that comes twice
        ),
        (
            "2026-03-07T12:00:00Z",
            "30 2 * * *",
            ["2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"],  # even in the skipped hour
        ),
    ],
)
def test_new_york_fires_once_a_day_when_clocks_change(tmp_path, start, cron, fired):
    hour = Hour(tmp_path, start=start)

    async def story(its):
        given = {"cron_expr": cron, "timezone": "America/New_York", "end_at": None}
        await its.with_dag(**(MINUTELY | given))
        for _ in range(96):
            await its.let_pass("30m")

    hour.play(story)
    assert hour.started == fired


@pytest.mark.req("W80")
def test_upsert_does_not_resume_a_paused_schedule(tmp_path):
    hour = Hour(tmp_path)

    async def story(its):
        await its.with_dag(**MINUTELY)
        await its.registrar.pause_schedule("m", True)
        await its.upsert(**(MINUTELY | {"cron_expr": "*/2 * * * *"}))
        await its.let_pass("5m")
        return (await its.get("m"))["paused"]

    assert hour.play(story) is True
    assert hour.keys == []


@pytest.mark.req("W81", "W82")
def test_passed_end_at_drops_no_owed_tick(tmp_path):
    hour = Hour(tmp_path)

    async def story(its):
        owing = {"overlap_policy": "allow", "catchup_policy": "fire_immediately"}
        await its.with_dag(**(MINUTELY | owing | {"end_at": "2026-01-01T12:05:30Z"}))
        await its.let_pass("1m")
        await its.crash("30m")  # `end_at` has passed when a node is up again
        await its.let_pass("5m")
        return await its.get("m")

    found = hour.play(story)
    assert hour.keys == [key_of(minute) for minute in MINUTES[:5]]
    assert found["next_run_at"] is None


@pytest.mark.req("W49")
def test_stall_of_a_second_misses_no_tick(tmp_path):
    hour = Hour(tmp_path)

    async def story(its):
        await its.with_dag(**MINUTELY)
        for minute in MINUTES[:5]:
            await its.let_pass(minute * 1000 + 1_000 - its.clock.now())

    hour.play(story)
    assert len(hour.keys) == 5


def test_crash_of_these_tests_leaves_state_for_the_next_node(tmp_path):
    hour = Hour(tmp_path)

    async def story(its):
        await its.with_dag(**MINUTELY)
        await its.crash()
        told = await its.beat.service.events(after=0)
        return [type(row.event).__name__ for row in told if "Node" in type(row.event).__name__]

    assert hour.play(story) == ["NodeStarted", "NodeLost", "NodeStarted"]


def test_key_of_a_tick_is_unique_and_a_second_row_is_refused(tmp_path):
    hour = Hour(tmp_path)
    rows = play(hour, crashes=False)
    keys = [row["idempotency_key"] for row in rows]
    assert keys == [key_of(minute) for minute in MINUTES]
    assert len(set(keys)) == len(keys)
    database = apsw.Connection(str(tmp_path / "onbeat.db"))
    stored = [key for (key,) in database.execute("SELECT idempotency_key FROM schedule_runs")]
    assert sorted(stored) == sorted(keys)
    columns = [name for _, name, *_ in database.execute("PRAGMA table_info(schedule_runs)")]
    names = ", ".join(name for name in columns if name != "run_id")
    again = f"INSERT INTO schedule_runs ({names}) SELECT {names} FROM schedule_runs LIMIT 1"
    with pytest.raises(apsw.ConstraintError, match="UNIQUE constraint failed"):
        database.execute(again)
    database.close()
