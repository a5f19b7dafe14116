"""The contract of launchers (`onbeat.ports.launcher`): every kind of target passes these cases.

What a kind does not promise, its bench lists in `lacks` with the reason; the case then asserts the
alternative. Every case asks the target itself what happened, not only the outcome.
"""

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from onbeat import Onbeat
from onbeat.app.parts import ProcessParts, checking_launchers
from onbeat.app.settings import Settings
from onbeat.app.stores import SystemClock
from onbeat.core.runs.run import Accepted, Canceled, Failed, Lost, Succeeded
from onbeat.errors import InvalidSchedule
from onbeat.ports.launcher import ReattachingLauncher
from onbeat.stores.sqlite.store import SqliteStore
from onbeat.testing import a_schedule
from tests.launchers.bench import LONGEST_TAIL, PROMISES, end, is_running, until_working
from tests.launchers.node import started_node
from tests.waiting import until

LONG = 600_000  # milliseconds: a case that waits for them fails


def case(story):
    """Return a test that plays a story with a bench, and finds no task left when it is closed."""

    async def play(self, bench):
        before = asyncio.all_tasks()
        async with asyncio.timeout(6 * bench.patience):
            async with bench:
                await story(self, bench)
            left = asyncio.all_tasks() - before
            await until(lambda: all(task.done() for task in left))

    def test(self, bench):
        asyncio.run(play(self, bench))

    test.__name__, test.__doc__ = story.__name__, story.__doc__
    return test


