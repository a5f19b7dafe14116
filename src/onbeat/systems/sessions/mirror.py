"""Keeps the files of scheduled prompts and the store in step.

The store is the truth. Edits of a file are applied to the store first, then files are written. The
contents agreed on last are stored before that, so after a crash nothing is taken for an edit.
"""

import asyncio
import logging
from collections.abc import Awaitable, Collection
from hashlib import sha256
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from onbeat.core.runs.run import StartedBy
from onbeat.core.schedule import from_definition
from onbeat.core.time.instants import parse_instant_ms, rfc3339_ms
from onbeat.errors import InvalidSchedule, NotAllowed, OnbeatError, quote_value
from onbeat.ports.rows import RunFilter, ScheduleFilter, ScheduleRow
from onbeat.service.service import Service
from onbeat.systems.sessions import definitions, waiting_runs
from onbeat.systems.sessions.broken_files import BrokenFiles
from onbeat.systems.sessions.definitions import SOURCE, Fields, PromptDefaults, PromptRefused
from onbeat.systems.sessions.files import DEFINITION, LAST_RUN, Corrupt, Files, Folder, Stamp
from onbeat.systems.sessions.status import (
    PromptStatus,
    SlugRecord,
    adopt_later_run,
    default_definition,
    initial_position,
    is_before_next_tick,
    prompt_status,
    read_last_run,
    to_record,
)

log = logging.getLogger("onbeat.sessions")

KIND = "sessions"  # document kind: the record of a slug
SESSION = "session"  # document kind of the launcher: the session of a schedule
MIRROR = "sessions-folder"  # document kind: the folder that is kept in step
LONGEST_NOTE = 200  # characters
APART = 0.002  # seconds between two starts, since runs due in one millisecond have no order


