"""The run launcher, called manually and by the engine: hand-overs and retries."""

import asyncio

import pytest

from onbeat import InvalidSchedule, Onbeat, cron
from onbeat.app.metrics import render
from onbeat.app.settings import Settings
from onbeat.core.runs.run import Accepted, Failed, Succeeded
from onbeat.core.schedule import read_schedule
from onbeat.errors import InvalidSettings, RunIsOver, StoreFailed
from onbeat.systems.workflows.executors import CallableExecutor
from onbeat.systems.workflows.run_launcher import RunLauncher
from onbeat.systems.workflows.store import DirectoryStore
from onbeat.testing import ManualClock
from tests.systems.workflows.conftest import DAG, REPORT, WorkflowsHarness

HOUR = 3_600_000
ASKED = ("report", 3, "ada", "2026-01-01T14:00:00+01:00", "key-1")


class Launching:
    """A run launcher of a folder with one DAG, whose executor gives a list of answers."""

    def __init__(self, folder, *answers):
        self.answers, self.given, self.slept = list(answers), [], []
        self.store = DirectoryStore(folder)
        clock = ManualClock("2026-01-01T13:00:05Z")
        executor = CallableExecutor(self.execute)
        self.launcher = RunLauncher(self.store, executor, clock=clock, sleep=self.sleep)

    def execute(self, dag, meta):
        self.given.append((dag, meta))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def sleep(self, seconds):
        self.slept.append(seconds)

    def start(self, *asked):
        async def whole():
            await self.store.save_dag("report", 3, DAG)
            return await self.launcher.start(*(asked or ASKED))

        return asyncio.run(whole())


@pytest.mark.req("W10", "W34", "W86", "W89")
def test_start_loads_the_dag_and_calls_the_executor(tmp_path):
    launching = Launching(tmp_path, None)
    assert launching.start() is True
    ((dag, meta),) = launching.given
    assert dag == DAG
    assert meta == {
        "source": "schedule",
        "user_id": "ada",
        "scheduled_for": "2026-01-01T13:00:00Z",
        "idempotency_key": "key-1",
        "triggered_at": "2026-01-01T13:00:05.000Z",
    }


@pytest.mark.req("W34", "W85")
def test_start_returns_false_without_a_dag(tmp_path):
    launching = Launching(tmp_path, None)
    assert launching.start("report", 4, *ASKED[2:]) is False
    assert launching.start("repeat", 3, *ASKED[2:]) is False
    assert (launching.given, launching.slept) == ([], [])


@pytest.mark.parametrize("answer", [None, True, {"rows": 3}, Succeeded(), Accepted("r-1")])
def test_start_returns_true_if_the_executor_has_it(tmp_path, answer):
    launching = Launching(tmp_path, answer)
    assert launching.start() is True
    assert len(launching.given) == 1


@pytest.mark.req("W34", "W56")
def test_start_retries_three_times_a_second_apart(tmp_path):
    launching = Launching(tmp_path, ConnectionError("nobody there"))
    assert launching.start() is False
    assert (len(launching.given), launching.slept) == (4, [1.0, 1.0, 1.0])


@pytest.mark.req("W56")
def test_retry_of_a_start_may_succeed(tmp_path):
    launching = Launching(tmp_path, ConnectionError("nobody there"), None)
    assert launching.start() is True
    assert (len(launching.given), launching.slept) == (2, [1.0])


def test_refusal_of_the_executor_is_not_retried(tmp_path):
    launching = Launching(tmp_path, False)
    assert launching.start() is False
    assert len(launching.given) == 1


@pytest.mark.parametrize(
    ("place", "value", "field"),
    [
        (0, "", "workflow_id"),
        (0, 5, "workflow_id"),
        (1, "3", "version"),
        (2, None, "user_id"),
        (3, "tomorrow", "scheduled_for"),
        (3, 0, "scheduled_for"),
        (4, "", "idempotency_key"),
        (4, "a\r\nb", "idempotency_key"),
    ],
)
def test_invalid_start_is_refused_with_its_field(tmp_path, place, value, field):
    launching = Launching(tmp_path, None)
    asked = [*ASKED[:place], value, *ASKED[place + 1 :]]
    with pytest.raises(InvalidSchedule) as refused:
        launching.start(*asked)
    assert refused.value.field == field
    assert launching.given == []


