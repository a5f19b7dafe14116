"""Scheduled prompts for chat sessions: six API calls, and a folder of JSON files.

A definition is `{prompt, enabled, schedule: {type, expression | intervalMinutes}, sessionConfig}`;
the calls return what the routes under `/api/schedule` do, with their statuses and texts.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Literal, TypedDict

import msgspec
from msgspec.structs import replace

from onbeat.core.runs.phase import Status
from onbeat.core.time.instants import rfc3339_ms
from onbeat.errors import InvalidSettings, NotAllowed
from onbeat.events import (
    DocumentDeleted,
    DocumentStored,
    Event,
    RunCanceled,
    RunFailed,
    RunRetrying,
    RunSkipped,
    RunStarted,
    RunSucceeded,
    SchedulePaused,
)
from onbeat.ports.rows import RunRow, ScheduleFilter, ScheduleRow
from onbeat.ports.store import InitialPosition
from onbeat.service.service import Service
from onbeat.systems.base import TIDIED_EVERY, PeriodicTask
from onbeat.systems.sessions.broken_files import Unscheduled, broken_in
from onbeat.systems.sessions.definitions import (
    LIMITS,
    OUTCOMES,
    SLUG,
    SOURCE,
    TIMEOUT,
    Fields,
    PromptDefaults,
    PromptRefused,
    check_slug,
    is_enabled,
    is_persistent,
    minutes_of,
    read_definition,
)
from onbeat.systems.sessions.files import DEFINITION, Files
from onbeat.systems.sessions.mirror import FileMirror
from onbeat.systems.sessions.reconcile_slug import begins_at, definition_of
from onbeat.systems.sessions.slug_records import SESSION
from onbeat.systems.sessions.status import SlugRecord
from onbeat.systems.sessions.waiting_runs import active_run, cancel_retries

__all__ = [
    "OUTCOMES", "SLUG", "TIMEOUT", "PromptDefaults", "PromptFields",
    "PromptRefused", "Sessions", "broken_in",
]  # fmt: skip

log = logging.getLogger("onbeat.sessions")

RECONCILED_EVERY = 1.0  # seconds
SESSION_WAIT = 2.0  # seconds that a manual start waits for the run's session
SESSION_POLLS = 40  # in that time
DEFINED = ("prompt", "enabled", "schedule", "sessionConfig", *LIMITS)  # fields set by the caller


class PromptLimits(TypedDict):
    """Optional fields of a definition."""

    timeout_minutes: int | None
    rate_limit: dict[str, object] | None


class PromptFields(msgspec.Struct, frozen=True, rename="camel"):
    """A scheduled prompt: its definition and status. Times are in UTC."""

    slug: str
    prompt: str
    enabled: bool
    schedule: dict[str, object]
    session_config: dict[str, object]
    last_run: str | None
    last_result: str | None
    last_error: str | None
    next_run: str | None
    session_id: str | None
    created_at: str | None
    updated_at: str | None
    timeout_minutes: int | None = TIMEOUT
    rate_limit: dict[str, object] | None = None


class Sessions:
    """The system beside a node: its API calls, and the mirror that keeps its files in step.

    `url` is the chat server, and `tidy` deletes sessions that were created for one run. The
    `service` of each call acts for its caller.
    """

    def __init__(
        self,
        service: Service,
        *,
        folder: Path,
        store_id: str,
        url: str,
        defaults: PromptDefaults,
        tidy: Callable[[], Awaitable[None]],
    ) -> None:
        self._service, self._defaults, self._folder = service, defaults, folder
        self._mirror = FileMirror(
            service, Files(folder), defaults, store_id=store_id, url=url.rstrip("/")
        )
        self._reconciling = PeriodicTask("sessions", self.reconcile, every=RECONCILED_EVERY)
        self._tidying = PeriodicTask("chat sessions", tidy, every=TIDIED_EVERY)
        self._one_at_a_time = asyncio.Lock()

    # -- background work

    async def start(self) -> None:
        """Apply the files to the store, and start the background work."""
        self._mirror.folder.start()
        try:
            await self.reconcile()
        except OSError as broken:
            problem = f"{self._folder} cannot be used: {broken.strerror}"
            hint = "a writable folder"
            raise InvalidSettings("sessions_folder", problem, hint=hint) from None
        self._reconciling.start()
        self._tidying.start()

    def on_events(self, at: int, events: Sequence[Event]) -> None:  # noqa: ARG002 - of the protocol
        """Log errors of prompts, and have the files of changed slugs brought up to date."""
        slugs = set()
        for event in events:
            match event:
                case RunRetrying(reason="lost"):
                    slugs.add(event.schedule_id)  # another node reattaches it
                case RunRetrying() | RunFailed() if event.schedule_id in self._mirror.slugs:
                    level = logging.WARNING if isinstance(event, RunRetrying) else logging.ERROR
                    problem = event.error or event.reason
                    log.log(level, "[SCHEDULER] %s: %s", event.schedule_id, problem)
                    slugs.add(event.schedule_id)
                case RunStarted() | RunSucceeded() | RunCanceled() | RunSkipped():
                    slugs.add(event.schedule_id)
                case SchedulePaused():
                    slugs.add(event.schedule_id)
                case DocumentStored() | DocumentDeleted() if event.kind == SESSION:
                    slugs.add(event.document)
                case _:
                    pass
        if slugs & self._mirror.slugs:
            self._mirror.mark_changed(slugs & self._mirror.slugs)
            self._reconciling.wake()
            self._tidying.wake()

    async def stop(self) -> None:
        """Bring the files up to date, and stop."""
        await self._tidying.abandon()
        await self._reconciling.stop()
        try:
            await self.reconcile()
        finally:
            self._mirror.folder.is_on = False

    async def reconcile(self) -> None:
        """Bring changed files and schedules in step."""
        async with self._one_at_a_time:
            await self._mirror.reconcile()

    # -- API calls

    async def items(self, service: Service) -> list[PromptFields]:
        """Return all prompts that the caller may see, by slug."""
        found = [await self._item(row) for row in await service.schedules(ScheduleFilter(SOURCE))]
        if service.caller.only_owner is None:
            scheduled = {item.slug for item in found}
            broken = await self._mirror.broken.all()
            found += [_broken(slug, why) for slug, why in broken.items() if slug not in scheduled]
        return sorted(found, key=lambda item: item.slug)

    async def item(self, service: Service, slug: str) -> PromptFields:
        """Return one prompt."""
        row = await self._find(service, check_slug(slug))
        if row is not None:
            return await self._item(row)
        is_for_all = service.caller.only_owner is None  # broken files have no owner
        broken = await self._mirror.broken.one(slug) if is_for_all else None
        if broken is None:
            raise _not_found(slug)
        return _broken(slug, broken)

    async def put(self, service: Service, slug: str, fields: Fields) -> Fields:
        """Create a definition, or replace it completely."""
        check_slug(slug)
        _check_scope(service, "define")
        async with self._one_at_a_time:
            row = await self._mirror.refresh(slug)
            if row is None and (other := await service.find(slug)) is not None:
                owner = f"it is defined by {other.source or 'other means'}"
                raise PromptRefused(409, f"Schedule exists elsewhere: {slug}", hint=owner)
            is_own = row is not None or service.caller.only_owner is None
            if not is_own and await self._mirror.broken.one(slug) is not None:
                # A file that cannot be used has no owner, like a file that `delete` leaves.
                raise NotAllowed(f"{slug} is another owner's", hint="choose another slug")
            is_new = await self._define(service, slug, row, fields)
            item = await self.item(service, slug)
        return {"slug": slug, "nextRun": item.next_run, "created": is_new}

    async def patch(self, service: Service, slug: str, fields: Fields) -> Fields:
        """Change fields of a definition; scope `operate` suffices to enable and disable."""
        check_slug(slug)
        fields = {name: value for name, value in fields.items() if name in DEFINED}
        _check_scope(service, "define" if fields.keys() - {"enabled"} else "operate")
        if not fields:
            raise PromptRefused(400, "there is nothing to change", hint=", ".join(DEFINED))
        async with self._one_at_a_time:
            await self._mirror.refresh(slug)
            row = await self._find(service, slug)
            enabled = is_enabled(fields)
            stays_off = row is not None and not (enabled and "enabled" in fields)
            await self._refuse_corrupt(
                service,
                row,
                slug,
                definition="refusing partial update",
                last_run="" if stays_off else "cannot re-enable",
            )
            if row is None:
                raise _not_found(slug)
            record = await self._mirror.records.one(slug)
            if fields.keys() - {"enabled"}:
                definition = definition_of(row, record)
                await self._define(service, slug, row, _merged(definition, fields))
            else:
                await self._mirror.switch(service, row, record, enabled=enabled)
                await self._mirror.cancel_obsolete_runs(slug)
                await self._mirror.refresh(slug)
            item = await self.item(service, slug)
        return {"slug": slug, "enabled": item.enabled, "nextRun": item.next_run}

    async def delete(self, service: Service, slug: str) -> Fields:
        """Delete a prompt with its files; deleting an unknown one succeeds."""
        check_slug(slug)
        _check_scope(service, "define")
        async with self._one_at_a_time:
            exists = await self._find(service, slug) is not None
            if exists:
                await service.delete(slug)
            # A folder without a schedule has no owner.
            is_left = service.caller.only_owner is None and await self._service.find(slug) is None
            if exists or is_left:
                await self._mirror.drop(slug)
        return {"success": True}

    async def run(self, service: Service, slug: str) -> Fields:
        """Start a run now, even of a disabled prompt.

        If a run is in progress or waits for its first attempt, return that run instead.
        """
        check_slug(slug)
        _check_scope(service, "operate")
        async with self._one_at_a_time:
            await self._mirror.refresh(slug)
            row = await self._find(service, slug)
            refusal = "refusing to run"
            await self._refuse_corrupt(service, row, slug, definition=refusal, last_run=refusal)
            if row is None:
                raise _not_found(slug)
            run = await active_run(service, slug)
            if run is None:
                await cancel_retries(service, slug)
                run = await service.start(slug)
        return {"slug": slug, "status": "running", "sessionId": await self._session_of(row, run)}

    # -- internals

    async def _define(
        self, service: Service, slug: str, row: ScheduleRow | None, fields: Fields
    ) -> bool:
        """Define a slug and update its files; return whether it is new."""
        now, record = self._service.clock.now(), await self._mirror.records.one(slug)
        before = record.definition if record is not None else {}
        stamp = rfc3339_ms(now)
        created = before.get("createdAt", stamp) if row is not None else stamp
        definition: Fields = {
            "slug": slug,
            "prompt": fields.get("prompt"),
            "enabled": is_enabled(fields),
            "schedule": fields.get("schedule"),
            "sessionConfig": {} if (own := fields.get("sessionConfig")) is None else own,
        }
        definition |= {name: fields[name] for name in LIMITS if fields.get(name) is not None}
        if row is not None:  # preserve unknown fields of the file
            known = (*definition, *LIMITS)
            definition |= {name: value for name, value in before.items() if name not in known}
        definition |= {"createdAt": created, "updatedAt": stamp}
        first = begins_at(row, before, definition, now=now)
        schedule = read_definition(slug, definition, self._defaults, begins_at=first, now=now)
        enabled = is_enabled(definition)
        persists = is_persistent(definition)
        definition["sessionConfig"] = {"persistSession": persists} | _config(definition)
        (done,) = await service.define(
            [schedule],
            source=SOURCE,
            user_id=row.user_id if row is not None else "",
            initial_positions={slug: InitialPosition(paused=not enabled)},
            expected={slug: None} if row is None else {},
        )
        found = await service.schedule(slug)
        await self._mirror.switch(service, found, record, enabled=enabled)
        if record is None or row is None:
            record = SlugRecord(definition)
        else:
            record = replace(record.with_definition(definition), held=None)
        await self._mirror.records.save(slug, record)
        await self._mirror.cancel_obsolete_runs(slug)
        await self._mirror.update_files(slug)
        return done.change == "created"

    async def _find(self, service: Service, slug: str) -> ScheduleRow | None:
        row = await service.find(slug)
        return row if row is not None and row.source == SOURCE else None

    async def _item(self, row: ScheduleRow) -> PromptFields:
        record = await self._mirror.records.one(row.schedule_id)
        definition = definition_of(row, record)
        status = await self._mirror.records.status(row, record or SlugRecord(definition))
        schedule, created, updated = (
            definition.get(name) for name in ("schedule", "createdAt", "updatedAt")
        )
        ran = {name: None if value is None else str(value) for name, value in status.ran.items()}
        problem = self._why_held(row, record)
        return PromptFields(
            slug=row.schedule_id,
            prompt=str(definition["prompt"]),
            enabled=is_enabled(definition) and not problem,
            schedule=schedule if isinstance(schedule, dict) else {},
            session_config=_config(definition),
            last_run=ran["lastRun"],
            last_result=ran["lastResult"],
            last_error=problem or ran["lastError"],
            next_run=None if problem else status.next_run,
            session_id=status.session_id if is_persistent(definition) else None,
            created_at=created if isinstance(created, str) else None,
            updated_at=updated if isinstance(updated, str) else None,
            **_limits_in(definition),
        )

    def _why_held(self, row: ScheduleRow, record: SlugRecord | None) -> str:
        """Return why a slug is not run because of its files; empty if it is."""
        if (broken := self._mirror.problems.corrupt.get(row.schedule_id)) is not None:
            return str(broken)
        is_held = record is not None and record.is_held(row)
        return row.pause_note if is_held else ""  # another node has the files

    async def _refuse_corrupt(
        self,
        service: Service,
        row: ScheduleRow | None,
        slug: str,
        *,
        definition: str,
        last_run: str,
    ) -> None:
        """Refuse a slug with a corrupt file, with these texts; empty: that file does not matter."""
        if row is None and service.caller.only_owner is not None:
            raise _not_found(slug)
        corrupt = self._mirror.problems.corrupt.get(slug)
        if corrupt is None and row is None and (kept := await self._mirror.broken.one(slug)):
            corrupt = kept.corrupt  # another node has the folder
        if corrupt is None:
            return
        if corrupt.name == DEFINITION:
            error = f"Schedule definition is {corrupt.kind}; {definition}: {slug}"
            raise PromptRefused(409, error, hint=corrupt.why)
        if last_run:
            error = f"Schedule last-run state is corrupt; {last_run}: {slug}"
            raise PromptRefused(409, error, hint=corrupt.why)

    async def _session_of(self, row: ScheduleRow, run: RunRow) -> str | None:
        """Return the session that a run is sent to, if it is known soon."""
        definition = definition_of(row, await self._mirror.records.one(row.schedule_id))
        for _ in range(SESSION_POLLS):
            if is_persistent(definition):
                found = await self._mirror.records.session_of(row)
                if found is not None:
                    return found
            run = await self._service.run(run.run_id)
            if run.external_id or (run.was_tried and run.status != Status.STARTED):
                break
            await asyncio.sleep(SESSION_WAIT / SESSION_POLLS)
        result = run.result if isinstance(run.result, dict) else {}
        session_id = result.get("sessionId", run.external_id)
        return session_id if isinstance(session_id, str) else None


def _broken(slug: str, broken: Unscheduled) -> PromptFields:
    """Return the fields of a slug whose files were broken when they were first read."""
    fields, last_run = broken.definition, broken.last_run
    prompt, schedule = fields.get("prompt"), fields.get("schedule")
    created, updated = fields.get("createdAt"), fields.get("updatedAt")
    return PromptFields(
        slug=slug,
        prompt=prompt if isinstance(prompt, str) else "",
        enabled=False,
        schedule=schedule if isinstance(schedule, dict) else {},
        session_config=_config(fields),
        last_run=_text(last_run.get("lastRun")),
        last_result=_text(last_run.get("lastResult")),
        last_error=str(broken.corrupt),
        next_run=None,
        session_id=_text(last_run.get("sessionId")),
        created_at=_text(created),
        updated_at=_text(updated),
        **_limits_in(fields),
    )


def _limits_in(definition: Fields) -> PromptLimits:
    rate = definition.get("rateLimit")
    return {
        "timeout_minutes": minutes_of(definition.get("timeoutMinutes", TIMEOUT)),
        "rate_limit": rate if isinstance(rate, dict) else None,
    }


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _not_found(slug: str) -> PromptRefused:
    return PromptRefused(404, f"Schedule not found: {slug}")


def _check_scope(service: Service, scope: Literal["operate", "define"]) -> None:
    """Refuse a caller without the scope before anything is read or done."""
    if not service.caller.may(scope):
        raise NotAllowed(f"this needs scope {scope}", hint=f"a token with scope {scope}")


def _config(definition: Fields) -> dict[str, object]:
    found = definition.get("sessionConfig")
    return dict(found) if isinstance(found, dict) else {}


def _merged(definition: Fields, fields: Fields) -> Fields:
    """Return a definition with some fields replaced; `sessionConfig` is merged."""
    config = fields.get("sessionConfig")
    own = {"sessionConfig": _config(definition) | config} if isinstance(config, dict) else {}
    return definition | fields | own