class FileMirror:
    """Keeps the files of slugs and the store in step, one slug after the other.

    A document in the store names the one folder that is kept in step. Any other folder is filled
    from the store first: its unknown slugs are adopted, its files of known slugs are overwritten.
    """

    def __init__(
        self, service: Service, files: Files, defaults: PromptDefaults, *, store_id: str, url: str
    ) -> None:
        self._service, self._files = service, files
        self._defaults, self._store_id, self._url = defaults, store_id, url
        self.is_on = False  # whether this process writes the files
        self.slugs: set[str] = set()  # slugs with a schedule
        self.corrupt: dict[str, Corrupt] = {}
        self.broken = BrokenFiles(service, files)
        self._stored_broken: dict[str, Corrupt] | None = None
        self._folder_id: str | None = None
        self._filled: set[str] | None = None  # slugs written so far; None: it is kept in step
        self._warned: dict[str, Corrupt | str] = {}
        self._changed: set[str] = set()
        self._written_rows: dict[str, object] = {}  # the rows that the files reflect
        self._stamps: dict[str, Stamp] = {}
        self._awaited: dict[str, int] = {}
        self._too_often: dict[str, tuple[str, str | None]] = {}
        self._warned_names: dict[str, object] = {}
        self._newest_event = -1

    def start(self) -> None:
        """Start writing the files, until another node takes over."""
        self.is_on, self._folder_id, self._filled = True, None, None

    def mark_changed(self, slugs: Collection[str]) -> None:
        """Have slugs reconciled next time, whatever else has changed."""
        self._changed |= set(slugs)

    async def reconcile(self) -> None:
        """Reconcile all slugs whose files or schedules have changed."""
        newest, now = await self._service.newest_event(), self._service.clock.now()
        if not await self._has_folder():
            if newest != self._newest_event:
                found = await self._service.schedules(ScheduleFilter(SOURCE))
                self.slugs, self._newest_event = {row.schedule_id for row in found}, newest
            return
        if self._filled is not None:
            await asyncio.to_thread(self._files.create)
        stamps = await asyncio.to_thread(self._files.stamps)
        await self._warn_of_misnamed_folders()
        changed, self._changed = self._changed, set()
        changed |= {slug for slug, at in self._awaited.items() if at <= now}
        changed |= {slug for slug, _ in stamps.items() ^ self._stamps.items()}
        if newest == self._newest_event and not changed and self._filled is None:
            return
        found = await self._service.schedules(ScheduleFilter(SOURCE))
        rows = {row.schedule_id: row for row in found}
        records = {row.name: row for row in await self._service.list_documents(KIND)}
        self.slugs = set(rows)
        slugs = sorted({*rows, *records, *stamps, *self.corrupt})
        unsettled = set(slugs) - set(rows) | set(self.corrupt)
        follows = await asyncio.to_thread(self._files.followed, unsettled)
        for slug in definitions.in_order(slugs, follows):
            row = rows.get(slug)
            is_new = self._service.is_shared or self._written_rows.get(slug) != row
            is_new = is_new or (row is None and slug in records) or self._is_to_fill(slug, row)
            is_new = is_new or slug in follows  # the followed schedule may exist by now
            if slug in changed or is_new:
                record = to_record(records.get(slug))
                await self._try(slug, self._reconcile_slug(slug, row, record))
        now = self._service.clock.now()
        for _, slug in sorted((at, slug) for slug, at in self._awaited.items() if at <= now):
            await self._try(slug, self._start_requested_run(slug))
            await asyncio.sleep(APART)
        await self._store_broken()
        if self._filled is not None and self._filled >= set(rows):
            await self._claim_folder()
        self._newest_event, self._stamps = newest, stamps

    async def refresh(self, slug: str) -> ScheduleRow | None:
        """Reconcile one slug now; return its schedule."""
        if await self._has_folder():
            try:
                await self._reconcile_slug(slug, await self.row(slug), await self.record(slug))
            except OSError as broken:
                self._retry_later(slug, broken)
            await self._store_broken()
        return await self.row(slug)

    # -- the folder

    async def _has_folder(self) -> bool:
        """Return whether this process keeps the folder in step, and no other node took over."""
        if not self.is_on:
            return False
        stored = await self._service.kept(MIRROR, "folder")
        named = (
            stored.body.get("id") if stored is not None and isinstance(stored.body, dict) else None
        )
        if self._folder_id is not None and named != self._folder_id:
            self.is_on = False
            message = (
                "[SCHEDULER] the folder %s is not updated any more: another folder is in use now"
            )
            log.warning(message, self._files.folder)
            return False
        mark = await asyncio.to_thread(self._files.mark)
        if named is not None and mark == f"{self._store_id} {named}":
            self._folder_id, self._filled = str(named), None
        elif self._filled is None:
            self._filled = set()
        return True

    async def _claim_folder(self) -> None:
        """Keep this folder in step from now on, since it is filled."""
        if not await self._has_folder() or self._filled is None:
            return  # another process has, for the same folder
        folder_id = self._folder_id or uuid4().hex
        await asyncio.to_thread(self._files.set_mark, f"{self._store_id} {folder_id}")
        await self._service.keep(MIRROR, "folder", {"id": folder_id})
        self._folder_id, self._filled = folder_id, None

    def _is_to_fill(self, slug: str, row: ScheduleRow | None) -> bool:
        """Return whether a schedule has yet to be written to a folder that is being filled."""
        return row is not None and self._filled is not None and slug not in self._filled

    # -- reading

    async def row(self, slug: str) -> ScheduleRow | None:
        """Return the schedule of a slug, if it belongs to this system."""
        found = await self._service.find(slug)
        return found if found is not None and found.source == SOURCE else None

    async def record(self, slug: str) -> SlugRecord | None:
        """Return the stored record of a slug."""
        return to_record(await self._service.kept(KIND, slug))

    async def status(self, row: ScheduleRow, record: SlugRecord) -> PromptStatus:
        """Return the current status of a schedule."""
        slug = row.schedule_id
        runs = await self._service.runs(RunFilter(slug), limit=waiting_runs.LATEST)
        session_id = await self.session_of(row)
        return prompt_status(row, runs, record, session_id, now=self._service.clock.now())

    async def session_of(self, row: ScheduleRow) -> str | None:
        """Return the session that the runs of a schedule share."""
        stored = await self._service.kept(SESSION, row.schedule_id)
        body = stored.body if stored is not None and isinstance(stored.body, dict) else {}
        found = body.get("sessionId") if body.get("since") == row.created_at else None
        return found if isinstance(found, str) else None

    def definition(self, row: ScheduleRow, record: SlugRecord | None) -> Fields:
        """Return the definition of a slug as stored."""
        before = record.definition if record is not None else default_definition(row)
        found = definitions.definition_from_store(row.definition, before)
        is_held = record is not None and record.is_held(row)
        if not is_held and definitions.is_enabled(found) == row.paused:
            found["enabled"] = not row.paused
        return found

    def why_held(self, row: ScheduleRow, record: SlugRecord | None) -> str:
        """Return why a slug is not run because of its files; empty if it is."""
        if (broken := self.corrupt.get(row.schedule_id)) is not None:
            return str(broken)
        is_held = record is not None and record.is_held(row)
        return row.pause_note if is_held else ""  # another node has the files

    async def update_files(self, row: ScheduleRow, record: SlugRecord) -> None:
        """Bring the files of a slug up to date; retry later if they cannot be written."""
        try:
            await self._update_files(row, record)
        except OSError as broken:
            self._retry_later(row.schedule_id, broken)

    async def save(self, slug: str, record: SlugRecord) -> None:
        """Store the record of a slug; an unchanged one writes nothing."""
        await self._service.keep(KIND, slug, msgspec.to_builtins(record))
        self._awaited.pop(slug, None)
        if record.awaited is not None:
            self._awaited[slug] = parse_instant_ms(record.awaited)

    async def drop(self, slug: str) -> None:
        """Delete the record and the files of a slug without a schedule; retry later if need be."""
        try:
            await self._drop(slug)
        except OSError as broken:
            self._retry_later(slug, broken)
        await self._store_broken()

    async def _update_files(
        self, row: ScheduleRow, record: SlugRecord | None, expected: Folder | None = None
    ) -> None:
        """Write the stored state to the files, unless they differ from `expected`."""
        slug, now = row.schedule_id, self._service.clock.now()
        self.slugs.add(slug)
        if not self.is_on:
            return
        wanted = self.definition(row, record)
        if record is None:
            record = SlugRecord(wanted)
        elif wanted != record.definition:
            wanted["updatedAt"] = rfc3339_ms(now)
            record = record.with_definition(wanted)
        status = await self.status(row, record)
        last_run = status.as_last_run(persists=definitions.is_persistent(wanted))
        written = {"sessionId": last_run.get("sessionId"), "nextRun": last_run["nextRun"]}
        record = replace(record.with_written(written), ran=status.ran, run=status.run)
        record = replace(record, awaited=status.awaited)
        await self.save(slug, record)
        self._written_rows[slug] = row
        if not await asyncio.to_thread(self._write, slug, wanted, last_run, expected):
            self._changed.add(slug)  # the files were edited meanwhile: the edit is applied first
            return
        await self.save(slug, replace(record, before=(), written_before=(), is_written=True))
        if self._filled is not None:
            self._filled.add(slug)
        if self._why_too_often(row) is None:
            self._clear_problem(slug)

    async def _drop(self, slug: str) -> None:
        if self.is_on:
            await asyncio.to_thread(self._files.remove, slug)
        await self._service.forget(KIND, slug)
        await self._service.forget(SESSION, slug)
        for each in (self._awaited, self._written_rows, self._too_often):
            each.pop(slug, None)
        self.slugs.discard(slug)
        self._clear_problem(slug)

    async def begins_at(self, row: ScheduleRow | None, before: Fields, after: Fields) -> int:
        """Return the second from which an interval is counted: unchanged if its length is."""
        same = definitions.is_same_interval(before.get("schedule"), after.get("schedule"))
        found = definitions.begins_at(row.definition) if row is not None and same else None
        return self._service.clock.now() // 1000 if found is None else found

    # -- edits of files

    async def _try(self, slug: str, step: Awaitable[None]) -> None:
        """Run a step for a slug; an error does not affect other slugs."""
        try:
            await step
        except (OnbeatError, OSError) as failed:
            self._retry_later(slug, failed)

    def _retry_later(self, slug: str, failed: Exception) -> None:
        """Have a slug reconciled again, and log the reason once."""
        self._changed.add(slug)
        if self._warned.get(slug) != str(failed):
            self._warned[slug] = str(failed)
            log.warning(
                "[SCHEDULER] %s: not synchronized with its files: %s (will be retried)",
                slug,
                failed,
            )

    async def _reconcile_slug(
        self, slug: str, row: ScheduleRow | None, record: SlugRecord | None
    ) -> None:
        folder = await asyncio.to_thread(self._files.read, slug)
        definition, last_run = folder.definition, folder.last_run
        if isinstance(last_run, dict):
            try:
                last_run = read_last_run(last_run)
            except InvalidSchedule as refused:
                last_run = Corrupt(LAST_RUN, str(refused))
        if row is not None and self._is_to_fill(slug, row):
            if isinstance(last_run, dict):
                record = SlugRecord(self.definition(row, None)) if record is None else record
                row, record = await self._adopt_last_run(row, record, last_run)
            await self._update_files(row, record, folder)
        elif isinstance(definition, Corrupt):
            await self._hold(slug, row, definition)
        elif isinstance(last_run, Corrupt):
            await self._hold(slug, row, last_run)
        elif definition is None:
            await self._without_definition(slug, row, record, folder)
        elif row is None and record is not None and record.is_ours(definition):
            await self._drop(slug)  # the schedule was deleted elsewhere
        else:
            record = await self._apply_definition(slug, definition, last_run, row, record)
            if record is not None:
                await self._update_files(await self._service.schedule(slug), record, folder)
        row = await self.row(slug)
        why = None if row is None or slug in self.corrupt else self._why_too_often(row)
        if why is not None:
            await self._hold(slug, row, Corrupt(DEFINITION, why, is_refused=True))
        await self.cancel_obsolete_runs(slug)

    async def cancel_obsolete_runs(self, slug: str) -> None:
        """Cancel waiting runs that were overtaken, or created before the schedule was disabled."""
        row, record = await self.row(slug), await self.record(slug)
        if row is None or record is None:
            return
        await waiting_runs.cancel_overtaken(self._service, slug)
        is_disabled = row.paused and not record.is_held(row)
        if is_disabled and record.disabled_at is None:
            # Runs that are started manually while it is disabled are sent all the same.
            await waiting_runs.cancel_waiting_before(self._service, slug, row.updated_at)
            await self.save(slug, replace(record, disabled_at=row.updated_at))
            self._changed.add(slug)
        elif not is_disabled and record.disabled_at is not None:
            await self.save(slug, replace(record, disabled_at=None))

    async def _apply_definition(
        self,
        slug: str,
        definition: Fields,
        last_run: Fields | None,
        row: ScheduleRow | None,
        record: SlugRecord | None,
    ) -> SlugRecord | None:
        """Apply edits of a slug's files; return None if they are refused."""
        try:
            if row is None or record is None:
                record = await self._adopt(slug, definition, last_run)
            elif not record.is_ours(definition):
                record = await self._apply_edit(row, definition, record)
            elif record.held is not None and self._why_too_often(row) is None:
                record = await self._release(row, record)
        except (PromptRefused, InvalidSchedule, NotAllowed) as refused:
            await self._hold(slug, row, Corrupt(DEFINITION, str(refused), is_refused=True))
            return None
        self._warn_of_other_name(slug, definition)
        row = await self._service.schedule(slug)
        return record if last_run is None else await self._apply_last_run(row, record, last_run)

    async def _adopt(self, slug: str, definition: Fields, last_run: Fields | None) -> SlugRecord:
        """Define the schedule of a new folder, continuing from its last run."""
        now, enabled = self._service.clock.now(), definitions.is_enabled(definition)
        other = await self._service.find(slug)
        if other is not None and other.source != SOURCE:
            raise PromptRefused(
                409, f"another schedule is called {slug}", hint="choose another slug"
            )
        due = last_run and last_run["nextRun"]
        due_at = now if due is None else parse_instant_ms(due)
        is_due = due is not None or not definitions.is_dependent(
            definition
        )  # else it follows another
        first = max(due_at, now) // 1000
        schedule = definitions.read_definition(
            slug, definition, self._defaults, begins_at=first, now=now
        )
        positions = {slug: initial_position(last_run, paused=not enabled)}
        await self._service.define([schedule], source=SOURCE, initial_positions=positions)
        row = await self._service.schedule(slug)
        record, persists = SlugRecord(definition), definitions.is_persistent(definition)
        if last_run is not None:
            written = {name: last_run[name] for name in ("sessionId", "nextRun")}
            ran = {name: last_run[name] for name in record.ran}
            record = replace(record, written=written, ran=ran)
            if persists and last_run["sessionId"] is not None:
                await self._set_session(row, last_run["sessionId"])
        if is_due and is_before_next_tick(row, due_at):
            cause: StartedBy = "overdue" if due_at <= now else "next_run"
            record = record.awaiting(rfc3339_ms(due_at), now, cause)
        await self.save(slug, record)
        return record

    async def _apply_edit(
        self, row: ScheduleRow, definition: Fields, record: SlugRecord
    ) -> SlugRecord:
        """Apply an edited definition."""
        slug, now = row.schedule_id, self._service.clock.now()
        first = await self.begins_at(row, record.definition, definition)
        schedule = definitions.read_definition(
            slug, definition, self._defaults, begins_at=first, now=now
        )
        await self._service.define([schedule], source=SOURCE, user_id=row.user_id)
        await self.set_enabled(
            self._service, row, record, enabled=definitions.is_enabled(definition)
        )
        record = replace(record, definition=definition, before=(), held=None)
        await self.save(slug, record)
        return record

    async def set_enabled(
        self, service: Service, row: ScheduleRow, record: SlugRecord | None, *, enabled: bool
    ) -> None:
        """Enable or disable a schedule."""
        is_held = record is not None and record.is_held(row)
        if enabled and row.paused:
            await service.resume(row.schedule_id)
        if not enabled and (not row.paused or is_held):
            await service.pause(row.schedule_id, note="disabled")

    async def _release(self, row: ScheduleRow, record: SlugRecord) -> SlugRecord:
        """Resume a schedule that was paused because of its files, now that they are repaired."""
        if record.is_held(row) and definitions.is_enabled(record.definition):
            await self._service.resume(row.schedule_id)
        record = replace(record, held=None)
        await self.save(row.schedule_id, record)
        return record

    async def _apply_last_run(
        self, row: ScheduleRow, record: SlugRecord, last_run: Fields
    ) -> SlugRecord:
        """Apply an edit of last-run.json: its session and its next run.

        A later `lastRun` was written by another scheduler that had the files meanwhile: it is kept,
        and the ticks up to it are not sent again.
        """
        slug, now = row.schedule_id, self._service.clock.now()
        row, record = await self._adopt_last_run(row, record, last_run)
        fields = {name: last_run[name] for name in ("sessionId", "nextRun")}
        before = [each for each in (record.written, *record.written_before) if each is not None]
        if fields in before:
            return record
        session_id, next_run = last_run["sessionId"], last_run["nextRun"]
        is_changed = all(session_id != each["sessionId"] for each in before)
        if is_changed and definitions.is_persistent(record.definition):
            if session_id is None:
                await self._service.forget(SESSION, slug)
            else:
                await self._set_session(row, session_id)
        record = replace(record, written=fields, written_before=())
        if next_run is not None and all(next_run != each["nextRun"] for each in before):
            is_first = is_before_next_tick(row, parse_instant_ms(next_run))
            record = record.awaiting(str(next_run) if is_first else None, now)
        await self.save(slug, record)
        return record

    async def _adopt_last_run(
        self, row: ScheduleRow, record: SlugRecord, last_run: Fields
    ) -> tuple[ScheduleRow, SlugRecord]:
        """Adopt a `lastRun` that is later than ours; ticks up to it are not sent here."""
        slug = row.schedule_id
        record, elsewhere = adopt_later_run(record, last_run, self._service.clock.now())
        if elsewhere is None:
            return row, record
        await self.save(slug, record)
        if not row.paused and row.next_due_at is not None and row.next_due_at <= elsewhere:
            note = f"another scheduler ran it at {rfc3339_ms(elsewhere)}"
            log.info("[SCHEDULER] %s: %s", slug, note)
            await self._service.pause(slug, note=note)  # records the owed ticks as skipped
            await self._service.resume(slug)
            row = await self._service.schedule(slug)
        return row, record

    async def _set_session(self, row: ScheduleRow, session_id: object) -> None:
        """Send the next runs of a schedule to a session that was not created here."""
        own = {"sessionId": session_id, "url": self._url, "since": row.created_at}
        await self._service.keep(SESSION, row.schedule_id, own)

    async def _start_requested_run(self, slug: str) -> None:
        """Start the run that an edit of `nextRun` requested; it is due."""
        row, record = await self.row(slug), await self.record(slug)
        if row is None or record is None or record.awaited is None:
            self._awaited.pop(slug, None)
            return
        if slug in self.corrupt:
            return
        if not row.paused:
            # The same edit gives the same run, even after a crash before the next line.
            edit = f"{slug}\n{row.created_at}\n{record.awaited}\n{record.awaited_count}"
            request = sha256(edit.encode()).hexdigest()[:32]
            await waiting_runs.cancel_retries(self._service, slug, but=f"next-run-{request}")
            await self._service.start(
                slug,
                request_id=f"next-run-{request}",
                triggered_by=record.awaited_as,
                note=record.awaited,
            )
        await self.save(slug, replace(record, awaited=None))
        self._changed.add(slug)

    async def _without_definition(
        self, slug: str, row: ScheduleRow | None, record: SlugRecord | None, folder: Folder
    ) -> None:
        if row is None:
            self._clear_problem(slug)
            if record is not None:
                await self._drop(slug)
            return
        is_removed = record is not None and record.is_written and not self._files.has(slug)
        if is_removed and await self._has_folder() and self._filled is None:
            log.info(
                "[SCHEDULER] %s: the schedule is deleted, because its folder was removed", slug
            )
            await self._service.delete(slug)
            await self._drop(slug)
            return
        await self._update_files(row, record, folder)

    async def _hold(self, slug: str, row: ScheduleRow | None, why: Corrupt) -> None:
        """Pause a slug whose files are broken, and leave the files unchanged."""
        self.corrupt[slug] = why
        if self._warned.get(slug) != why:
            self._warned[slug] = why
            message = "[SCHEDULER] %s: the file %s is %s, skipped: %s"
            log.warning(message, slug, why.name, why.kind, why.why)
        if row is not None and not row.paused:
            note, record = f"{why.name}: {why.why}"[:LONGEST_NOTE], await self.record(slug)
            record = SlugRecord(self.definition(row, None)) if record is None else record
            await self.save(slug, replace(record, held=note))
            await self._service.pause(slug, note=note)
        self._written_rows[slug] = row and await self._service.find(slug)

    async def _store_broken(self) -> None:
        """Store the problems of slugs that have no schedule."""
        found = {slug: why for slug, why in self.corrupt.items() if slug not in self.slugs}
        if found != self._stored_broken:
            await self.broken.replace_all(found)
            self._stored_broken = found

    async def _warn_of_misnamed_folders(self) -> None:
        """Log once each folder that is ignored because its name is not a slug."""
        for name in await asyncio.to_thread(self._files.misnamed):
            if name not in self._warned_names:
                self._warned_names[name] = ""
                log.warning(
                    "[SCHEDULER] the folder %s is ignored: its name is not a slug (%s)",
                    quote_value(name),
                    definitions.SLUGS,
                )

    def _warn_of_other_name(self, slug: str, definition: Fields) -> None:
        """Log once a definition whose `slug` differs from the name of its folder."""
        name = definition.get("slug", slug)
        if name != slug and self._warned_names.get(slug) != name:
            message = "[SCHEDULER] %s: its definition has the slug %s; the folder's name is used"
            log.warning(message, slug, quote_value(name))
        self._warned_names[slug] = name

    def _why_too_often(self, row: ScheduleRow) -> str | None:
        """Return the error if a schedule is more frequent than the operator allows by now."""
        slug, text = row.schedule_id, row.definition
        if self._too_often.get(slug, ("", None))[0] != text:
            found, now = from_definition(slug, text), self._service.clock.now()
            try:
                definitions.check_minimum(found, self._defaults, now)
                self._too_often[slug] = (text, None)
            except PromptRefused as refused:
                self._too_often[slug] = (text, str(refused))
        return self._too_often[slug][1]

    def _clear_problem(self, slug: str) -> None:
        self.corrupt.pop(slug, None)
        self._warned.pop(slug, None)

    def _write(
        self, slug: str, definition: Fields, last_run: Fields, expected: Folder | None
    ) -> bool:
        marks = [self._files.stamp(slug, name) for name in (DEFINITION, LAST_RUN)]
        contents = self._files.read(slug)
        if expected is not None and contents != expected:
            return False
        both = (
            (DEFINITION, definition, contents.definition),
            (LAST_RUN, last_run, contents.last_run),
        )
        return all(
            current == wanted or self._files.write(slug, name, wanted, over=mark)
            for (name, wanted, current), mark in zip(both, marks, strict=True)
        )