def test_silent_database_is_a_failed_hand_over(tmp_path):
    launching = Launching(tmp_path, None)

    async def broken(*_, **__):
        raise StoreFailed("the database does not answer")

    launching.store.load_dag = broken
    outcome = asyncio.run(launching.launcher.hand_over("report", 3, "ada", 0, "k"))
    assert outcome == Failed("the database does not answer", "launch_failed")


def test_start_without_an_executor_names_the_setting(tmp_path):
    launcher = RunLauncher(DirectoryStore(tmp_path), None, clock=ManualClock())
    with pytest.raises(
        InvalidSettings,
        match="workflows_executor: no executor is set, so this process cannot run DAGs",
    ):
        asyncio.run(launcher.start(*ASKED))


# -- by the engine


@pytest.mark.req("W1")
def test_dag_is_handed_over_unchanged(workflows):
    strange = {"nodes": [{"run": {"command": ["false"]}}], "composio": {"action": "x"}, "": None}

    async def story(its):
        await its.upsert()
        await its.workflows.store.save_dag("report", 3, strange)
        await its.let_pass("1h")
        return await its.statuses()

    assert workflows.play(story) == [("SUCCESS", None)]
    assert [dag for dag, _ in workflows.handed_over] == [strange]


@pytest.mark.req("W56")
def test_failed_hand_over_of_a_run_is_retried_three_times_and_recorded(workflows):
    workflows.answer = lambda _: 1 / 0

    async def story(its):
        await its.with_dag()
        await its.let_pass("1h", "1s", "1s", "1s", "1s", "1m")
        (run,) = await its.runs()
        return run

    run = workflows.play(story)
    assert (run["status"], run["reason"]) == ("FAILED", "launch_failed")
    assert run["error"] == "ZeroDivisionError: division by zero"
    assert len(workflows.keys) == 4
    assert len(set(workflows.keys)) == 1


@pytest.mark.req("W56")
def test_waiting_retry_of_a_hand_over_survives_a_restart(tmp_path):
    world = WorkflowsHarness(f"sqlite:///{tmp_path}/onbeat.db")
    world.answer = lambda _: 1 / 0

    async def story(its):
        await its.with_dag()
        await its.let_pass("1h")
        its.answer = None
        await its.crash("10s")
        return await its.statuses()

    assert world.play(story) == [("SUCCESS", None)]
    assert len(world.keys) == 2


@pytest.mark.req("W58")
@pytest.mark.parametrize("final", [True, False])
def test_reported_failure_is_not_retried(workflows, final):
    workflows.answer = Accepted("r-1")

    async def story(its):
        await its.with_dag()
        await its.let_pass("1h")
        await its.beat.report(its.keys[0], Failed("node send failed", retryable=not final))
        await its.let_pass("1s", "1s", "1s", "1m")
        (run,) = await its.runs()
        return run

    run = workflows.play(story)
    assert (run["status"], run["error"]) == ("FAILED", "node send failed")
    assert len(workflows.keys) == 1


@pytest.mark.req("W85")
def test_tick_without_a_dag_fails_immediately_with_that_reason(workflows):
    async def story(its):
        await its.upsert()
        await its.let_pass("1h", "5s")
        (run,) = await its.runs()
        return run, its.beat.metrics.failed

    run, failed = workflows.play(story)
    assert (run["status"], run["reason"]) == ("FAILED", "invalid_target")
    told = "no DAG of report v3 (deploy it with POST /schedules/deploy)"
    assert run["error"] == told
    assert (workflows.keys, failed) == ([], {"invalid_target": 1})


def test_run_has_its_row_before_the_hand_over_and_its_outcome_after(workflows):
    seen = []

    async def story(its):
        async def look():
            seen.append(await its.statuses())

        its.answer = lambda _: look()
        await its.with_dag()
        await its.let_pass("1h")
        its.answer = False
        await its.let_pass("1h")
        return await its.statuses()

    assert workflows.play(story) == [("SUCCESS", None), ("FAILED", "launch_failed")]
    assert seen == [[("STARTED", None)]]


@pytest.mark.req("W28", "W58")
def test_executor_may_report_the_id_and_the_start_of_a_run(workflows):
    workflows.answer = Accepted()

    async def story(its):
        await its.with_dag()
        await its.let_pass("1h")
        told = []
        for outcome in (Accepted(), Accepted("r-1"), Accepted("r-1"), Succeeded()):
            await its.beat.report(its.keys[0], outcome)
            (run,) = await its.runs()
            told.append((run["status"], run["run_id"]))
        names = [type(each.event).__name__ for each in await its.beat.service.events(after=0)]
        return told, names.count("RunNamed")

    told, times = workflows.play(story)
    begun = ("STARTED", "r-1")
    assert told == [("STARTED", None), begun, begun, ("SUCCESS", "r-1")]
    assert times == 1  # the same outcome again is not an event


