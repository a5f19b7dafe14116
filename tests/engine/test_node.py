"""The parts of a node: starting, stopping, catch-up allowance, and separate roles."""

import asyncio
import errno
import os
from collections import Counter
from dataclasses import replace as replaced
from itertools import pairwise

import pytest
from msgspec.structs import replace

from onbeat import Onbeat, every
from onbeat.app.settings import Settings
from onbeat.core.decide.plan import plan
from onbeat.core.runs.phase import Phase
from onbeat.core.runs.run import Failed, Run, Succeeded
from onbeat.core.triggers.past import NO_PAST, Past
from onbeat.engine import node as loop
from onbeat.engine.dispatcher import Dispatcher
from onbeat.engine.node import Engine
from onbeat.engine.planner import Allowance, Planner
from onbeat.errors import StoreUnusable
from onbeat.ports.store import Finished, Node
from onbeat.service.serialize import run_fields
from onbeat.stores.sqlite.store import SqliteStore
from onbeat.testing import ManualClock, RecordingLauncher, a_schedule
from tests.waiting import engine_has_looked, forever, until

NODE = Node("node-1", "here", frozenset({"command"}))


def played(story):
    async def whole():
        clock = ManualClock("2026-01-01T12:00:00Z")
        store = await SqliteStore.open(None, clock=clock, inline=True)
        try:
            return await story(store, clock)
        finally:
            await store.close()

    return asyncio.run(whole())


class Listening:
    """A store that notes what it is asked for."""

    def __init__(self, store):
        self._store, self.asked = store, []

    def __getattr__(self, name):
        found = getattr(self._store, name)
        self.asked += [name] if callable(found) else []
        return found


def test_node_registers_and_ends_leftovers_before_it_plans():
    class Recovering(RecordingLauncher):
        async def recover(self):
            listening.asked.append("recover")
            await asyncio.sleep(0.01)
            return 0

    async def story(store, clock):
        nonlocal listening
        listening = Listening(store)
        engine = Engine(listening, clock, NODE, {"command": Recovering()})
        await engine.start()
        await engine.settle()
        await engine.stop(1)

    listening = None
    played(story)
    first = [name for name in listening.asked if name != "changed_elsewhere"][:4]
    assert first[:3] == ["acquire", "recover", "register"]
    assert listening.asked.index("register") < listening.asked.index("plan_due")


def test_failed_scan_for_leftovers_does_not_stop_the_node(monkeypatch):
    class Short(RecordingLauncher):
        looks = 0

        async def recover(self):
            self.looks += 1
            if self.looks == 4:
                enough.set()
            if self.looks > 1:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return 0

    async def story(store, clock):
        engine = Engine(store, clock, NODE, {"command": Short()})
        await engine.start()
        try:
            await asyncio.wait_for(enough.wait(), 5)
            return engine.failed.done()
        finally:
            await engine.stop(1)

    enough = asyncio.Event()
    monkeypatch.setattr(loop, "LEFTOVERS_EVERY", 0.01)
    assert not played(story)


def test_hurried_node_claims_nothing_that_it_would_hand_back():
    async def story(store, clock):
        launcher = RecordingLauncher()
        engine = Engine(store, clock, NODE, {"command": launcher})
        await engine.start()
        await store.upsert([a_schedule()])
        engine.hurry()  # a second signal, while the first is still being followed
        clock.advance("1h")
        engine.planner.wake()
        engine.dispatcher.wake()
        await until(lambda: not engine.activity.begins_runs)
        runs = await store.runs()
        await engine.stop(1)
        return launcher.attempts, runs

    assert played(story) == ([], [])


def test_stopped_node_starts_no_run():
    async def story(store, clock):
        launcher = RecordingLauncher()
        engine = Engine(store, clock, NODE, {"command": launcher})
        await engine.start()
        await store.upsert([a_schedule()])
        await engine.stop(1)
        clock.advance("1h")
        engine.planner.wake()
        engine.dispatcher.wake()
        await asyncio.sleep(0.05)
        return launcher.attempts

    assert played(story) == []