class LauncherContract:
    """The cases. A subclass names its bench."""

    bench_type = None

    @pytest.fixture
    def bench(self, tmp_path):
        return self.bench_type(tmp_path)

    # -- what a kind declares

    @case
    async def test_launcher_agrees_with_what_its_kind_declares(self, bench):
        launcher = await bench.new()
        target = bench.attempt(bench.succeeds()).target
        assert target.kind == bench.kind
        launcher.check(target)
        checking_launchers()[bench.kind].check(target)
        assert isinstance(launcher, ReattachingLauncher) is bench.facts.reattaches
        assert launcher.can_cancel(target) is bench.promises("cancel")
        assert all(reason and PROMISES[name] for name, reason in bench.lacks.items())

    @case
    async def test_node_offers_what_the_target_needs_only_with_its_setting(self, bench):
        target = bench.attempt(bench.succeeds()).target
        offered = set((await bench.new()).offers())
        assert target.needs in offered
        assert {each.partition(":")[0] for each in offered} == {bench.kind}
        if bench.facts.setting:
            store = await SqliteStore.open(None, clock=SystemClock())
            parts = ProcessParts(Settings(), store, new_id=str)
            assert target.needs not in parts.launchers[bench.kind].offers()
            await parts.close()
            await store.close()

    # -- starts and outcomes

    @case
    async def test_target_starts_once_for_each_attempt_and_receives_which_it_is(self, bench):
        launcher, expected = await bench.new(), []
        fields = bench.retried()
        for number in (1, 2):
            attempt = bench.attempt(fields, attempt=number)
            expected.append(bench.expected_start(attempt))
            outcome, _ = await launcher.launch(attempt)
            bench.record(launcher, attempt, outcome)
            assert bench.starts() == expected

    @case
    async def test_success_has_the_result_of_the_target(self, bench):
        outcome, _ = await (await bench.new()).launch(bench.attempt(bench.succeeds()))
        assert outcome == Succeeded(bench.result if bench.promises("result") else None)

    @case
    async def test_failure_has_its_error_and_may_be_retried(self, bench):
        outcome, _ = await (await bench.new()).launch(bench.attempt(bench.fails()))
        assert isinstance(outcome, Failed)
        assert bench.error in outcome.error
        assert outcome.retryable is bench.promises("retryable failure")

    @case
    async def test_final_failure_is_not_retried(self, bench):
        outcome, _ = await (await bench.new()).launch(bench.attempt(bench.fails_for_good()))
        assert isinstance(outcome, Failed)
        assert outcome.error
        assert outcome.retryable is not bench.promises("final failure")

    @case
    async def test_invalid_target_is_refused_and_fails_without_a_start(self, bench):
        launcher, targets = await bench.new(), bench.invalid()
        assert targets
        for target in targets:
            with pytest.raises(InvalidSchedule):
                launcher.check(target)
            outcome, _ = await launcher.launch(bench.attempt(target))
            assert isinstance(outcome, Failed), target
            assert (outcome.reason, outcome.retryable) == ("invalid_target", False)
        assert bench.starts() == []

    @case
    async def test_target_that_cannot_be_reached_is_an_outcome_without_a_start(self, bench):
        launcher, kinds = await bench.make_cut_off()
        try:
            outcome, _ = await launcher.launch(bench.attempt(bench.unreachable()))
            assert isinstance(outcome, kinds)
            assert outcome.error
            assert bench.starts() == []
        finally:
            await launcher.close()

    @case
    async def test_odd_results_errors_and_output_are_recorded(self, bench):
        odd, launcher = bench.odd(), await bench.new()
        assert odd
        for n, fields in enumerate(odd.values(), 1):
            attempt = bench.attempt(fields, run_id=n)
            outcome, _ = await launcher.launch(attempt)  # it raises nothing
            bench.record(launcher, attempt, outcome)
        async with Onbeat("sqlite://", launchers={bench.kind: launcher}) as beat:
            if hasattr(launcher, "on_events"):
                beat.listen(launcher.on_events)
            for name, fields in odd.items():
                await beat.define(a_schedule(name, manual=True, run=fields))
                run = await beat.start(name)
                run = await until_ended(beat, run.run_id)
                assert run.status in {"SUCCESS", "FAILED"}, name
                if name == "large":
                    assert (run.status == "SUCCESS") is bench.longest_result_is_cut, run.error
                assert len(str(run.result)) <= 2 * LONGEST_TAIL, name
                assert len(run.error or "") <= LONGEST_TAIL, name
                assert len(run.log_tail or "") <= LONGEST_TAIL, name

    @case
    async def test_kind_that_reports_accepts_a_run(self, bench):
        launcher = await bench.new()
        if not (bench.facts.reports and bench.promises("report")):
            outcome, _ = await launcher.launch(bench.attempt(bench.succeeds()))
            assert not isinstance(outcome, Accepted)
            return
        attempt = bench.attempt(bench.accepts())
        outcome, _ = await launcher.launch(attempt)
        assert isinstance(outcome, Accepted)
        assert outcome.external_id == bench.external_id
        assert bench.callbacks() == [attempt.key]

    # -- output

    @case
    async def test_output_is_in_the_tail_and_in_the_file(self, bench):
        attempt = bench.attempt(bench.prints("line 1\nline 2\n"))
        outcome, tail = await (await bench.new()).launch(attempt)
        assert isinstance(outcome, Succeeded)
        assert ("line 1\nline 2\n" in tail) is bench.promises("output")
        file = bench.output_file(attempt)
        if file is not None:
            assert file.read_text() == tail

    @case
    async def test_long_output_is_capped(self, bench):
        lines = "".join(f"line {n}\n" for n in range(40_000))
        attempt = bench.attempt(bench.prints(lines))
        outcome, tail = await (await bench.new()).launch(attempt)
        assert isinstance(outcome, Succeeded)
        assert len(tail.encode()) <= LONGEST_TAIL + 200
        assert ("line 39999\n" in tail or "line 0\n" in tail) is bench.promises("output")
        file = bench.output_file(attempt)
        if file is not None:
            assert file.stat().st_size <= bench.longest_file
            assert file.read_text().endswith("line 39999\n")

    # -- cancellation and timeouts

    @case
    async def test_cancelled_launch_ends_its_target_and_no_other(self, bench):
        launcher, fields = await bench.new(), bench.works()
        if not bench.promises("work"):
            await ends_at_once(launcher, bench)
            return
        attempts = [bench.attempt(fields, run_id=n) for n in (1, 2)]
        tasks = [asyncio.create_task(launcher.launch(each)) for each in attempts]
        await until_working(bench, 2, *tasks)
        for each in attempts:
            await until(partial(bench.is_recorded, each), longest=bench.patience)
        tasks[0].cancel()
        await is_canceled(tasks[0])
        await until_working(bench, 1 if bench.promises("end") else 2, tasks[1])
        bench.release()
        outcome, _ = await tasks[1]
        assert isinstance(outcome, Succeeded)

    @case
    async def test_launch_that_is_cancelled_twice_ends_its_target(self, bench):
        launcher, fields = await bench.new(), bench.works()
        if not bench.promises("work"):
            await ends_at_once(launcher, bench)
            return
        task = await working(launcher, bench, fields)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        await is_canceled(task)
        await until_working(bench, 0 if bench.promises("end") else 1)

    @case
    async def test_stubborn_target_ends_after_its_grace(self, bench):
        launcher, fields = await bench.new(), bench.is_stubborn()
        if not bench.promises("work"):
            await ends_at_once(launcher, bench)
            return
        task = await working(launcher, bench, fields, cancel_grace=50)
        task.cancel()
        await is_canceled(task)
        await until_working(bench, 0 if bench.promises("end") else 1)

    @case
    async def test_timeout_is_a_failure_and_ends_the_target(self, bench):
        launcher, fields = await bench.new(), bench.works()
        if not bench.promises("work"):
            await ends_at_once(launcher, bench, timeout=bench.timeout)
            return
        attempt = bench.attempt(fields, timeout=bench.timeout, cancel_grace=50)
        outcome, _ = await launcher.launch(attempt)
        assert isinstance(outcome, Failed)
        assert (outcome.reason, outcome.retryable) == ("timeout", bench.facts.retries_timeouts)
        await until_working(bench, 0 if bench.promises("end") else 1)
        assert len(bench.starts()) == 1

    @case
    async def test_kill_spares_other_runs_and_ends_what_is_being_cancelled(self, bench):
        launcher, fields = await bench.new(), bench.is_stubborn()
        if not bench.promises("work"):
            launcher.kill([1, 2])
            await ends_at_once(launcher, bench)
            return
        task = await working(launcher, bench, fields, cancel_grace=LONG)
        launcher.kill([2])
        await until_working(bench, 1, task)
        task.cancel()
        await asyncio.sleep(0)
        launcher.kill([1])
        await is_canceled(task)
        await until_working(bench, 0 if bench.promises("end") else 1)

    # -- several launches

    @case
    async def test_launches_with_one_key_start_once_or_pass_the_same_key(self, bench):
        launcher, fields = await bench.new(), bench.succeeds()
        attempt = bench.attempt(fields)
        both = await asyncio.gather(launcher.launch(attempt), launcher.launch(attempt))
        start, starts = bench.expected_start(attempt), bench.starts()
        successes = [outcome for outcome, _ in both if isinstance(outcome, Succeeded)]
        if bench.promises("apart"):
            assert len(successes) == 2
            assert starts == [start] * (1 if bench.promises("once") else 2)
        else:
            assert successes
            assert starts in ([start], [start, start])

    @case
    async def test_closed_launcher_leaves_nothing_behind(self, bench):
        others = children()
        launcher, fields = await bench.new(), bench.works()
        if bench.promises("work"):
            await end(await working(launcher, bench, fields, cancel_grace=50))
        await launcher.launch(bench.attempt(bench.succeeds(), run_id=2))
        await launcher.close()
        await launcher.close()  # as by a process that stops twice
        assert children() <= others
        assert bench.working() == (0 if bench.promises("end") else 1)

    @case
    async def test_close_ends_what_runs(self, bench):
        launcher, fields = await bench.new(), bench.works()
        if not bench.promises("work"):
            await ends_at_once(launcher, bench)
            return
        task = await working(launcher, bench, fields, cancel_grace=50)
        await launcher.close()
        if bench.promises("close"):
            outcome, _ = await task
            assert isinstance(outcome, Canceled | Failed | Lost)
            await until_working(bench, 0 if bench.promises("end") else 1)
        else:
            await until_working(bench, 1, task)
            await end(task)

    # -- crashes

    @case
    async def test_target_of_a_killed_node_ends_or_is_reattached(self, bench):
        fields, launched = bench.works(), {"cancel_grace": 50}
        if not bench.promises("work"):
            await ends_at_once(await bench.new(), bench)
            return
        attempt = bench.attempt(fields, **launched)
        with started_node(bench, fields, **launched) as node:
            await until_working(bench, 1)
            await until(partial(bench.is_recorded, attempt), longest=bench.patience)
            node.kill()
            node.wait()
        launcher = await bench.new()
        if bench.after_crash == "ends":
            await until_working(bench, 0)
            assert await launcher.recover() == 0
            return
        if bench.after_crash == "is left":
            await until_working(bench, 1)
            assert await launcher.recover() > 0
            await until_working(bench, 0)
            assert await launcher.recover() == 0
            return
        assert await launcher.recover() == 0
        await until_working(bench, 1)
        again = replace(attempt, attempt=2, may_run=bench.facts.reattaches)
        task = asyncio.create_task(launcher.launch(again))
        is_found = bench.facts.reattaches or bench.promises("once")
        starts = [attempt] if is_found else [attempt, again]
        await until_working(bench, len(starts), task)
        bench.release()
        outcome, _ = await task
        assert isinstance(outcome, Succeeded)
        assert bench.starts() == [bench.expected_start(each) for each in starts]

    @case
    async def test_recovery_spares_the_targets_of_a_living_node(self, bench):
        launcher, fields = await bench.new(), bench.works()
        if not bench.promises("work"):
            assert await launcher.recover() == 0
            await ends_at_once(launcher, bench)
            return
        with started_node(bench, fields):
            await until_working(bench, 1)
            assert await launcher.recover() == 0
            assert bench.working() == 1

    # -- reattaching

    @case
    async def test_target_that_is_left_continues_and_is_reattached(self, bench):
        launcher, fields = await bench.new(), bench.works()
        if not bench.facts.reattaches:
            assert not hasattr(launcher, "leave")
            return
        attempt = bench.attempt(fields)
        await is_left(launcher, bench, attempt)
        await launcher.close()
        assert bench.working() == 1
        other = await bench.new()
        again = replace(attempt, attempt=2, may_run=True)
        task = asyncio.create_task(other.launch(again))
        await asyncio.sleep(0)
        bench.release()
        outcome, _ = await task
        assert isinstance(outcome, Succeeded)
        assert bench.starts() == [bench.expected_start(attempt)]

    @case
    async def test_cancellation_of_a_detached_target_reattaches_only_to_end_it(self, bench):
        launcher, fields = await bench.new(), bench.works()
        if not bench.facts.reattaches:
            assert not hasattr(launcher, "leave")
            return
        attempt = bench.attempt(fields, cancel_grace=50)
        await is_left(launcher, bench, attempt)
        again = replace(attempt, attempt=2, may_run=True, is_cancel_requested=True)
        outcome, _ = await (await bench.new()).launch(again)
        assert isinstance(outcome, Canceled)
        await until_working(bench, 0)
        assert len(bench.starts()) == 1

    @case
    async def test_attempt_whose_predecessor_left_no_trace_starts_at_most_once(self, bench):
        launcher = await bench.new()
        if not bench.facts.reattaches:
            assert not hasattr(launcher, "leave")
            return
        attempt = bench.attempt(bench.succeeds(), attempt=2, may_run=True)
        outcome, _ = await launcher.launch(attempt)
        if bench.promises("unbegun"):
            assert isinstance(outcome, Succeeded)
            assert bench.starts() == [bench.expected_start(attempt)]
        else:
            assert isinstance(outcome, Failed)
            assert outcome.reason == "lost"
            assert bench.starts() == []


