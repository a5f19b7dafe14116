"""Schedules of workflows, in the words of their system: defined, read back, and run."""

import pytest

from onbeat import InvalidSchedule
from onbeat.core.instants import parse_instant, rfc3339
from onbeat.core.runs import run_key
from onbeat.errors import NoSuchSchedule
from onbeat.systems.workflows import Registrar
from onbeat.testing import a_schedule

REPORT = {
    "schedule_id": "hourly-report",
    "workflow_id": "report",
    "version": 3,
    "user_id": "ada",
    "cron_expr": "0 * * * *",
    "timezone": "Europe/Berlin",
}


class Workflows:
    """A registrar, and a run launcher that writes down what it is to start."""

    def __init__(self, world):
        self.world, self.started = world, []
        world.beat.register("run-launcher", self.start)

    async def start(self, run, workflow_id, version, user_id):
        self.started.append((workflow_id, version, user_id, run.run_at, run.key))

    def play(self, story):
        async def whole(world):
            self.registrar = Registrar(world.beat.service)
            return await story(self)

        return self.world.play(whole)

    async def upsert(self, **given):
        return await self.registrar.upsert_schedule(REPORT | given)

    async def get(self, schedule_id="hourly-report"):
        return await self.registrar.get_schedule(schedule_id)


@pytest.fixture
def workflows(world):
    return Workflows(world)


@pytest.mark.req("W14")
def test_a_schedule_has_its_workflow_version_and_user(workflows):
    async def story(its):
        await its.upsert()
        return await its.get()

    found = workflows.play(story)
    assert (found["workflow_id"], found["version"], found["user_id"]) == ("report", 3, "ada")


def test_a_schedule_belongs_to_its_user(workflows):
    async def story(its):
        await its.upsert()
        return (await its.world.beat.service.schedule("hourly-report")).user_id

    assert workflows.play(story) == "ada"


@pytest.mark.req("W14")
@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("workflow_id", 7, "a text"),
        ("workflow_id", "", "a text"),
        ("workflow_id", None, "a text"),
        ("version", "3", "a whole number"),
        ("version", 3.0, "a whole number"),
        ("version", True, "a whole number"),
        ("version", None, "a whole number"),
        ("user_id", 7, "a text"),
        ("user_id", None, "a text"),
    ],
)
def test_a_workflow_and_a_user_are_texts_and_a_version_is_a_number(workflows, name, value, what):
    async def story(its):
        with pytest.raises(InvalidSchedule) as refused:
            await its.upsert(**{name: value})
        return str(refused.value), await its.world.beat.schedules()

    assert workflows.play(story) == (f"{name}: {value!r} is not {what} ({what} is needed)", [])


@pytest.mark.req("W14")
def test_a_run_is_started_with_them_and_with_its_key(workflows):
    async def story(its):
        await its.upsert()
        await its.world.let_pass("1h")

    workflows.play(story)
    run_at = parse_instant("2026-01-01T13:00:00Z")
    assert workflows.started == [("report", 3, "ada", run_at, run_key("hourly-report", run_at))]


def test_another_version_is_started_from_then_on(workflows):
    async def story(its):
        await its.upsert()
        await its.world.let_pass("1h")
        answered = await its.upsert(version=4)
        await its.world.let_pass("1h")
        return answered

    answered = workflows.play(story)
    assert answered == {"schedule_id": "hourly-report", "next_run_at": "2026-01-01T14:00:00Z"}
    assert [version for _, version, *_ in workflows.started] == [3, 4]


class TestCatchingUp:
    """The node was away from 12:00 to 15:30, and ticks of 13:00, 14:00 and 15:00 with it."""

    async def away(self, its, **given):
        await its.upsert(overlap_policy="allow", **given)
        await its.world.let_pass("3h30m")
        return [clock(run_at) for *_, run_at, _ in its.started]

    @pytest.mark.req("W22", "W49")
    @pytest.mark.parametrize("given", [{}, {"catchup_policy": "none"}])
    def test_missed_times_are_ignored_unless_told(self, workflows, given):
        async def story(its):
            started = await self.away(its, **given)
            return (await its.get())["catchup_policy"], started, await its.world.statuses()

        assert workflows.play(story) == ("none", [], [("SKIPPED", "missed")])

    @pytest.mark.req("W22", "W50")
    def test_they_may_all_fire_immediately(self, workflows):
        async def story(its):
            started = await self.away(its, catchup_policy="fire_immediately")
            return (await its.get())["catchup_policy"], started

        assert workflows.play(story) == ("fire_immediately", ["13:00", "14:00", "15:00"])

    @pytest.mark.req("W22", "W51")
    def test_or_be_spread_over_the_next_minute(self, workflows):
        async def story(its):
            started = [len(await self.away(its, catchup_policy="spread"))]
            for _ in range(2):
                await its.world.let_pass("20s")
                started.append(len(its.started))
            return (await its.get())["catchup_policy"], started

        assert workflows.play(story) == ("spread", [1, 2, 3])
        assert [clock(run_at) for *_, run_at, _ in workflows.started] == ["13:00", "14:00", "15:00"]

    @pytest.mark.req("W22")
    def test_there_is_no_other_policy(self, workflows):
        async def story(its):
            with pytest.raises(InvalidSchedule) as refused:
                await its.upsert(catchup_policy="latest")
            return str(refused.value)

        known = "(known: fire_immediately, none, spread)"
        assert workflows.play(story) == f"catchup_policy: no policy is called 'latest' {known}"


