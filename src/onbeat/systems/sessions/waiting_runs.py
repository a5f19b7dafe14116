"""Runs of scheduled prompts that wait: which of them are not to be sent any more.

A prompt is sent once: what waits for another attempt gives way to a run that was started later, and
what was to be sent before its schedule was disabled is not sent after that.
"""

from collections.abc import Iterable
from contextlib import suppress

from onbeat.core.runs.run import Status
from onbeat.errors import NoSuchRun, RunIsOver
from onbeat.ports.rows import RunFilter, RunRow
from onbeat.service.service import Service

LATEST = 50  # runs that are looked at
OVERTAKEN = "a newer run took its place"
DISABLED = "the schedule was disabled"


async def in_hand(service: Service, slug: str) -> RunRow | None:
    """Return a run that is at work, or is to be sent for the first time: there need be no other."""
    started = await service.runs(RunFilter(slug, status=Status.STARTED), limit=1)
    waiting = await service.runs(RunFilter(slug, status=Status.ENQUEUED), limit=LATEST)
    fresh = [run for run in waiting if not run.was_tried or is_detached(run)]
    return next(iter((*started, *fresh)), None)


def is_detached(run: RunRow) -> bool:
    """Return whether a run is at work without its node, until another reattaches it."""
    return run.status == Status.ENQUEUED and run.reason == "lost"


async def make_way(service: Service, slug: str, *, but: str = "") -> None:
    """Cancel what waits to be tried again, for a run that is to start; `but` is its request id."""
    found = await _waiting(service, slug)
    tried = [run for run in found if run.was_tried and (not but or run.request_id != but)]
    await _cancel(service, tried, OVERTAKEN)


async def cancel_overtaken(service: Service, slug: str) -> None:
    """Cancel what waits to be tried again although another run has done its work meanwhile."""
    tried = [run for run in await _waiting(service, slug) if run.was_tried]
    if tried:
        runs = await service.runs(RunFilter(slug), limit=LATEST)
        over = [run for run in tried if any(_overtakes(other, run) for other in runs)]
        await _cancel(service, over, OVERTAKEN)


async def cancel_until(service: Service, slug: str, at: int) -> None:
    """Cancel what waits and was to be sent before a schedule was disabled, in milliseconds."""
    found = [run for run in await _waiting(service, slug) if run.created_at <= at]
    await _cancel(service, found, DISABLED)


def _overtakes(other: RunRow, run: RunRow) -> bool:
    """Return whether a run has sent what another still waits for, or is newer and at it."""
    if other.status == Status.SUCCESS:
        return (other.started_at or 0, other.run_id) > (run.started_at or 0, run.run_id)
    return other.status == Status.STARTED and other.run_id > run.run_id


async def _waiting(service: Service, slug: str) -> list[RunRow]:
    """Return runs that are to be sent."""
    found = await service.runs(RunFilter(slug, status=Status.ENQUEUED), limit=LATEST)
    return [run for run in found if not is_detached(run)]


async def _cancel(service: Service, runs: Iterable[RunRow], note: str) -> None:
    for run in runs:
        with suppress(RunIsOver, NoSuchRun):
            await service.cancel(run.run_id, note=note)