def test_node_catches_up_at_most_a_hundred_schedules_a_second():
    async def story(store, clock):
        launcher = RecordingLauncher()
        await store.upsert([a_schedule(f"s-{i}", every="1h") for i in range(250)])
        clock.advance("5h30m")
        engine = Engine(store, clock, NODE, {"command": launcher})
        await engine.start()
        counts = []
        for _ in range(6):
            await engine.settle()
            counts.append(len(launcher.attempts))
            clock.advance(1000)
        await engine.stop(1)
        return counts

    assert Settings().catchup_per_second == 100
    counts = played(story)
    assert counts[0] == 100
    assert all(later - earlier <= 100 for earlier, later in pairwise(counts))
    assert counts[-1] == 250


def caught_up(*schedules, seconds):
    """Return how many missed ticks of each schedule a node has started after so many seconds."""

    async def story(store, clock):
        launcher = RecordingLauncher()
        await store.upsert(schedules)
        clock.advance("5h30m")
        engine = Engine(store, clock, NODE, {"command": launcher})
        await engine.start()
        for _ in range(seconds):
            await engine.settle()
            clock.advance(1100)
        await engine.stop(1)
        return Counter(attempt.schedule_id for attempt in launcher.attempts)

    return played(story)


def much(name):
    return a_schedule(name, every="1s", catchup="all", overlap="allow")


def test_schedule_with_many_missed_ticks_does_not_block_others():
    started = caught_up(much("a"), a_schedule("b"), a_schedule("c"), seconds=3)
    assert (started["b"], started["c"]) == (1, 1)
    assert started["a"] > 200


def test_schedules_with_many_missed_ticks_share_the_allowance_equally():
    started = caught_up(much("a"), much("b"), much("c"), seconds=12)
    assert sum(started.values()) > 1000
    assert max(started.values()) - min(started.values()) <= 100, started


def test_many_due_schedules_are_planned_in_full_batches(tmp_path):
    async def story():
        clock = ManualClock("2026-01-01T12:00:00Z")
        store = await SqliteStore.open(tmp_path / "onbeat.db", clock=clock)
        await store.upsert([a_schedule(f"s-{i}", every="1h") for i in range(3000)])
        listening, launcher = Listening(store), RecordingLauncher()
        engine = Engine(listening, clock, NODE, {"command": launcher})
        await engine.start()
        await engine.settle()
        listening.asked.clear()
        clock.advance("1h")
        engine.planner.wake()
        while len(launcher.attempts) < 3000:  # noqa: ASYNC110 - a launcher has no events
            await asyncio.sleep(0.001)
        asked = Counter(listening.asked)
        await engine.stop(1)
        await store.close()
        return asked

    asked = asyncio.run(asyncio.wait_for(story(), 30))
    assert asked["plan_due"] <= 3000 / 500 + 3  # the first may be small, the last finds no more


def test_empty_claim_is_not_repeated_for_runs_that_ended_during_it(monkeypatch):
    monkeypatch.setattr("onbeat.engine.claim_timer.CLAIM_EVERY", 30)

    class Slow:
        is_shared = False
        claims = 0

        async def claim(self, node, *, limit):
            Slow.claims += 1
            await asyncio.sleep(0.01)
            return []

    async def story():
        clock = ManualClock("2026-01-01T12:00:00Z")
        dispatcher = Dispatcher(Slow(), clock, NODE, {}, concurrency=9)
        claiming = asyncio.create_task(dispatcher.run())
        dispatcher.wake()
        while not Slow.claims:  # noqa: ASYNC110 - it is the claim that is waited for
            await asyncio.sleep(0)
        dispatcher.wake_soon()
        await asyncio.sleep(0.05)
        dispatcher.stop()
        await claiming
        return Slow.claims

    assert asyncio.run(story()) == 1