def clock(run_at):
    hours = (run_at - parse_instant("2026-01-01T00:00:00Z")) // 3600
    return f"{hours:02}:00"


@pytest.mark.req("W30")
def test_an_upsert_answers_with_the_id_and_the_next_time(workflows):
    async def story(its):
        return await its.upsert()

    assert workflows.play(story) == {
        "schedule_id": "hourly-report", "next_run_at": "2026-01-01T13:00:00Z",
    }  # fmt: skip


@pytest.mark.req("W13", "W30")
def test_an_id_is_made_for_a_schedule_that_has_none(workflows):
    async def story(its):
        del (without := dict(REPORT))["schedule_id"]
        ids = [(await its.registrar.upsert_schedule(without))["schedule_id"] for _ in range(2)]
        return ids, [row.schedule_id for row in await its.world.beat.schedules()]

    ids, there = workflows.play(story)
    assert len(set(ids)) == 2
    assert sorted(ids) == there


@pytest.mark.req("W33")
def test_it_is_read_back_with_the_next_five_times(workflows):
    given = {
        "cron_expr": "30 9 * * MON", "timezone": "America/New_York", "jitter_ms": 1500,
        "start_at": "2026-03-01T05:00:00Z", "end_at": "2027-01-01T05:00:00Z",
        "overlap_policy": "queue", "catchup_policy": "spread",
    }  # fmt: skip

    async def story(its):
        await its.upsert(**given)
        return await its.get()

    found = workflows.play(story)
    assert found["preview"] == [  # New York's clocks go forward on 8 March
        "2026-03-02T14:30:00Z", "2026-03-09T13:30:00Z", "2026-03-16T13:30:00Z",
        "2026-03-23T13:30:00Z", "2026-03-30T13:30:00Z",
    ]  # fmt: skip
    assert {name: found[name] for name in REPORT | given} == REPORT | given
    assert (found["next_run_at"], found["paused"]) == (found["preview"][0], False)
    assert found["updated_at"] == "2026-01-01T12:00:00.000Z"
    assert found.keys() == REPORT.keys() | given.keys() | {
        "next_run_at", "paused", "updated_at", "preview",
    }  # fmt: skip


@pytest.mark.req("W77", "W78")
def test_what_is_left_out_is_as_this_system_has_it(workflows):
    async def story(its):
        await its.upsert()
        return await its.get()

    found = workflows.play(story)
    left_out = ("jitter_ms", "overlap_policy", "catchup_policy", "start_at", "end_at", "paused")
    assert [found[name] for name in left_out] == [0, "skip", "none", None, None, False]


@pytest.mark.req("W31")
def test_a_paused_schedule_starts_nothing_until_it_goes_on(workflows):
    async def story(its):
        await its.upsert()
        await its.registrar.pause_schedule("hourly-report", True)
        await its.upsert(version=4)  # which is no reason to go on
        paused = await its.get()
        await its.world.let_pass("1h")
        await its.registrar.pause_schedule("hourly-report", False)
        await its.world.let_pass("1h")
        return paused

    paused = workflows.play(story)
    assert (paused["paused"], paused["next_run_at"], paused["preview"]) == (True, None, [])
    assert [clock(run_at) for *_, run_at, _ in workflows.started] == ["14:00"]


@pytest.mark.req("W32")
def test_a_deleted_schedule_is_gone(workflows):
    async def story(its):
        await its.upsert()
        await its.registrar.delete_schedule("hourly-report")
        with pytest.raises(NoSuchSchedule):
            await its.get()
        await its.world.let_pass("1h")

    workflows.play(story)
    assert workflows.started == []


