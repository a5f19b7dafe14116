"""Attempts in progress: why they are cancelled, and what is known of them."""

import asyncio

import pytest
from msgspec.structs import replace

from onbeat.core.runs.run import Canceled, Lost, Succeeded
from onbeat.core.target import Target
from onbeat.engine.attempts import CancelReason
from onbeat.engine.dispatcher import Dispatcher
from onbeat.ports.store import Attempt, Node
from onbeat.testing import ManualClock

NODE = Node("node-1", "here", frozenset({"command"}))
TARGET = Target("command", {"command": ["sleep"]})
REQUESTED = Canceled("ended because cancellation was requested")
STOPPED = Canceled("ended because the scheduler was stopped")


class Recording:
    """A store that notes outcomes."""

    is_shared = False

    def __init__(self):
        self.outcomes = {}

    async def finish(self, finished):
        for each in finished:
            self.outcomes[each.attempt.run_id, each.attempt.fence] = each.outcome
        return [each.attempt.run_id for each in finished]


class Endless:
    """A launcher whose targets end when their attempt is released or cancelled."""

    def __init__(self):
        self.released = {}

    async def launch(self, attempt):
        ended = self.released[attempt.run_id, attempt.fence] = asyncio.Event()
        await ended.wait()
        return Succeeded(), ""


class Reattaching(Endless):
    """A launcher whose targets continue without their node."""

    def __init__(self):
        super().__init__()
        self.left = []

    async def recover(self):
        return 0

    def check(self, target):
        pass

    def can_cancel(self, target):
        return True

    def kill(self, run_ids):
        pass

    def offers(self):
        return ("command",)

    async def close(self):
        pass

    def leave(self, run_ids):
        self.left += run_ids
        return run_ids


def an_attempt(run_id=1, fence=1):
    return Attempt(run_id, "a-schedule", 0, 0, attempt=fence, fence=fence, target=TARGET)


def played(story, launcher, *attempts):
    """Return what a story returns that begins with attempts in progress, and the outcomes."""

    async def whole():
        store, clock = Recording(), ManualClock("2026-01-01T12:00:00Z")
        dispatcher = Dispatcher(store, clock, NODE, {"command": launcher}, concurrency=5)
        recording = asyncio.create_task(dispatcher.recorder.run())
        dispatcher.launch(attempts, clock.monotonic())
        await asyncio.sleep(0)  # they have begun
        found = await story(dispatcher)
        await dispatcher.recorder.idle()
        recording.cancel()
        return found, store.outcomes

    return asyncio.run(asyncio.wait_for(whole(), 5))


def request(dispatcher):
    dispatcher.cancel({(1, 1)})


def stop(dispatcher):
    dispatcher.end_all()


def lose(dispatcher):
    dispatcher.end_running(CancelReason.MAY_BE_LOST)


@pytest.mark.parametrize(
    ("causes", "outcome"),
    [
        ([request], REQUESTED),
        ([stop], STOPPED),
        ([lose], Lost()),
        ([request, stop], REQUESTED),
        ([stop, request], REQUESTED),
        ([request, lose], Lost()),
        ([lose, request], Lost()),
        ([lose, stop], Lost()),
    ],
)
def test_outcome_of_an_ended_attempt_follows_its_highest_reason(causes, outcome):
    async def story(dispatcher):
        for cause in causes:
            cause(dispatcher)

    _, outcomes = played(story, Endless(), an_attempt())
    assert outcomes == {(1, 1): outcome}


@pytest.mark.parametrize(
    ("causes", "left", "outcome"),
    [
        ([stop], [1], Lost()),
        ([stop, request], [1], Lost()),
        ([request, stop], [], REQUESTED),
        ([request, lose], [], Lost()),
        ([request, lose, stop], [], Lost()),
    ],
)
def test_attempt_is_detached_unless_its_cancellation_was_requested(causes, left, outcome):
    async def story(dispatcher):
        for cause in causes:
            cause(dispatcher)

    launcher = Reattaching()
    _, outcomes = played(story, launcher, an_attempt())
    assert (launcher.left, outcomes) == (left, {(1, 1): outcome})


def test_repeated_request_cancels_the_attempt_once():
    async def story(dispatcher):
        found = [dispatcher.cancel({(1, 1)}) for _ in range(3)]
        (running,) = dispatcher.attempts
        return found, running.task.cancelling()

    found, _ = played(story, Endless(), an_attempt())
    assert found == ([True, True, True], 1)


def test_lost_and_detached_attempts_are_given_up_until_they_have_ended():
    async def story(dispatcher):
        request(dispatcher)
        before = dispatcher.attempts.given_up
        lose(dispatcher)
        after = dispatcher.attempts.given_up
        await dispatcher.recorder.idle()
        return before, after, dispatcher.attempts.given_up

    found, _ = played(story, Endless(), an_attempt(1), an_attempt(2))
    assert found == (frozenset(), {1, 2}, frozenset())


def test_end_of_an_earlier_attempt_leaves_the_next_one_of_its_run_known():
    """Its outcome may have been reported, and the run claimed again, while it still ran."""
    launcher = Endless()

    async def story(dispatcher):
        launcher.released[1, 1].set()
        while len(dispatcher.attempts) > 1:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0)
        known = [each.attempt.fence for each in dispatcher.attempts]
        taken = dispatcher.slots.taken
        return known, taken, dispatcher.cancel({(1, 2)})

    found, outcomes = played(story, launcher, an_attempt(1, 1), an_attempt(1, 2))
    assert found == ([2], 1, True)
    assert outcomes == {(1, 1): Succeeded(), (1, 2): REQUESTED}


class Claiming(Recording):
    """A store with one run to claim, which has a condition."""

    def __init__(self):
        super().__init__()
        self.handed_back = []

    async def claim(self, node, *, limit):
        return [replace(an_attempt(), when=TARGET)]

    async def hand_back(self, attempts):
        self.handed_back += [each.run_id for each in attempts]


def test_run_whose_condition_is_not_checked_yet_is_handed_back_when_all_runs_are_ended():
    async def story():
        store, clock, launcher = Claiming(), ManualClock("2026-01-01T12:00:00Z"), Endless()
        dispatcher = Dispatcher(store, clock, NODE, {"command": launcher}, concurrency=5)
        recording = asyncio.create_task(dispatcher.recorder.run())
        await dispatcher.claim_once()  # the task of the check has not taken its first step
        dispatcher.end_all()
        await asyncio.wait_for(dispatcher.drain(0.01), 5)
        recording.cancel()
        return store.handed_back, launcher.released, dispatcher.slots.taken

    assert asyncio.run(story()) == ([1], {}, 0)
