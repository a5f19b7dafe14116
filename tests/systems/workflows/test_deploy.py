"""Deploying a DAG defines the schedules of its triggers."""

import asyncio

import pytest

from onbeat import InvalidSchedule, Onbeat
from onbeat.app.settings import Settings
from onbeat.errors import NotAllowed
from onbeat.service.access import Caller
from onbeat.testing import a_schedule
from tests.given_settings import given_settings
from tests.systems.workflows.conftest import DAG, WorkflowsHarness

NOON = "2026-01-01T12:00:00Z"
ABOUT = {"workflow_id": "report", "version": 1, "user_id": "ada"}


def trigger(name="morning", cron_expr="0 9 * * *", **more):
    schedule = {"cron_expr": cron_expr} | more
    return {"id": name, "type": "schedule_based", "schedule": schedule}


def a_dag(*triggers, **more):
    return DAG | ABOUT | {"triggers": list(triggers)} | more


async def ids(its):
    return [row.schedule_id for row in await its.beat.schedules()]


@pytest.mark.req("W2", "W41")
def test_each_schedule_based_trigger_of_a_dag_has_its_schedule(workflows):
    dag = a_dag(trigger(), trigger("evening", "0 18 * * *", timezone="Europe/Berlin"))

    async def story(its):
        answered = await its.workflows.deploy(dag)
        return (
            answered,
            await its.get("report/evening"),
            await its.workflows.store.load_dag("report", 1),
        )

    answered, evening, kept = workflows.play(story)
    assert answered == {
        "workflow_id": "report",
        "version": 1,
        "schedules": [
            {"schedule_id": "report/morning", "next_run_at": "2026-01-02T09:00:00Z"},
            {"schedule_id": "report/evening", "next_run_at": "2026-01-01T17:00:00Z"},
        ],
        "removed": [],
    }
    assert (evening["workflow_id"], evening["version"], evening["user_id"]) == ("report", 1, "ada")
    assert kept == dag


@pytest.mark.req("W41")
def test_deployed_workflow_runs(workflows):
    async def story(its):
        await its.workflows.deploy(a_dag(trigger(cron_expr="0 * * * *")))
        await its.let_pass("1h")

    workflows.play(story)
    assert workflows.handed_over[0][0] == a_dag(trigger(cron_expr="0 * * * *"))


@pytest.mark.req("W7", "W41")
def test_triggers_of_events_are_ignored(workflows):
    event = {"id": "mail", "type": "event_based", "event": "GMAIL_NEW_MESSAGE"}

    async def story(its):
        await its.workflows.deploy(a_dag(event, trigger()))
        return await ids(its)

    assert workflows.play(story) == ["report/morning"]


@pytest.mark.req("W7")
def test_history_is_kept_for_the_configured_time():
    world = WorkflowsHarness(keep=3_600_000)  # an hour
    forgotten = []

    async def story(its):
        await its.with_dag(cron_expr="* * * * *")
        await its.let_pass("1m")
        await its.let_pass("2h")
        before = its.clock.now() - its.settings.keep
        forgotten.append(await its.beat.service._all.prune(before=before))
        return [run["run_at"] for run in await its.runs()]

    assert "2026-01-01T12:01:00Z" not in world.play(story)
    assert forgotten == [1]
    assert Settings().keep == 30 * 86_400_000


@pytest.mark.req("W2")
def test_new_version_replaces_the_last_and_removes_its_old_triggers(workflows):
    async def story(its):
        await its.workflows.deploy(a_dag(trigger("hourly", "0 * * * *"), trigger("evening")))
        await its.upsert()  # of the same workflow, and not by deploying it
        await its.let_pass("1h")
        after = a_dag(trigger("hourly", "30 * * * *"), version=2)
        answered = await its.workflows.deploy(after)
        await its.let_pass("30m")
        return answered, await ids(its)

    answered, there = workflows.play(story)
    assert answered["removed"] == ["report/evening"]
    assert answered["schedules"] == [
        {"schedule_id": "report/hourly", "next_run_at": "2026-01-01T13:30:00Z"}
    ]
    assert there == ["hourly-report", "report/hourly"]
    assert [dag["version"] for dag, _ in workflows.handed_over] == [1, 2]


