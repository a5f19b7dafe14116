"""Schedules of workflows with the fields of their system: defined, read back, and run."""

import pytest

from onbeat import InvalidSchedule
from onbeat.core.runs.run import run_key
from onbeat.core.time.instants import parse_instant
from onbeat.errors import NoSuchSchedule
from onbeat.testing import a_schedule
from tests.systems.workflows.conftest import DAG, REPORT


def test_schedule_has_its_workflow_version_and_user(workflows):
    async def story(its):
        await its.upsert()
        return await its.get()

    found = workflows.play(story)
    assert (found["workflow_id"], found["version"], found["user_id"]) == ("report", 3, "ada")


def test_a_schedule_belongs_to_its_user(workflows):
    async def story(its):
        await its.upsert()
        return (await its.beat.service.schedule("hourly-report")).user_id

    assert workflows.play(story) == "ada"


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("workflow_id", 7, "a string"),
        ("workflow_id", "", "a string"),
        ("version", "3", "a whole number"),
        ("version", 3.0, "a whole number"),
        ("version", True, "a whole number"),
        ("user_id", 7, "a string"),
    ],
)
def test_workflow_and_user_are_strings_and_version_is_a_number(workflows, name, value, what):
    async def story(its):
        with pytest.raises(InvalidSchedule) as refused:
            await its.upsert(**{name: value})
        return str(refused.value), await its.beat.schedules()

    assert workflows.play(story) == (f"{name}: {value!r} is not {what} ({what} is needed)", [])


def test_run_is_started_with_workflow_version_user_and_key(workflows):
    async def story(its):
        await its.with_dag()
        await its.let_pass("1h")

    workflows.play(story)
    ((dag, meta),) = workflows.handed_over
    key = run_key("hourly-report", parse_instant("2026-01-01T13:00:00Z"))
    assert (dag, meta["user_id"], meta["idempotency_key"]) == (DAG, "ada", key)


def test_new_version_is_started_from_then_on(workflows):
    async def story(its):
        await its.with_dag()
        await its.workflows.store.save_dag("report", 4, {"nodes": []})
        await its.let_pass("1h")
        answered = await its.upsert(version=4)
        await its.let_pass("1h")
        return answered

    answered = workflows.play(story)
    assert answered == {"schedule_id": "hourly-report", "next_run_at": "2026-01-01T14:00:00Z"}
    assert [dag for dag, _ in workflows.handed_over] == [DAG, {"nodes": []}]


class TestCatchingUp:
    """The node was away from 12:00 to 15:30, and missed the ticks of 13:00, 14:00 and 15:00."""

    async def away(self, its, **given):
        await its.with_dag(overlap_policy="allow", **given)
        await its.let_pass("3h30m")
        return clocks(its)

    @pytest.mark.req("W49")
    @pytest.mark.parametrize("given", [{}, {"catchup_policy": "none"}])
    def test_missed_ticks_are_ignored_by_default(self, workflows, given):
        async def story(its):
            started = await self.away(its, **given)
            return (await its.get())["catchup_policy"], started, await its.statuses()

        assert workflows.play(story) == ("none", [], [("SKIPPED", "missed")])

    def test_row_of_missed_ticks_has_their_count_and_the_first(self, workflows):
        async def story(its):
            await self.away(its)
            (run,) = await its.runs()
            return run

        run = workflows.play(story)
        told = {name: run[name] for name in ("number", "run_id", "tick_count")}
        assert told == {"number": 1, "run_id": None, "tick_count": 3}
        assert (run["first_run_at"][11:16], run["run_at"][11:16]) == ("13:00", "15:00")

    @pytest.mark.req("W49")
    @pytest.mark.parametrize(
        ("policy", "late", "status"),
        [
            ("none", "10s", "SUCCESS"),
            ("none", "11s", "SKIPPED"),
            ("fire_immediately", "50s", "SUCCESS"),
        ],
    )
    def test_tick_is_missed_after_ten_seconds_without_catch_up(
        self, workflows, policy, late, status
    ):
        async def story(its):
            await its.with_dag(catchup_policy=policy)
            its.clock.advance(late)
            await its.let_pass("1h")
            return [run["status"] for run in await its.runs()]

        assert workflows.play(story) == [status]

    @pytest.mark.req("W47", "W49")
    def test_long_missed_tick_is_not_recorded_as_overlap(self, workflows):
        async def story(its):
            often = {"cron_expr": "*/20 * * * * *", "overlap_policy": "skip"}
            await its.with_dag(**often)
            await its.let_pass("5m")
            return [(run["status"], run["reason"], run["tick_count"]) for run in await its.runs()]

        assert workflows.play(story) == [("SKIPPED", "missed", 14), ("SUCCESS", None, 1)]

    @pytest.mark.req("W50")
    def test_missed_ticks_may_all_fire_immediately(self, workflows):
        async def story(its):
            started = await self.away(its, catchup_policy="fire_immediately")
            return (await its.get())["catchup_policy"], started

        assert workflows.play(story) == ("fire_immediately", ["13:00", "14:00", "15:00"])

    @pytest.mark.req("W51")
    def test_missed_ticks_may_be_spread_over_the_next_minute(self, workflows):
        async def story(its):
            started = [len(await self.away(its, catchup_policy="spread"))]
            for _ in range(2):
                await its.let_pass("20s")
                started.append(len(its.started))
            return (await its.get())["catchup_policy"], started

        assert workflows.play(story) == ("spread", [1, 2, 3])
        assert clocks(workflows) == ["13:00", "14:00", "15:00"]

    def test_unknown_catchup_policy_is_refused(self, workflows):
        async def story(its):
            with pytest.raises(InvalidSchedule) as refused:
                await its.upsert(catchup_policy="latest")
            return str(refused.value)

        known = "(known: fire_immediately, none, spread)"
        assert workflows.play(story) == f"catchup_policy: no policy is called 'latest' {known}"