async def working(launcher, bench, fields, **given):
    """Launch a target and return its task when it works."""
    attempt = bench.attempt(fields, **given)
    task = asyncio.create_task(launcher.launch(attempt))
    await until_working(bench, 1, task)
    await until(partial(bench.is_recorded, attempt), longest=bench.patience)
    return task


async def is_left(launcher, bench, attempt):
    """Launch a target, and leave it when it works: by `leave`, or by an outcome that says so."""
    task = asyncio.create_task(launcher.launch(attempt))
    await until_working(bench, 1, task)
    await until(partial(bench.is_recorded, attempt), longest=bench.patience)
    left = launcher.leave([attempt.run_id, 999])
    if left:
        assert set(left) == {attempt.run_id}
        await end(task)
    else:  # it was still being sent
        outcome, _ = await task
        assert outcome == Lost()


async def is_canceled(task):
    """Wait until a cancelled launch ends as such."""
    with suppress(asyncio.CancelledError):
        outcome, _ = await task
        assert isinstance(outcome, Canceled), outcome


async def ends_at_once(launcher, bench, **given):
    """Assert that a launch does not wait for anything, so that there is nothing to interrupt."""
    launching = launcher.launch(bench.attempt(bench.succeeds(), **given))
    with pytest.raises(StopIteration) as ended:
        launching.send(None)
    outcome, _ = ended.value.value
    assert isinstance(outcome, Succeeded)


async def until_ended(beat, run_id):
    """Wait until a run has ended, and return it."""
    while True:
        run = await beat.service.run(run_id)
        if run.finished_at is not None:
            return run
        await asyncio.sleep(0.01)


def children():
    """Return the processes that this process has started and that run."""
    found = set()
    for each in Path("/proc/self/task").iterdir():
        found |= {int(pid) for pid in (each / "children").read_text().split()}
    return set(filter(is_running, found))