@pytest.mark.req("W28")
@pytest.mark.parametrize("outcome", [Accepted(), Succeeded(), Failed("no")])
def test_report_before_the_answer_sets_the_id_of_the_run(workflows, outcome):
    async def story(its):
        async def tell(meta):
            await its.beat.report(meta["idempotency_key"], outcome, external_id="r-1")
            return Accepted()

        its.answer = tell
        await its.with_dag()
        await its.let_pass("1h")
        (run,) = await its.runs()
        return run["status"], run["run_id"]

    status = {"Accepted": "STARTED", "Succeeded": "SUCCESS", "Failed": "FAILED"}
    assert workflows.play(story) == (status[type(outcome).__name__], "r-1")


@pytest.mark.req("W28")
@pytest.mark.parametrize("answer", [Accepted("r-1"), {"run_id": "r-1"}])
def test_answer_of_the_executor_may_set_the_id_of_the_run(workflows, answer):
    workflows.answer = answer

    async def story(its):
        await its.with_dag()
        await its.let_pass("1h")
        (run,) = await its.runs()
        return run["run_id"]

    assert workflows.play(story) == "r-1"


def test_report_during_a_waiting_retry_counts_when_repeated():
    world = WorkflowsHarness(workflows_feedback=True)

    def answer(_):
        if len(world.keys) == 1:
            raise ConnectionError("the answer is lost")
        return Accepted("r-1")

    world.answer = answer

    async def story(its):
        await its.with_dag()
        await its.let_pass("1h")
        with pytest.raises(RunIsOver):  # 409
            await its.beat.report(its.keys[0], Succeeded())
        await its.let_pass("1s")
        await its.beat.report(its.keys[0], Succeeded())
        return await its.statuses()

    assert world.play(story) == [("SUCCESS", None)]


@pytest.mark.parametrize(
    ("settings", "lasts"), [({}, "1h"), ({"workflows_timeout": 9 * HOUR}, "9h")]
)
def test_report_of_an_outcome_is_awaited_for_the_configured_time(settings, lasts):
    world = WorkflowsHarness(workflows_feedback=True, **settings)
    world.answer = Accepted()

    async def story(its):
        await its.with_dag(cron_expr="0 0 * * *", timezone="UTC")
        await its.is_now("2026-01-02T00:00:00Z")
        await its.let_pass(f"{int(lasts[:-1]) * 60 - 1}m")
        before = await its.statuses()
        await its.let_pass("2m")
        return before, await its.statuses()

    assert world.play(story) == ([("STARTED", None)], [("FAILED", "timeout")])


@pytest.mark.req("W65", "W66")
def test_runs_of_workflows_are_counted(workflows):
    async def story(its):
        its.answer = Accepted()
        await its.with_dag(jitter_ms=0)
        await its.upsert(schedule_id="twice", cron_expr="0,30 * * * *", workflow_id="none")
        await its.beat.service.define(
            [read_schedule("long", {"every": "1h", "timeout": "3h", "run": RUN})],
            source="workflows",
        )
        for _ in range(4):
            await its.let_pass("30m")
        service = its.beat.service
        found = await service.overview(), await service.groups(), await service.figures()
        return render(its.beat.metrics, *found, version="0")

    page = workflows.play(story)
    figures = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    assert float(figures["onbeat_runs_emitted_total"]) == 2 + 4 + 1
    assert float(figures["onbeat_runs_skipped_overlap_total"]) == 1
    assert float(figures["onbeat_runs_failed_launch_total"]) == 4
    assert float(figures["onbeat_schedules_due"]) == 0
    assert any(name.startswith("onbeat_drift") or "drift" in name for name in figures)


RUN = {"workflow": "report", "version": 3, "user_id": "ada"}