def clocks(its):
    return [text[11:16] for text in its.started]


@pytest.mark.req("W30")
def test_upsert_returns_the_id_and_the_next_tick(workflows):
    async def story(its):
        return await its.upsert()

    assert workflows.play(story) == {
        "schedule_id": "hourly-report", "next_run_at": "2026-01-01T13:00:00Z",
    }  # fmt: skip


@pytest.mark.req("W13", "W30")
def test_upsert_without_an_id_generates_one(workflows):
    async def story(its):
        del (without := dict(REPORT))["schedule_id"]
        ids = [(await its.registrar.upsert_schedule(without))["schedule_id"] for _ in range(2)]
        return ids, [row.schedule_id for row in await its.beat.schedules()]

    ids, there = workflows.play(story)
    assert len(set(ids)) == 2
    assert sorted(ids) == there


@pytest.mark.req("W33")
def test_schedule_is_returned_with_the_next_five_ticks(workflows):
    given = {
        "cron_expr": "30 9 * * MON", "timezone": "America/New_York", "jitter_ms": 1500,
        "start_at": "2026-03-01T05:00:00Z", "end_at": "2027-01-01T05:00:00Z",
        "overlap_policy": "queue", "catchup_policy": "spread",
    }  # fmt: skip

    async def story(its):
        await its.upsert(**given)
        return await its.registrar.get_schedule("hourly-report")

    answered = workflows.play(story)
    found = answered["schedule"]
    assert answered["preview"] == [  # New York's clocks go forward on 8 March
        "2026-03-02T14:30:00Z", "2026-03-09T13:30:00Z", "2026-03-16T13:30:00Z",
        "2026-03-23T13:30:00Z", "2026-03-30T13:30:00Z",
    ]  # fmt: skip
    assert {name: found[name] for name in REPORT | given} == REPORT | given
    assert (found["next_run_at"], found["paused"]) == (answered["preview"][0], False)
    assert answered["next_fire_times"] == answered["preview"]
    assert found["updated_at"] == "2026-01-01T12:00:00.000Z"
    assert found.keys() == REPORT.keys() | given.keys() | {
        "next_run_at", "paused", "updated_at",
    }  # fmt: skip


@pytest.mark.req("W77", "W78")
def test_omitted_fields_get_the_defaults_of_the_origin(workflows):
    async def story(its):
        await its.upsert()
        return await its.get()

    found = workflows.play(story)
    left_out = ("jitter_ms", "overlap_policy", "catchup_policy", "start_at", "end_at", "paused")
    assert [found[name] for name in left_out] == [0, "skip", "none", None, None, False]


@pytest.mark.req("W31")
def test_paused_schedule_starts_nothing_until_resumed(workflows):
    async def story(its):
        await its.with_dag()
        await its.registrar.pause_schedule("hourly-report", True)
        await its.upsert(jitter_ms=1)  # which does not resume it
        paused = await its.registrar.get_schedule("hourly-report")
        await its.upsert()
        await its.let_pass("1h")
        await its.registrar.pause_schedule("hourly-report", False)
        await its.let_pass("1h")
        return paused

    paused = workflows.play(story)
    schedule = paused["schedule"]
    assert (schedule["paused"], schedule["next_run_at"], paused["preview"]) == (True, None, [])
    assert clocks(workflows) == ["14:00"]


@pytest.mark.req("W32")
def test_deleted_schedule_is_not_found(workflows):
    async def story(its):
        await its.with_dag()
        await its.registrar.delete_schedule("hourly-report")
        with pytest.raises(NoSuchSchedule):
            await its.get()
        await its.let_pass("1h")

    workflows.play(story)
    assert workflows.started == []