def test_node_on_sqlite_scans_for_leftovers_repeatedly(monkeypatch):
    looks, often = [], asyncio.Event()

    class Counting(RecordingLauncher):
        async def recover(self):
            looks.append(self)
            if len(looks) == 3:
                often.set()
            return 0

    async def story(store, clock):
        engine = Engine(store, clock, NODE, {"command": Counting()})
        await engine.start()
        await asyncio.wait_for(often.wait(), 5)
        await asyncio.wait_for(engine.stop(1), 5)

    monkeypatch.setattr("onbeat.engine.node.LEFTOVERS_EVERY", 0.001)
    played(story)
    assert len(looks) >= 3


def test_unlaunched_run_is_handed_back_when_all_runs_are_ended():
    async def story(store, clock):
        launcher = RecordingLauncher()
        engine = Engine(store, clock, NODE, {"command": launcher})
        await engine.start()
        await store.upsert([a_schedule()])
        clock.advance("1h")
        planned = await store.plan_due(engine.planner._plan, limit=9, node=NODE, slots=9)
        engine.dispatcher.launch(planned.attempts, clock.monotonic())
        engine.dispatcher.end_all()
        await asyncio.wait_for(engine.stop(1), 5)
        (run,) = await store.runs()
        return launcher.attempts, run.status, run.was_tried, run.leased_by

    assert played(story) == ([], "ENQUEUED", False, None)


def test_stop_waits_until_unlaunched_runs_are_handed_back():
    class Slow(Listening):
        async def hand_back(self, attempts):
            await asyncio.sleep(0.01)
            await self._store.hand_back(attempts)

    async def story(store, clock):
        engine = Engine(Slow(store), clock, NODE, {"command": RecordingLauncher()})
        await engine.start()
        await store.upsert([a_schedule()])
        clock.advance("1h")
        planned = await store.plan_due(engine.planner._plan, limit=9, node=NODE, slots=9)
        engine.dispatcher.launch(planned.attempts, clock.monotonic() - NODE.lease)
        await asyncio.sleep(0.001)
        await asyncio.wait_for(engine.stop(1), 5)
        (run,) = await store.runs()
        return run.status, run.was_tried, run.leased_by

    assert played(story) == ("ENQUEUED", False, None)


def test_stop_completes_although_the_recorder_fails():
    class Damaged(Listening):
        async def finish(self, finished):
            raise StoreUnusable("the database is damaged")

    async def story(store, clock):
        going = asyncio.Event()

        class Endless(RecordingLauncher):
            async def launch(self, attempt):
                going.set()
                return await forever()

        engine = Engine(Damaged(store), clock, NODE, {"command": Endless()})
        await engine.start()
        await store.upsert([a_schedule()])
        clock.advance("1h")
        engine.planner.wake()
        await going.wait()
        await asyncio.wait_for(engine.stop(0.01), 5)
        return type(engine.failed.exception()), (await store.runs())[0].status

    assert played(story) == (StoreUnusable, "STARTED")


def test_stop_completes_with_a_late_run_after_the_recorder_failed():
    class Damaged(Listening):
        async def finish(self, finished):
            raise await damage

    async def story(store, clock):
        nonlocal damage
        damage = asyncio.get_running_loop().create_future()
        launcher = RecordingLauncher()
        dispatcher = Dispatcher(Damaged(store), clock, NODE, {"command": launcher}, concurrency=9)
        recording = asyncio.create_task(dispatcher.recorder.run())
        await store.register(NODE)
        await store.upsert([a_schedule("a"), a_schedule("b")])
        clock.advance("1h")
        planned = await store.plan_due(plan_now, limit=9, node=NODE, slots=9)
        dispatcher.launch(planned.attempts[:1], clock.monotonic())
        await asyncio.sleep(0.001)  # its outcome is being recorded
        damage.set_result(StoreUnusable("the database is damaged"))
        dispatcher.launch(planned.attempts[1:], clock.monotonic() - NODE.lease)
        with pytest.raises(StoreUnusable):
            await recording
        await asyncio.wait_for(dispatcher.drain(0.01), 5)
        return len(launcher.attempts)

    damage = None
    assert played(story) == 1


