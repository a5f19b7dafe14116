"""Cancel waiting runs of scheduled prompts that must not be sent any more.

A retry gives way to a run that was started later, and a run that was created before its schedule
was disabled is not sent.
"""

from collections.abc import Iterable
from contextlib import suppress

from onbeat.core.runs.phase import DETACHED, Status
from onbeat.errors import NoSuchRun, RunIsOver
from onbeat.ports.rows import RunFilter, RunRow
from onbeat.service.service import Service

LATEST = 50  # runs that are looked at, the latest first
OVERTAKEN = "a newer run took its place"
DISABLED = "the schedule was disabled"


async def active_run(service: Service, slug: str) -> RunRow | None:
    """Return a run that is in progress or waits for its first attempt, or None."""
    started = await service.runs(RunFilter(slug, status=Status.STARTED), limit=1)
    waiting = await service.runs(RunFilter(slug, status=Status.ENQUEUED), limit=LATEST)
    untried = [run for run in waiting if not run.was_tried or is_detached(run)]
    return next(iter((*started, *untried)), None)


def is_detached(run: RunRow) -> bool:
    """Return whether a run is in progress without a node, until another node reattaches it."""
    return run.phase in DETACHED


async def cancel_retries(service: Service, slug: str, *, but: str = "") -> None:
    """Cancel runs that wait for a retry, except the one with the request id `but`."""
    waiting = await _waiting(service, slug)
    tried = [run for run in waiting if run.was_tried and (not but or run.request_id != but)]
    await _cancel(service, tried, OVERTAKEN)


async def cancel_overtaken(service: Service, slug: str) -> None:
    """Cancel runs that wait for a retry although a later run has replaced them."""
    tried = [run for run in await _waiting(service, slug) if run.was_tried]
    if tried:
        runs = await service.runs(RunFilter(slug), limit=LATEST)
        overtaken = [run for run in tried if any(_overtakes(other, run) for other in runs)]
        await _cancel(service, overtaken, OVERTAKEN)


async def cancel_waiting_before(service: Service, slug: str, at: int) -> None:
    """Cancel waiting runs that were created before their schedule was disabled at `at` (ms)."""
    waiting = [run for run in await _waiting(service, slug) if run.created_at <= at]
    await _cancel(service, waiting, DISABLED)


def _overtakes(other: RunRow, run: RunRow) -> bool:
    """Return whether `other` has sent the prompt since, or is newer than `run` and in progress."""
    if other.status == Status.SUCCESS:
        return (other.started_at or 0, other.run_id) > (run.started_at or 0, run.run_id)
    return other.status == Status.STARTED and other.run_id > run.run_id


async def _waiting(service: Service, slug: str) -> list[RunRow]:
    """Return runs that are still to be sent."""
    found = await service.runs(RunFilter(slug, status=Status.ENQUEUED), limit=LATEST)
    return [run for run in found if not is_detached(run)]


async def _cancel(service: Service, runs: Iterable[RunRow], note: str) -> None:
    for run in runs:
        with suppress(RunIsOver, NoSuchRun):
            await service.cancel(run.run_id, note=note)