def test_schedules_of_others_are_not_there(workflows):
    async def story(its):
        await its.world.beat.define(a_schedule("own"))
        for call, *more in (("get",), ("pause", True), ("delete",)):
            with pytest.raises(NoSuchSchedule):
                await getattr(its.registrar, f"{call}_schedule")("own", *more)
        with pytest.raises(InvalidSchedule) as refused:
            await its.upsert(schedule_id="own")
        return str(refused.value), (await its.world.beat.service.schedule("own")).source

    refused, source = workflows.play(story)
    assert refused == "schedule_id: 'own' is there, and of no workflow (another id)"
    assert source == ""


WRONG = [
    ({"cron_expr": "61 * * * *"}, "cron_expr.minute: '61' is no minute"),
    ({"cron_expr": "* * *"}, "cron_expr: "),
    ({"cron_expr": None}, "cron_expr: None is not a text"),
    ({"timezone": "Europe/Berln"}, "timezone: "),
    ({"timezone": ""}, "timezone: '' is not a text"),
    ({"start_at": "soon"}, "start_at: "),
    ({"jitter_ms": -1}, "jitter_ms: -1 is no such number (milliseconds, 0 to 604800000)"),
    ({"jitter_ms": "5s"}, "jitter_ms: '5s' is no such number (milliseconds, 0 to 604800000)"),
    ({"jitter_ms": 10**12}, "jitter_ms: 1000000000000 is no such number"),
    (
        {"overlap_policy": "skipp"},
        "overlap_policy: no way is called 'skipp' (did you mean 'skip'?)",
    ),
    ({"catchup_policy": ["none"]}, "catchup_policy: no policy is called ['none']"),
    ({"cron": "0 * * * *"}, "cron: no field has this name (did you mean 'cron_expr'?)"),
    ({"schedule_id": "no id"}, "schedule_id: 'no id' is no id"),
    ({"schedule_id": ""}, "schedule_id: '' is no id"),
    ({"schedule_id": 7}, "schedule_id: 7 is no id"),
    ({"version": 2**70}, "version: 1180591620717411303424 is not a whole number"),
    ({"user_id": "\ud800"}, "user_id: '\\ud800' is not a text"),
]


@pytest.mark.parametrize(("given", "problem"), WRONG, ids=str)
def test_what_is_refused_is_told_in_its_words(workflows, given, problem):
    async def story(its):
        with pytest.raises(InvalidSchedule) as refused:
            await its.upsert(**given)
        return str(refused.value), await its.world.beat.schedules()

    told, there = workflows.play(story)
    assert told.startswith(problem)
    assert there == []


@pytest.mark.parametrize(
    ("call", "given", "problem"),
    [
        ("upsert", [None], "None is no set of fields (fields by name: catchup_policy, cron_expr,"),
        ("upsert", [[]], "[] is no set of fields"),
        (
            "upsert",
            [{"workflow_id": "report"}],
            "version: it is missing (a whole number is needed)",
        ),
        ("get", [5], "schedule_id: 5 is no id"),
        ("delete", [None], "schedule_id: None is no id"),
        ("pause", ["hourly-report", "no"], "paused: 'no' is neither true nor false (true)"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused_with_a_reason(workflows, call, given, problem):
    async def story(its):
        await its.upsert()
        with pytest.raises(InvalidSchedule) as refused:
            await getattr(its.registrar, f"{call}_schedule")(*given)
        return str(refused.value), (await its.get())["paused"]

    told, paused = workflows.play(story)
    assert told.startswith(problem)
    assert not paused


def test_a_run_launcher_that_cannot_be_called_so_is_refused_when_a_schedule_is_defined(world):
    world.beat.register("run-launcher", lambda workflow_id: None)

    async def story(world):
        with pytest.raises(InvalidSchedule) as refused:
            await Registrar(world.beat.service).upsert_schedule(REPORT)
        return str(refused.value)

    assert "inputs.user_id: the function has none (known: workflow_id)" in world.play(story)


@pytest.mark.req("W3")
def test_it_wakes_on_time_in_its_zone_also_on_the_night_the_clocks_change(workflows):
    async def story(its):
        its.world.clock.advance(
            parse_instant("2026-03-07T12:00:00Z") * 1000 - its.world.clock.now()
        )
        await its.upsert(cron_expr="30 2 * * *", timezone="America/New_York")
        for _ in range(4 * 48):
            await its.world.let_pass("15m")

    workflows.play(story)
    assert [rfc3339(run_at) for *_, run_at, _ in workflows.started] == [
        "2026-03-08T07:00:00Z",  # 02:30 does not exist: the first instant after the gap
        "2026-03-09T06:30:00Z",
    ]