def test_late_launches_free_their_slots_and_log_one_line(caplog):
    async def story(store, clock):
        launchers = {"command": RecordingLauncher()}
        dispatcher = Dispatcher(store, clock, NODE, launchers, concurrency=3)
        recording = asyncio.create_task(dispatcher.recorder.run())
        await store.register(NODE)
        await store.upsert([a_schedule(name) for name in "abc"])
        clock.advance("1h")
        planned = await store.plan_due(plan_now, limit=9, node=NODE, slots=9)
        dispatcher.launch(planned.attempts, clock.monotonic() - NODE.lease)
        async with asyncio.timeout(5):
            await dispatcher.slots.wait_for(3, 60)
            await dispatcher.recorder.idle()
        recording.cancel()
        return [run.status for run in await store.runs()]

    assert played(story) == ["ENQUEUED"] * 3
    assert [record.getMessage() for record in caplog.records] == [
        "3 runs were too late to be launched: handed back"
    ]


def test_schedules_share_a_plan_only_if_their_policies_are_equal():
    plain, limited = a_schedule(every="1m"), a_schedule(every="1m", max_runs=3)
    changes = [{}, {"grace": 30_000}, {"jitter": 50_000}, {"catchup": "none"}]
    policies = [replaced(plain.policy, **change) for change in changes]
    schedules = [
        replace(each, schedule_id=name, policy=policy)
        for policy in policies
        for each in (plain, limited)
        for name in "ab"
    ]
    cases = [
        (schedule, run_at, unfinished, Past(runs_used=used), 60_000 + late)
        for schedule in schedules
        for late in (45_000, 200_000)
        for run_at in (60, 120)
        for used in (0, 2)
        for unfinished in ([], [Run(1, 0, Phase.RUNNING, 0, attempt=1)])
    ]
    planner = Planner(None, ManualClock(), NODE, None, catchup_per_second=10**6)
    right = [plan_now(*case) for case in cases]
    for one in cases:  # whatever comes before another
        for other, found in zip(cases, right, strict=True):
            planner._plan(*one)
            assert planner._plan(*other) == found
    first, second = (planner._plan(each, 60, [], NO_PAST, 60_000) for each in schedules[:2])
    assert first is second


def plan_now(schedule, run_at, unfinished, past, now):
    return plan(schedule, run_at, unfinished, past, now=now)


def test_engine_works_with_eager_tasks():
    class Done(asyncio.Future):
        def set_name(self, _):
            """Take a name, as a task does."""

    def at_once(loop, coroutine, **_):
        try:
            coroutine.send(None)
        except StopIteration as ended:
            done = Done(loop=loop)
            done.set_result(ended.value)
            return done
        raise AssertionError("it ends at once")

    async def story(store, clock):
        loop = asyncio.get_running_loop()
        engine = Engine(store, clock, NODE, {"command": RecordingLauncher()})
        await engine.start()
        await store.upsert([a_schedule()])
        clock.advance("1h")
        planned = await store.plan_due(engine.planner._plan, limit=9, node=NODE, slots=9)
        loop.set_task_factory(at_once)
        engine.dispatcher.launch(planned.attempts, clock.monotonic())
        loop.set_task_factory(None)
        await asyncio.wait_for(engine.stop(1), 5)
        return (await store.runs())[0].status

    assert played(story) == "SUCCESS"


def test_task_of_a_run_is_named_after_its_schedule():
    class Naming(RecordingLauncher):
        async def launch(self, attempt):
            names.append(asyncio.current_task().get_name())
            return await super().launch(attempt)

    names = []

    async def story(store, clock):
        engine = Engine(store, clock, NODE, {"command": Naming()})
        await engine.start()
        await store.upsert([a_schedule("nightly/report")])
        clock.advance("1h")
        await engine.planner.plan_once()
        await asyncio.wait_for(engine.stop(1), 5)

    played(story)
    assert names == ["nightly/report"]


def test_allowance_is_renewed_each_second():
    clock = ManualClock()
    allowance = Allowance(clock, 5)
    shares = []
    for taken in (2, 2, 1, 0, 0):
        allowance.take("report", taken, is_short=False)
        clock.advance(400)
        allowance.renew()
        shares.append(allowance.share())
    assert shares == [3, 1, 2, 4, 5]