@pytest.mark.req("W64")
def test_outcomes_of_runs_are_logged_with_the_reason(workflows, caplog):
    async def story(its):
        its.answer = Accepted()
        await its.beat.service.define(
            [read_schedule("long", {"every": "1h", "timeout": "3h", "run": RUN})]
        )
        await its.workflows.store.save_dag("report", 3, DAG)
        await its.upsert(schedule_id="missing", workflow_id="none")
        await its.let_pass("1h", "1h")

    with caplog.at_level("DEBUG", logger="onbeat"):
        workflows.play(story)
    lines = [line.getMessage() for line in caplog.records]
    assert any(line.startswith("run.started") and " long " in line for line in lines)
    assert any(line.startswith("run.skipped") and "reason=overlap" in line for line in lines)
    failed = [line for line in lines if line.startswith("run.failed")]
    assert any('error="no DAG of none v3 (' in line for line in failed)


def test_without_an_executor_runs_wait_and_why_reports_it():
    clock = ManualClock("2026-01-01T12:00:00Z")

    async def whole():
        async with Onbeat(
            settings=Settings(database="sqlite://", lease=7_200_000), clock=clock
        ) as beat:
            workflows = beat.systems["workflows"]
            await workflows.registrar.upsert_schedule(REPORT)
            clock.advance("1h")
            await beat.settle()
            (run,) = await workflows.registrar.runs("hourly-report")
            why = await beat.why("hourly-report")
            return run["status"], [why.headline, *why.sentences]

    status, sentences = asyncio.run(whole())
    assert status == "ENQUEUED"
    assert "it waits for a node that offers workflow" in "; ".join(sentences)


def test_only_a_node_with_an_executor_offers_workflows():
    planning, running = (
        Onbeat(settings=Settings(database="sqlite://", roles=(role,))) for role in ("plan", "run")
    )
    running.executor(lambda dag, meta: None)

    async def offers(beat):
        async with beat:
            (node,) = await beat.service.nodes()
            return "workflow" in node.offers

    assert asyncio.run(offers(planning)) is False
    assert asyncio.run(offers(running)) is True


class TestExecutorOfAProgram:
    """`@beat.executor`."""

    def test_program_has_one_executor_function(self):
        beat = Onbeat("sqlite://")
        with pytest.raises(InvalidSchedule, match="executor: 5 is not callable"):
            beat.executor(5)

        @beat.executor
        def run(dag, meta): ...

        assert beat.executor(run) is run
        with pytest.raises(InvalidSchedule, match="executor: another executor is set"):
            beat.executor(print)

    def test_executor_is_registered_before_the_program_runs(self):
        async def whole():
            async with Onbeat("sqlite://") as beat:
                with pytest.raises(InvalidSchedule, match="executor: the scheduler is running"):
                    beat.executor(print)

        asyncio.run(whole())


@pytest.mark.parametrize(
    ("run", "problem"),
    [
        ({"workflow": "report", "version": 1}, "run.user_id: None is not a string"),
        ({"workflow": "report", "version": -1, "user_id": "ada"}, "run.version: -1 is not"),
        ({"workflow": "", "version": 1, "user_id": "ada"}, "run.workflow: '' is not a string"),
        (RUN | {"user_id": "{{ schedule_id }}"}, "run: a workflow cannot contain templates"),
    ],
)
def test_invalid_workflow_target_is_refused_when_defined(workflows, run, problem):
    async def story(its):
        with pytest.raises(InvalidSchedule) as refused:
            await its.beat.define(read_schedule("x", {"every": "1h", "run": run}))
        return str(refused.value)

    assert workflows.play(story).startswith(f"x.{problem}")


def test_replace_overlap_is_refused_since_workflows_cannot_be_canceled(workflows):
    async def story(its):
        with pytest.raises(InvalidSchedule, match="overlap"):
            await its.beat.define(
                read_schedule("x", {"every": "1h", "run": RUN, "overlap": "replace"})
            )

    workflows.play(story)


def test_decorated_schedules_and_an_executor_may_share_a_program():
    clock, seen = ManualClock("2026-01-01T12:00:00Z"), []
    beat = Onbeat("sqlite://", clock=clock)

    @beat.schedule(cron("0 * * * *"))
    async def own():
        seen.append("own")

    @beat.executor
    def run(dag, meta):
        seen.append(dag["name"])

    async def whole():
        async with beat:
            dag = {"name": "a DAG", "id": "w", "version": 1, "user_id": "ada"}
            cron_expr = {"cron_expr": "0 * * * *"}
            trigger = {"id": "hourly", "type": "schedule_based", "schedule": cron_expr}
            await beat.systems["workflows"].deploy(dag | {"triggers": [trigger]})
            clock.advance("1h")
            await beat.settle()

    asyncio.run(whole())
    assert sorted(seen) == ["a DAG", "own"]