def test_schedules_of_other_systems_are_not_found(workflows):
    async def story(its):
        await its.beat.define(a_schedule("own"))
        for call, *more in (("get",), ("pause", True), ("delete",)):
            with pytest.raises(NoSuchSchedule):
                await getattr(its.registrar, f"{call}_schedule")("own", *more)
        with pytest.raises(InvalidSchedule) as refused:
            await its.upsert(schedule_id="own")
        return str(refused.value), (await its.beat.service.schedule("own")).source

    refused, source = workflows.play(story)
    assert refused == "schedule_id: 'own' exists already and is not a workflow (choose another id)"
    assert source == ""


WRONG = [
    ({"cron_expr": "61 * * * *"}, "cron_expr.minute: '61' is not a minute"),
    ({"cron_expr": "* * *"}, "cron_expr: "),
    ({"cron_expr": None}, "cron_expr: it is missing (a string is needed)"),
    ({"cron_expr": 5}, "cron_expr: 5 is not a string"),
    ({"version": None}, "version: it is missing (a whole number is needed)"),
    ({"version": -1}, "version: -1 is not a whole number (0 or more)"),
    ({"user_id": "a" * 201}, "user_id: "),
    ({"workflow_id": "a\nb"}, "workflow_id: 'a\\nb' is too long or not printable"),
    ({"overlap_policy": "replace"}, "overlap_policy: no policy is called 'replace'"),
    ({"timezone": "Europe/Berln"}, "timezone: "),
    ({"timezone": ""}, "timezone: '' is not a string"),
    ({"start_at": "soon"}, "start_at: "),
    ({"jitter_ms": -1}, "jitter_ms: -1 is not a valid number (milliseconds, 0 to 604800000)"),
    ({"jitter_ms": "5s"}, "jitter_ms: '5s' is not a valid number (milliseconds, 0 to 604800000)"),
    ({"jitter_ms": 10**12}, "jitter_ms: 1000000000000 is not a valid number"),
    (
        {"overlap_policy": "skipp"},
        "overlap_policy: no policy is called 'skipp' (did you mean 'skip'?)",
    ),
    ({"catchup_policy": ["none"]}, "catchup_policy: no policy is called ['none']"),
    ({"cron": "0 * * * *"}, "cron: no field has this name (did you mean 'cron_expr'?)"),
    ({"paused": True}, "paused: no field has this name (pause_schedule, or POST /schedules/pause"),
    ({"schedule_id": "no id"}, "schedule_id: 'no id' is not a valid id"),
    (
        {"schedule_id": "upsert"},
        "schedule_id: /schedules/upsert is another route (choose another id)",
    ),
    (
        {"schedule_id": "pause"},
        "schedule_id: /schedules/pause is another route (choose another id)",
    ),
    (
        {"schedule_id": "deploy"},
        "schedule_id: /schedules/deploy is another route (choose another id)",
    ),
    ({"schedule_id": ""}, "schedule_id: '' is not a valid id"),
    ({"schedule_id": 7}, "schedule_id: 7 is not a valid id"),
    ({"version": 2**70}, "version: 1180591620717411303424 is not a whole number"),
    ({"user_id": "\ud800"}, "user_id: '\\ud800' is not a string"),
]


@pytest.mark.parametrize(("given", "problem"), WRONG, ids=str)
def test_errors_name_the_fields_of_this_system(workflows, given, problem):
    async def story(its):
        with pytest.raises(InvalidSchedule) as refused:
            await its.upsert(**given)
        return str(refused.value), await its.beat.schedules()

    told, there = workflows.play(story)
    assert told.startswith(problem)
    assert there == []


@pytest.mark.parametrize(
    ("call", "given", "problem"),
    [
        (
            "upsert",
            [None],
            "None is not a mapping (fields by name: catchup_policy, cron_expr,",
        ),
        ("upsert", [[]], "[] is not a mapping"),
        (
            "upsert",
            [{"workflow_id": "report"}],
            "version: it is missing (a whole number is needed)",
        ),
        ("get", [5], "schedule_id: 5 is not a valid id"),
        ("delete", [None], "schedule_id: None is not a valid id"),
        ("pause", ["hourly-report", "no"], "paused: 'no' is neither true nor false (true)"),
    ],
)
def test_invalid_call_is_refused_with_a_reason(workflows, call, given, problem):
    async def story(its):
        await its.upsert()
        with pytest.raises(InvalidSchedule) as refused:
            await getattr(its.registrar, f"{call}_schedule")(*given)
        return str(refused.value), (await its.get())["paused"]

    told, paused = workflows.play(story)
    assert told.startswith(problem)
    assert not paused


@pytest.mark.req("W3")
def test_cron_fires_on_time_in_its_zone_when_the_clocks_change(workflows):
    async def story(its):
        its.clock.advance(parse_instant("2026-03-07T12:00:00Z") * 1000 - its.clock.now())
        await its.with_dag(cron_expr="30 2 * * *", timezone="America/New_York")
        for _ in range(4 * 48):
            await its.let_pass("15m")

    workflows.play(story)
    assert workflows.started == [
        "2026-03-08T07:00:00Z",  # 02:30 does not exist: the first instant after the gap
        "2026-03-09T06:30:00Z",
    ]