def test_allowance_is_shared_by_schedules_that_ran_short():
    clock = ManualClock()
    allowance = Allowance(clock, 7)
    for name, taken in (("a", 5), ("b", 2), ("c", 0), ("d", 0), ("d", 0)):
        allowance.take(name, taken, is_short=name != "a")
    clock.advance(1000)
    allowance.renew()
    assert allowance.share() == 2
    allowance.take("b", 6, is_short=False)
    assert allowance.share() == 1
    clock.advance(1000)
    allowance.renew()
    assert allowance.share() == 7


def test_waiting_catch_ups_are_spread_by_the_allowance():
    clock = ManualClock()
    allowance = Allowance(clock, 10)
    waits = [allowance.waits()]
    for n in (5, 200, 10_000):
        for i in range(n):
            allowance.take(f"s{i}", 0, is_short=True)
        clock.advance(1000)
        allowance.renew()
        waits.append(allowance.waits())
    assert waits == [100, 500, 20_000, 60_000]


def test_tick_due_during_planning_is_decided_by_the_next_look():
    class Slow:
        """A store on which time passes while others are asked."""

        def __init__(self, store, clock):
            self._store, self._clock = store, clock

        def __getattr__(self, name):
            return getattr(self._store, name)

        async def plan_due(self, *given, **options):
            found = await self._store.plan_due(*given, **options)
            self._clock.advance(5)  # milliseconds, in which the tick becomes due
            return found

    async def story(store, clock):
        await store.register(NODE)
        await store.upsert([a_schedule(every="1h")])
        clock.advance(3_600_000 - 3)
        dispatcher = Dispatcher(store, clock, NODE, {"command": RecordingLauncher()}, concurrency=8)
        planner = Planner(Slow(store, clock), clock, NODE, dispatcher)
        began = asyncio.get_running_loop().time()
        running = asyncio.create_task(planner.run())
        while not await store.runs():  # noqa: ASYNC110 - the rows are what is asked
            await asyncio.sleep(0.001)
        took = asyncio.get_running_loop().time() - began
        planner.stop()
        await running
        return took

    assert played(story) < 0.2, "it did not wait as if another node had taken the tick"


def test_planner_and_dispatcher_may_be_separate_processes():
    async def story(store, clock):
        await store.register(NODE)
        await store.upsert([a_schedule()])
        clock.advance("1h")
        elsewhere = Node("planner-only", "there", frozenset())
        idle = Dispatcher(store, clock, elsewhere, {}, concurrency=0)
        await Planner(store, clock, elsewhere, idle).plan_once()
        (attempt,) = await store.claim(NODE, limit=9)
        await store.announce(NODE, [attempt])
        return await store.finish([Finished(attempt, Succeeded())])

    assert played(story) == [1]


def test_idle_planner_does_not_poll():
    async def story(store, clock):
        await store.upsert([a_schedule()])
        listening = Listening(store)
        engine = Engine(listening, clock, NODE, {"command": RecordingLauncher()})
        await engine.start()
        await engine_has_looked(engine)
        listening.asked.clear()
        await engine_has_looked(engine)
        found = set(listening.asked)
        await engine.stop(1)
        return found

    assert played(story) <= {"changed_elsewhere", "heartbeat"}


def test_logged_times_have_an_offset():
    async def story(store, clock):
        await store.upsert([a_schedule("berlin", cron="0 14 * * *", timezone="Europe/Berlin")])
        clock.advance("1h")
        await store.plan_due(lambda s, r, u, p, n: plan(s, r, u, p, now=n), limit=9)
        (row,) = await store.runs()
        return run_fields(row).run_at

    assert played(story) == "2026-01-01T13:00:00Z"


def test_tick_skipped_by_overlap_is_logged(caplog):
    async def story():
        clock, going = ManualClock("2026-01-01T12:00:00Z"), asyncio.Event()
        beat = Onbeat("sqlite://", clock=clock)

        @beat.schedule(every("1h"))
        async def slow():
            await going.wait()

        async with beat:
            for _ in range(2):
                clock.advance("1h")
                beat.wake()
                while len(await beat.runs()) <= _:  # noqa: ASYNC110 - the rows are what is asked
                    await asyncio.sleep(0.005)
            going.set()

    caplog.set_level("DEBUG", logger="onbeat")
    asyncio.run(story())
    assert any("run.skipped" in line and "reason=overlap" in line for line in caplog.messages)