@pytest.mark.req("W2", "W80")
def test_redeploying_does_not_resume_paused_schedules(workflows):
    async def story(its):
        await its.workflows.deploy(a_dag(trigger()))
        await its.registrar.pause_schedule("report/morning", True)
        await its.workflows.deploy(a_dag(trigger(), version=2))
        return await its.get("report/morning")

    found = workflows.play(story)
    assert (found["version"], found["paused"]) == (2, True)


def test_redeploying_the_same_changes_nothing(workflows):
    async def story(its):
        await its.workflows.deploy(a_dag(trigger()))
        before = await its.beat.service.newest_event()
        await its.workflows.deploy(a_dag(trigger()))
        return await its.beat.service.newest_event() - before

    assert workflows.play(story) == 0


def test_workflow_with_a_longer_id_is_untouched(workflows):
    async def story(its):
        await its.workflows.deploy(a_dag(trigger(), workflow_id="report-2"))
        await its.workflows.deploy(a_dag(trigger(), workflow_id="repo"))
        await its.workflows.deploy(a_dag())
        await its.workflows.deploy(a_dag(trigger("a")))
        return await ids(its)

    assert workflows.play(story) == ["repo/morning", "report-2/morning", "report/a"]


def test_arguments_complete_a_dag(workflows):
    dag = {"trigger": trigger() | {"kind": "schedule_based"}}
    del dag["trigger"]["type"]

    async def story(its):
        return await its.workflows.deploy(dag, **ABOUT), await ids(its)

    answered, there = workflows.play(story)
    assert (answered["version"], there) == (1, ["report/morning"])


