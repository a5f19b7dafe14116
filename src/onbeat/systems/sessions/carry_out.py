"""Carries out the actions that `reconcile_slug` decided, in their order."""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from onbeat.ports.rows import ScheduleRow
from onbeat.ports.store import NO_POSITIONS
from onbeat.service.service import Service
from onbeat.systems.sessions import waiting_runs
from onbeat.systems.sessions.definitions import SOURCE
from onbeat.systems.sessions.files import DEFINITION, LAST_RUN, Files, Stamp
from onbeat.systems.sessions.kept_folder import KeptFolder
from onbeat.systems.sessions.slug_actions import (
    AwaitChange,
    CancelOvertaken,
    CancelRetries,
    CancelWaiting,
    CheckName,
    Define,
    Delete,
    ForgetRecord,
    ForgetRequest,
    ForgetSession,
    Hold,
    Log,
    Pause,
    ReadAgain,
    ReconcileAgain,
    RemoveFiles,
    Resume,
    SaveRecord,
    SetSession,
    SlugAction,
    Solve,
    Stage,
    StartRun,
    WriteFiles,
)
from onbeat.systems.sessions.slug_problems import IntervalLimit, SlugProblems
from onbeat.systems.sessions.slug_records import SlugRecords

log = logging.getLogger("onbeat.sessions")


@dataclass(slots=True)
class Seen:
    """What was reconciled last: only what differs from it is reconciled again."""

    newest_event: int = -1
    slugs: set[str] = field(default_factory=set)  # with a schedule
    stamps: dict[str, Stamp] = field(default_factory=dict)  # of files
    rows: dict[str, ScheduleRow] = field(default_factory=dict)  # that the files reflect
    changed: set[str] = field(default_factory=set)  # slugs to reconcile whatever else has changed


class SlugExecutor:
    """Carries out actions for one slug after the other."""

    def __init__(
        self,
        service: Service,
        files: Files,
        *,
        folder: KeptFolder,
        records: SlugRecords,
        problems: SlugProblems,
        limit: IntervalLimit,
        seen: Seen,
    ) -> None:
        self._service, self._files, self._folder = service, files, folder
        self._records, self._problems, self._limit, self._seen = records, problems, limit, seen

    async def carry_out(
        self, slug: str, actions: Iterable[SlugAction], *, caller: Service | None = None
    ) -> Stage | None:
        """Carry out actions, each after the one before; return the stage to decide next.

        `caller` is the service that changes the schedule; by default that of this process.
        """
        service = self._service if caller is None else caller
        for action in actions:
            match action:
                case ReadAgain(stage):
                    return stage
                case Define() | Pause() | Resume() | Delete():
                    await _change_schedule(service, slug, action)
                case StartRun() | CancelRetries() | CancelOvertaken() | CancelWaiting():
                    await _change_runs(service, slug, action)
                case SaveRecord() | ForgetRecord() | SetSession() | ForgetSession():
                    await self._store(slug, action)
                case WriteFiles():
                    await self._write_files(slug, action)
                case RemoveFiles():
                    if self._folder.is_on:
                        await asyncio.to_thread(self._files.remove, slug)
                case _:
                    await self._note(slug, action)
        return None

    async def _store(
        self, slug: str, action: SaveRecord | ForgetRecord | SetSession | ForgetSession
    ) -> None:
        match action:
            case SaveRecord(record):
                await self._records.save(slug, record)
            case ForgetRecord():
                await self._records.forget(slug)
                self._seen.slugs.discard(slug)
                self._seen.rows.pop(slug, None)
                self._limit.forget(slug)
            case SetSession(session_id, since):
                await self._records.set_session(slug, session_id, since=since)
            case ForgetSession():
                await self._records.forget_session(slug)

    async def _write_files(self, slug: str, action: WriteFiles) -> None:
        self._seen.rows[slug] = action.row
        if not await asyncio.to_thread(write_both, self._files, slug, action):
            self._seen.changed.add(slug)  # the edit is applied first
            return
        await self._records.save(slug, action.written)
        self._folder.add(slug)
        if action.solves:
            self._problems.solve(slug)

    async def _note(
        self,
        slug: str,
        action: Hold | AwaitChange | Solve | Log | CheckName | ForgetRequest | ReconcileAgain,
    ) -> None:
        match action:
            case Hold(why):
                self._problems.hold(slug, why)
            case AwaitChange():
                row = await self._records.row(slug)
                self._seen.rows.pop(slug, None)
                if row is not None:
                    self._seen.rows[slug] = row
            case Solve():
                self._problems.solve(slug)
            case Log(message):
                log.info("[SCHEDULER] %s: %s", slug, message)
            case CheckName(name):
                self._problems.check_name(slug, name)
            case ForgetRequest():
                self._records.requested.pop(slug, None)
            case ReconcileAgain():
                self._seen.changed.add(slug)


async def _change_schedule(
    service: Service, slug: str, action: Define | Pause | Resume | Delete
) -> None:
    match action:
        case Define(schedule, user_id, position):
            positions = NO_POSITIONS if position is None else {slug: position}
            await service.define(
                [schedule], source=SOURCE, user_id=user_id, initial_positions=positions
            )
        case Pause(note):
            await service.pause(slug, note=note)
        case Resume():
            await service.resume(slug)
        case Delete():
            await service.delete(slug)


async def _change_runs(
    service: Service, slug: str, action: StartRun | CancelRetries | CancelOvertaken | CancelWaiting
) -> None:
    match action:
        case StartRun(request_id, cause, note):
            await service.start(slug, request_id=request_id, triggered_by=cause, note=note)
        case CancelRetries(but):
            await waiting_runs.cancel_retries(service, slug, but=but)
        case CancelOvertaken():
            await waiting_runs.cancel_overtaken(service, slug)
        case CancelWaiting(before):
            await waiting_runs.cancel_waiting_before(service, slug, before)


def write_both(files: Files, slug: str, action: WriteFiles) -> bool:
    """Write the files that differ; return whether none was edited meanwhile."""
    marks = [files.stamp(slug, name) for name in (DEFINITION, LAST_RUN)]
    contents = files.read(slug)
    if action.expected is not None and contents != action.expected:
        return False
    both = (
        (DEFINITION, action.definition, contents.definition),
        (LAST_RUN, action.last_run, contents.last_run),
    )
    return all(
        current == wanted or files.write(slug, name, wanted, over=mark)
        for (name, wanted, current), mark in zip(both, marks, strict=True)
    )