def test_stopped_node_claims_no_run():
    async def story(store, clock):
        launcher = RecordingLauncher()
        engine = Engine(store, clock, NODE, {"command": launcher})
        await engine.start()
        await asyncio.sleep(0.05)
        await store.upsert([a_schedule()])
        await store.enqueue("a-schedule", request_id="by-hand")
        await engine.stop(1)
        return launcher.attempts

    assert played(story) == []


def test_node_with_a_crashed_recorder_ends_instead_of_hanging():
    async def story(store, clock):
        class Refusing(Listening):
            async def finish(self, finished):
                raise StoreUnusable("the database is damaged")

        engine = Engine(Refusing(store), clock, NODE, {"command": RecordingLauncher()})
        await engine.start()
        await store.upsert([a_schedule(every="1s", overlap="allow")])
        for _ in range(5):
            clock.advance("1s")
            engine.planner.wake()
            await asyncio.sleep(0.01)
        await asyncio.wait_for(engine.stop(1), 5)
        return type(engine.failed.exception())

    assert played(story) is StoreUnusable


def test_run_whose_cancellation_a_claim_has_requested_is_canceled_soon():
    """As when a run that starts late replaces it: no other process has written."""

    class Replacing(Listening):
        replaced = ()

        async def claim(self, node, *, limit):
            found = await self._store.claim(node, limit=limit)
            for run_id in self.replaced:
                await self._store.cancel(run_id)
            self.replaced = ()
            return found

    async def story(store, clock):
        class Endless(RecordingLauncher):
            async def launch(self, attempt):
                self.attempts.append(attempt)
                return await forever()

        launcher, replacing = Endless(), Replacing(store)
        engine = Engine(replacing, clock, NODE, {"command": launcher})
        await engine.start()
        await store.upsert([a_schedule()])
        clock.advance("1h")
        engine.planner.wake()
        await until(lambda: launcher.attempts)
        await engine_has_looked(engine)
        replacing.replaced = [launcher.attempts[0].run_id]
        engine.dispatcher.wake()
        await asyncio.wait_for(engine.dispatcher.recorder.idle(), 5)
        await engine.stop(1)
        return (await store.runs())[0].status

    assert played(story) == "CANCELED"


def test_run_canceled_before_its_launch_is_canceled_by_the_next_look():
    async def story(store, clock):
        engine = Engine(store, clock, NODE, {"command": RecordingLauncher()})
        await store.register(NODE)
        await store.upsert([a_schedule()])
        await store.enqueue("a-schedule", request_id="now")
        (attempt,) = await store.announce(NODE, await store.claim(NODE, limit=1))
        await store.cancel(attempt.run_id)
        await engine._cancel_runs()
        is_looked_for = engine._cancel_requested  # it is not launched here yet
        await store.finish([Finished(attempt, Succeeded())])
        await engine._cancel_runs()
        return is_looked_for, engine._cancel_requested

    assert played(story) == (True, False)


def test_run_paused_while_its_condition_is_checked_is_free_again():
    async def story(store, clock):
        class Mute(RecordingLauncher):
            async def launch(self, attempt):
                await store.pause("a-schedule")
                return Failed("it was ended", "signal", retryable=False), ""

        await store.register(NODE)
        await store.upsert([a_schedule(when={"command": ["ready"]})])
        clock.advance("1h")
        await store.plan_due(lambda s, at, u, p, now: plan(s, at, u, p, now=now), limit=5)
        dispatcher = Dispatcher(store, clock, NODE, {"command": Mute()}, concurrency=5)
        await dispatcher.claim_once()
        while [*dispatcher.starter.checks()]:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0)
        await dispatcher.recorder.record_once()
        (row,) = await store.runs()
        return row.status, row.leased_by

    assert played(story) == ("ENQUEUED", None)