@pytest.mark.parametrize(
    ("dag", "problem"),
    [
        ([], "dag: [] is not a DAG"),
        ({"version": 1, "user_id": "ada"}, "workflow_id: it is missing (workflow_id beside the"),
        (a_dag(version="1"), "version: '1' is not a whole number"),
        (a_dag(user_id=""), "user_id: '' is not a string"),
        (a_dag(triggers={}), "triggers: {} is not a list"),
        (a_dag("morning"), "triggers[0]: 'morning' is not a trigger"),
        (a_dag({"type": "schedule_based"}), "triggers[0].id: it is missing (such as morning)"),
        (
            a_dag({"type": "schedule_base"}),
            "triggers[0].type: no type is called 'schedule_base' (did you mean 'schedule_based'?)",
        ),
        (a_dag({"kind": "Schedule-Based"}), "triggers[0].kind: no type is called 'Schedule-Based'"),
        (a_dag({"type": "schedule_based", "id": "a"}), "triggers[0].schedule: it is missing"),
        (a_dag({"type": "schedule_based", "id": "a", "schedule": 5}), "triggers[0].schedule: 5 is"),
        (a_dag(trigger("a/b")), "triggers[0].id: 'a/b' has a slash"),
        (a_dag(trigger(), trigger()), "triggers[1].id: two triggers are called 'morning'"),
        (a_dag(trigger(cron="* * * * *")), "triggers[0].schedule.cron: no field has this name"),
        (a_dag(trigger(), trigger("b", "61 * * * *")), "triggers.b.cron_expr.minute: '61' is no"),
        (a_dag(trigger(timezone="Mars/Base")), "triggers.morning.timezone: "),
        (a_dag(trigger("a b")), "triggers[0].id: 'a b' cannot be part of an id (letters"),
        (a_dag(trigger(), workflow_id="a b"), "workflow_id: 'a b' cannot be part of an id ("),
        (a_dag(*(trigger(f"t{n}") for n in range(101))), "triggers: too many (100 at most)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_dag_is_refused_and_nothing_is_stored(workflows, dag, problem):
    async def story(its):
        await its.workflows.deploy(a_dag(trigger("before"), version=7))
        before = await its.beat.service.newest_event()
        with pytest.raises(InvalidSchedule) as refused:
            await its.workflows.deploy(dag)
        return str(refused.value), await its.beat.service.newest_event() - before

    told, events = workflows.play(story)
    assert told.startswith(problem)
    assert events == 0


@pytest.mark.parametrize("kind", ["event_based", "message_based", "resource_based", None, 5])
def test_triggers_of_other_types_are_ignored(workflows, kind):
    async def story(its):
        return (await its.workflows.deploy(a_dag({"type": kind})))["schedules"]

    assert workflows.play(story) == []


def test_taken_schedule_id_is_refused_and_no_schedule_changes(workflows):
    async def story(its):
        await its.beat.define(a_schedule("report/morning"))
        with pytest.raises(InvalidSchedule, match="exists already and is not a workflow"):
            await its.workflows.deploy(a_dag(trigger("evening"), trigger()))
        return await ids(its)

    assert workflows.play(story) == ["report/morning"]


def test_refused_schedule_id_leaves_the_dag_unchanged(workflows):
    async def story(its):
        await its.workflows.deploy(a_dag(trigger()))
        await its.beat.define(a_schedule("report/evening"))
        with pytest.raises(InvalidSchedule, match="exists already and is not a workflow"):
            await its.workflows.deploy(a_dag(trigger("evening")))
        return await its.workflows.store.load_dag("report", 1)

    assert workflows.play(story) == a_dag(trigger())


def test_separately_registered_schedule_is_not_changed_by_deploying(workflows):
    async def story(its):
        await its.upsert(schedule_id="report/adhoc")
        await its.workflows.deploy(a_dag(trigger(), trigger("evening")))
        await its.registrar.upsert_schedule({
            **ABOUT, "schedule_id": "report/evening", "cron_expr": "1 * * * *", "timezone": "UTC",
        })  # fmt: skip
        answered = await its.workflows.deploy(a_dag(trigger()))
        return answered["removed"], await ids(its)

    # A schedule made by deploying belongs to it, even after an edit.
    assert workflows.play(story) == (["report/evening"], ["report/adhoc", "report/morning"])


@pytest.mark.parametrize("first", [["x"], []])
@pytest.mark.parametrize(("slow", "quick"), [(["x"], ["x", "y"]), (["x"], ["y"]), ([], ["y"])])
def test_one_of_two_concurrent_deployments_wins_completely(workflows, first, slow, quick):
    async def story(its):
        own, other = its.workflows, its.workflows.of(its.beat.service)
        await own.deploy(a_dag(*map(trigger, first)))
        save, is_saved, may_go_on = own.store.save_dag, asyncio.Event(), asyncio.Event()

        async def save_slowly(*given, **more):
            await save(*given, **more)
            is_saved.set()
            await may_go_on.wait()

        own.store.save_dag = save_slowly
        deploying = asyncio.create_task(own.deploy(a_dag(*map(trigger, slow), version=2)))
        await is_saved.wait()
        await other.deploy(a_dag(*map(trigger, quick), version=3))
        may_go_on.set()
        await deploying
        return [
            (each["schedule_id"], each["version"]) for each in await its.registrar.list_schedules()
        ]

    assert workflows.play(story) == [(f"report/{name}", 2) for name in slow]


def test_deployment_that_never_wins_is_refused(workflows):
    async def story(its):
        async def is_own(_):
            return False

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("onbeat.systems.workflows.system.DeployTurn.is_own", is_own)
            with pytest.raises(InvalidSchedule, match="'report' is being deployed concurrently"):
                await its.workflows.deploy(a_dag(trigger()))

    workflows.play(story)


class TestOwners:
    """A caller with an owner acts for no other user."""

    def of(self, its, owner="ann", scope="define"):
        return its.workflows.of(its.beat.service.of(Caller(f"token:{owner}", scope, owner)))

    def test_owners_deploy_and_start_only_for_themselves(self, workflows):
        async def story(its):
            ann = self.of(its)
            await ann.deploy(a_dag(trigger(), user_id="ann"))
            for refused in (
                ann.deploy(a_dag(trigger(), user_id="bob", workflow_id="other")),
                ann.registrar.upsert_schedule(
                    {**ABOUT, "user_id": "bob", "cron_expr": "* * * * *", "timezone": "UTC"}
                ),
                ann.start_workflow("report", 1, "bob", "2026-01-01T00:00:00Z", "k"),
                self.of(its, "bob").deploy(a_dag(trigger(), user_id="bob")),
                self.of(its, scope="operate").deploy(a_dag(user_id="ann")),
                self.of(its, scope="read").start_workflow(
                    "report", 1, "ann", "2026-01-01T00:00:00Z", "k"
                ),
            ):
                with pytest.raises(NotAllowed):
                    await refused
            started = await ann.start_workflow("report", 1, "ann", "2026-01-01T00:00:00Z", "k")
            return started, await self.of(its, "bob").registrar.list_schedules()

        assert workflows.play(story) == (True, [])
        assert [meta["user_id"] for _, meta in workflows.handed_over] == ["ann"]

    def test_dag_of_one_owner_runs_for_no_other(self, workflows):
        def every_hour(owner):
            return a_dag(trigger("of-" + owner, "0 * * * *"), user_id=owner, nodes=[owner])

        async def story(its):
            ann, bob, eve = (self.of(its, each) for each in ("ann", "bob", "eve"))
            await ann.deploy(every_hour("ann"))
            await bob.deploy(every_hour("bob"))  # it has the same name, and is his
            given = ABOUT | {"cron_expr": "0 * * * *", "timezone": "UTC"}
            await eve.registrar.upsert_schedule(given | {"user_id": "eve", "schedule_id": "eves"})
            await its.let_pass("1h")
            (run,) = await its.runs("eves")
            started = await eve.start_workflow("report", 1, "eve", "2026-01-01T00:00:00Z", "k")
            await its.workflows.store.save_dag("report", 1, a_dag(nodes=["everybody"]))
            return run["error"], started, await eve.start_workflow("report", 1, "eve", NOON, "k")

        missing = "no DAG of report v1 (deploy it with POST /schedules/deploy)"
        assert workflows.play(story) == (missing, False, True)
        seen = sorted((meta["user_id"], *dag["nodes"]) for dag, meta in workflows.handed_over)
        assert seen == [("ann", "ann"), ("bob", "bob"), ("eve", "everybody")]

    def test_dag_deployed_by_an_admin_belongs_to_its_user(self, workflows):
        async def story(its):
            await its.workflows.deploy(a_dag(trigger(), user_id="ann"))
            ann, bob = self.of(its), self.of(its, "bob")
            started = [
                await each.start_workflow("report", 1, who, NOON, "k")
                for who, each in (("ann", ann), ("bob", bob))
            ]
            await ann.deploy(a_dag(trigger("evening"), user_id="ann"))
            return started, await ids(its)

        assert workflows.play(story) == ([True, False], ["report/evening"])

    def test_user_of_a_schedule_cannot_be_changed(self, workflows):
        async def story(its):
            await its.upsert()
            with pytest.raises(InvalidSchedule) as refused:
                await its.upsert(user_id="bob")
            return str(refused.value), (await its.get())["user_id"]

        told, whose = workflows.play(story)
        assert told.startswith(
            "user_id: 'hourly-report' belongs to 'ada' (choose another schedule_id, or "
        )
        assert whose == "ada"

    def test_manual_start_cannot_use_the_key_of_another_run(self, workflows):
        async def story(its):
            await its.with_dag()
            await its.let_pass("1h")
            for who in ("ann", "ann", "bob"):
                await self.of(its, who).start_workflow("report", 3, who, NOON, its.keys[0])
            await its.workflows.start_workflow("report", 3, "ada", NOON, "by-hand")

        workflows.play(story)
        of_ada, ann, again, bob, own = workflows.keys
        assert ann == again
        assert len({of_ada, ann, bob}) == 3
        assert own == "by-hand"

    def test_dags_in_a_folder_are_refused_to_owners(self, tmp_path):
        async def story(its):
            with pytest.raises(NotAllowed, match="the DAGs are files"):
                await self.of(its).deploy(a_dag(user_id="ann"))
            await its.workflows.deploy(a_dag())

        WorkflowsHarness(workflows_folder=str(tmp_path / "dags")).play(story)
        assert [path.name for path in (tmp_path / "dags").iterdir()] == ["report_v1.json"]


class TestReading:
    """The admin reads the schedules and their runs."""

    @pytest.mark.req("W6", "W67")
    def test_schedules_are_listed_by_user_and_by_workflow(self, workflows):
        async def story(its):
            await its.upsert(schedule_id="a")
            await its.upsert(schedule_id="b", user_id="bob")
            await its.upsert(schedule_id="c", workflow_id="other")
            await its.beat.define(a_schedule("own"))
            listed = its.registrar.list_schedules
            found = [
                await listed(),
                await listed(user_id="bob"),
                await listed(workflow_id="report"),
                await listed(user_id="ada", workflow_id="report"),
                await listed(limit=2),
                await listed(user_id="nobody"),
            ]
            return ["".join(each["schedule_id"] for each in some) for some in found]

        assert workflows.play(story) == ["abc", "b", "ab", "a", "ab", ""]

    def test_list_of_schedules_is_complete_over_several_pages(self, workflows, monkeypatch):
        monkeypatch.setattr("onbeat.systems.workflows.registrar.PAGE", 2)

        async def story(its):
            for n in range(5):
                await its.upsert(schedule_id=f"s{n}", user_id="bob" if n % 2 else "ada")
            found = await its.registrar.list_schedules(user_id="ada")
            await its.workflows.deploy(a_dag(*(trigger(f"t{n}") for n in range(5))))
            gone = await its.workflows.deploy(a_dag())
            return [each["schedule_id"] for each in found], gone["removed"]

        assert workflows.play(story) == (["s0", "s2", "s4"], [f"report/t{n}" for n in range(5)])

    @pytest.mark.req("W6", "W27", "W29", "W68")
    def test_last_runs_of_a_schedule_are_listed_latest_first(self, workflows):
        async def story(its):
            await its.with_dag()
            for _ in range(12):
                await its.let_pass("1h")
            return await its.registrar.runs("hourly-report"), await its.registrar.runs(
                "hourly-report", limit=2
            )

        ten, two = workflows.play(story)
        assert [run["run_at"][11:13] for run in ten] == [
            "00", "23", "22", "21", "20", "19", "18", "17", "16", "15",
        ]  # fmt: skip
        assert two == ten[:2]
        assert ten[0].keys() == {
            "idempotency_key", "schedule_id", "run_at", "status", "run_id", "number", "tick_count",
            "first_run_at", "reason", "error", "created_at", "updated_at",
        }  # fmt: skip
        assert ten[0]["created_at"] == "2026-01-02T00:00:00.000Z"

    def test_canceled_run_is_shown_with_one_of_five_statuses(self, workflows):
        async def story(its):
            await its.with_dag()
            run = await its.beat.start("hourly-report")
            await its.beat.settle()
            await its.beat.service.pause("hourly-report")
            await its.beat.service.set_gate(is_open=False)
            waiting = await its.beat.start("hourly-report")
            await its.beat.cancel(waiting.run_id)
            return run.run_id, await its.statuses()

        _, statuses = workflows.play(story)
        assert statuses == [("SUCCESS", None), ("SKIPPED", "canceled")]

    @pytest.mark.parametrize("limit", [0, -1, 1001, "5", True])
    def test_invalid_limit_is_refused(self, workflows, limit):
        async def story(its):
            await its.upsert()
            for call in (its.registrar.list_schedules(limit=limit),
                         its.registrar.runs("hourly-report", limit=limit)):  # fmt: skip
                with pytest.raises(InvalidSchedule, match="limit: "):
                    await call

        workflows.play(story)

    def test_schedule_edited_elsewhere_is_shown_with_the_known_fields(self, workflows):
        async def story(its):
            await its.upsert()
            row = await its.beat.service.schedule("hourly-report")
            run = {"workflow": "report", "version": 3, "user_id": "ada"}
            await its.beat.define(a_schedule("hourly-report", every="1h", run=run))
            told = await its.get()
            await its.beat.define(a_schedule("hourly-report", every="1h"))
            await its.workflows.deploy(a_dag(trigger()))
            await its.beat.define(a_schedule("report/morning", every="1h"))
            again = await its.workflows.deploy(a_dag())
            return told, row.source, await its.registrar.list_schedules(), again["removed"]

        told, source, listed, removed = workflows.play(story)
        assert (told["cron_expr"], told["catchup_policy"]) == (None, "once")
        assert (source, listed, removed) == ("workflows", [], [])


@pytest.mark.req("W76", "W77", "W78")
def test_settings_are_the_defaults_of_schedules():
    world = WorkflowsHarness(
        workflows_overlap_policy="queue",
        workflows_catchup_policy="spread",
        workflows_jitter_ms=500,
    )

    async def story(its):
        await its.upsert()
        await its.upsert(
            schedule_id="own", overlap_policy="allow", catchup_policy="none", jitter_ms=0
        )
        names = ("overlap_policy", "catchup_policy", "jitter_ms")
        return [
            [(await its.get(each))[name] for name in names] for each in ("hourly-report", "own")
        ]

    assert world.play(story) == [["queue", "spread", 500], ["allow", "none", 0]]


@pytest.mark.req("W51", "W74")
def test_setting_limits_how_long_missed_ticks_are_spread():
    world = WorkflowsHarness(lookahead=300_000)

    async def story(its):
        await its.with_dag(catchup_policy="spread", overlap_policy="allow")
        started = []
        for length in ("3h10m", "99s", "1s", "99s", "1s", "1s"):
            await its.let_pass(length)
            started.append(len(its.keys))
        return started

    assert world.play(story) == [1, 1, 2, 2, 3, 3]


@pytest.mark.req("W50", "W75")
def test_setting_limits_missed_ticks_started_per_second():
    world = WorkflowsHarness(catchup_per_second=2)

    async def story(its):
        given = {"catchup_policy": "fire_immediately", "overlap_policy": "allow"}
        await its.with_dag(cron_expr="*/10 * * * *", **given)
        await its.let_pass("1h5m")  # six ticks, at most two each second
        first = len(its.keys)
        for _ in range(8):
            await its.let_pass("1s")
        return first, len(its.keys)

    assert world.play(story) == (2, 6)


@pytest.mark.req("W42", "W70", "W71", "W79")
def test_registrar_checks_cron_and_zone_and_returns_the_next_tick(workflows):
    async def story(its):
        for wrong in ({"cron_expr": "0 0 31 2 *"}, {"timezone": "US/Nowhere"}):
            with pytest.raises(InvalidSchedule) as refused:
                await its.upsert(**wrong)
            assert refused.value.field.startswith(next(iter(wrong)))
        assert await ids(its) == []
        later = await its.upsert(start_at="2026-02-01T12:00:00Z")
        return later, await its.beat.service.schedule("hourly-report")

    later, row = workflows.play(story)
    assert later["next_run_at"] == "2026-02-01T12:00:00Z"
    assert (row.definition.count('"cron"'), row.next_run_at) == (1, 1769947200)


def test_on_ray_only_an_admin_deploys_a_dag():
    settings = given_settings(database="sqlite://", roles=("plan", "run"), workflows_executor="ray")
    given = {"workflow_id": "w", "version": 1, "user_id": "ann"}

    async def story():
        async with Onbeat(settings=settings) as beat:
            workflows = beat.systems["workflows"]
            definer = workflows.of(beat.service.of(Caller("api:ann", "define", owner="ann")))
            with pytest.raises(NotAllowed, match="on Ray a DAG names code to import"):
                await definer.deploy(DAG, **given)
            admin = workflows.of(beat.service.of(Caller("api:root", "admin")))
            return await admin.deploy(DAG, **given)

    assert asyncio.run(story())["workflow_id"] == "w"
