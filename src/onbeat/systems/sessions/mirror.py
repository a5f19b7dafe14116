"""The files of scheduled prompts and the store, kept in step.

The store is the truth. What somebody has written to a file since it was last written here is taken
over first, and only then are the files told what the store says. What was last agreed on is kept in
the store, and kept before a file is written: after a crash a file says what was kept, or what was
before that, and neither is taken for somebody's edit.
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
from onbeat.errors import InvalidSchedule, NotAllowed, OnbeatError, shown
from onbeat.ports.rows import DocumentRow, RunFilter, ScheduleFilter, ScheduleRow
from onbeat.service.service import Service
from onbeat.systems.sessions.broken_files import BrokenFiles
from onbeat.systems.sessions.definitions import (
    SLUGS,
    SOURCE,
    Fields,
    PromptDefaults,
    PromptRefused,
    begins_at,
    check_minimum,
    in_order,
    is_dependent,
    is_enabled,
    is_persistent,
    is_same_interval,
    read_definition,
    told_of,
)
from onbeat.systems.sessions.files import DEFINITION, LAST_RUN, Corrupt, Files, Folder, Stamp
from onbeat.systems.sessions.status import (
    PromptStatus,
    SlugRecord,
    beginning,
    comes_first,
    fresh,
    later_of,
    read_last_run,
    standing,
)
from onbeat.systems.sessions.waiting_runs import LATEST, cancel_overtaken, cancel_until, make_way

log = logging.getLogger("onbeat.sessions")

KIND = "sessions"  # of what is kept of a slug beside its schedule
SESSION = "session"  # of what the launcher keeps: the session of a schedule
MIRROR = "sessions-folder"  # of what says which folder is kept in step
LONGEST_NOTE = 200  # characters
APART = 0.002  # seconds between two starts: runs that are due in one millisecond have no order


class FileMirror:
    """Keeps the files of slugs and the store in step, one slug after the other.

    One folder is: a document in the store names it, by what is written on the folder. Any other is
    filled from the store first. What it has of slugs that are unknown is taken over, but nothing of
    those that are known, and what it does not have is not deleted.
    """

    def __init__(
        self, service: Service, files: Files, defaults: PromptDefaults, *, store_id: str, url: str
    ) -> None:
        self._service, self._files = service, files
        self._defaults, self._store_id, self._url = defaults, store_id, url
        self.is_on = False  # whether the files are this process's to write
        self.slugs: set[str] = set()  # those that there are
        self.corrupt: dict[str, Corrupt] = {}
        self.broken = BrokenFiles(service, files)
        self._broken: dict[str, Corrupt] | None = None  # what was kept of these
        self._folder_id: str | None = None
        self._filled: set[str] | None = None  # what this folder has; None: it is kept in step
        self._warned: dict[str, Corrupt | str] = {}
        self._heard: set[str] = set()
        self._seen: dict[str, object] = {}  # the rows that were told to the files
        self._stamps: dict[str, Stamp] = {}
        self._awaited: dict[str, int] = {}
        self._too_often: dict[str, tuple[str, str | None]] = {}
        self._misnamed: dict[str, object] = {}  # what was told of names
        self._newest = -1

    def begin(self) -> None:
        """Have the files be this process's to write, unless another's are later."""
        self.is_on, self._folder_id, self._filled = True, None, None

    def hear(self, slugs: Collection[str]) -> None:
        """Have slugs looked at whatever else has changed."""
        self._heard |= set(slugs)

    async def look(self) -> None:
        """Look at all slugs whose files or schedules have changed since."""
        newest, now = await self._service.newest_event(), self._service.clock.now()
        if not await self._has_folder():
            if newest != self._newest:
                found = await self._service.schedules(ScheduleFilter(SOURCE))
                self.slugs, self._newest = {row.schedule_id for row in found}, newest
            return
        if self._filled is not None:
            await asyncio.to_thread(self._files.make)
        stamps = await asyncio.to_thread(self._files.stamps)
        await self._tell_of_others()
        heard, self._heard = self._heard, set()
        heard |= {slug for slug, at in self._awaited.items() if at <= now}
        heard |= {slug for slug, _ in stamps.items() ^ self._stamps.items()}
        if newest == self._newest and not heard and self._filled is None:
            return
        rows = {
            row.schedule_id: row for row in await self._service.schedules(ScheduleFilter(SOURCE))
        }
        known = {row.name: row for row in await self._service.kept_all(KIND)}
        self.slugs = set(rows)
        slugs = sorted({*rows, *known, *stamps, *self.corrupt})
        unsettled = set(slugs) - set(rows) | set(self.corrupt)
        follows = await asyncio.to_thread(self._files.followed, unsettled)
        for slug in in_order(slugs, follows):
            row = rows.get(slug)
            is_news = self._service.is_shared or self._seen.get(slug) != row
            is_news = is_news or (row is None and slug in known) or self._is_to_fill(slug, row)
            is_news = is_news or slug in follows  # what it follows may be there by now
            if slug in heard or is_news:
                await self._try(slug, self._one(slug, row, _known(known.get(slug))))
        now = self._service.clock.now()
        for _, slug in sorted((at, slug) for slug, at in self._awaited.items() if at <= now):
            await self._try(slug, self._start(slug))
            await asyncio.sleep(APART)
        await self._keep_broken()
        if self._filled is not None and self._filled >= set(rows):
            await self._claim()
        self._newest, self._stamps = newest, stamps

    async def refresh(self, slug: str) -> ScheduleRow | None:
        """Look at one slug now; return its schedule."""
        if await self._has_folder():
            try:
                await self._one(slug, await self.row(slug), await self.known(slug))
            except OSError as broken:
                self._put_off(slug, broken)
            await self._keep_broken()
        return await self.row(slug)

    # -- the folder

    async def _has_folder(self) -> bool:
        """Return whether there are files to keep in step: not if another node's are by now."""
        if not self.is_on:
            return False
        kept = await self._service.kept(MIRROR, "folder")
        named = kept.body.get("id") if kept is not None and isinstance(kept.body, dict) else None
        if self._folder_id is not None and named != self._folder_id:
            self.is_on = False
            told = "[SCHEDULER] another folder is kept in step now: %s is left as it is"
            log.warning(told, self._files.folder)
            return False
        mark = await asyncio.to_thread(self._files.mark)
        if named is not None and mark == f"{self._store_id} {named}":
            self._folder_id, self._filled = str(named), None
        elif self._filled is None:
            self._filled = set()
        return True

    async def _claim(self) -> None:
        """Have this folder be the one, now that it has all there is."""
        if not await self._has_folder() or self._filled is None:
            return  # somebody else has, for the same folder
        folder_id = self._folder_id or uuid4().hex
        await asyncio.to_thread(self._files.set_mark, f"{self._store_id} {folder_id}")
        await self._service.keep(MIRROR, "folder", {"id": folder_id})
        self._folder_id, self._filled = folder_id, None

    def _is_to_fill(self, slug: str, row: ScheduleRow | None) -> bool:
        """Return whether the folder has yet to be told of a schedule, whatever it says."""
        return row is not None and self._filled is not None and slug not in self._filled

    # -- what there is

    async def row(self, slug: str) -> ScheduleRow | None:
        """Return the schedule of a slug, if it is one of ours."""
        found = await self._service.find(slug)
        return found if found is not None and found.source == SOURCE else None

    async def known(self, slug: str) -> SlugRecord | None:
        """Return what is kept of a slug."""
        return _known(await self._service.kept(KIND, slug))

    async def standing(self, row: ScheduleRow, known: SlugRecord) -> PromptStatus:
        """Return where a schedule stands."""
        slug = row.schedule_id
        runs = await self._service.runs(RunFilter(slug), limit=LATEST)
        session_id = await self.session_of(row)
        return standing(row, runs, known, session_id, now=self._service.clock.now())

    async def session_of(self, row: ScheduleRow) -> str | None:
        """Return the session that the runs of a schedule share."""
        kept = await self._service.kept(SESSION, row.schedule_id)
        body = kept.body if kept is not None and isinstance(kept.body, dict) else {}
        found = body.get("sessionId") if body.get("since") == row.created_at else None
        return found if isinstance(found, str) else None

    def definition(self, row: ScheduleRow, known: SlugRecord | None) -> Fields:
        """Return the definition of a slug as the store has it."""
        before = known.definition if known is not None else fresh(row)
        found = told_of(row.definition, before)
        is_held = known is not None and known.is_held(row)
        if not is_held and is_enabled(found) == row.paused:
            found["enabled"] = not row.paused
        return found

    def why_held(self, row: ScheduleRow, known: SlugRecord | None) -> str:
        """Return what is wrong with the files of a slug, such that nothing of it runs."""
        if (broken := self.corrupt.get(row.schedule_id)) is not None:
            return str(broken)
        is_held = known is not None and known.is_held(row)
        return row.pause_note if is_held else ""  # its files are another node's

    async def tell(self, row: ScheduleRow, known: SlugRecord) -> None:
        """Have the files of a slug say what the store does; later, if they cannot be written."""
        try:
            await self._tell(row, known)
        except OSError as broken:
            self._put_off(row.schedule_id, broken)

    async def keep(self, slug: str, known: SlugRecord) -> None:
        """Keep what is known of a slug; the same again writes nothing."""
        await self._service.keep(KIND, slug, msgspec.to_builtins(known))
        self._awaited.pop(slug, None)
        if known.awaited is not None:
            self._awaited[slug] = parse_instant_ms(known.awaited)

    async def drop(self, slug: str) -> None:
        """Forget a slug that has no schedule any more, and remove its files; later, if need be."""
        try:
            await self._drop(slug)
        except OSError as broken:
            self._put_off(slug, broken)
        await self._keep_broken()

    async def _tell(
        self, row: ScheduleRow, known: SlugRecord | None, there: Folder | None = None
    ) -> None:
        """Have the files say what the store does, unless they are not as `there` says any more."""
        slug, now = row.schedule_id, self._service.clock.now()
        self.slugs.add(slug)
        if not self.is_on:
            return
        wanted = self.definition(row, known)
        if known is None:
            known = SlugRecord(wanted)
        elif wanted != known.definition:
            wanted["updatedAt"] = rfc3339_ms(now)
            known = known.with_definition(wanted)
        stands = await self.standing(row, known)
        last_run = stands.as_last_run(persists=is_persistent(wanted))
        told = {"sessionId": last_run.get("sessionId"), "nextRun": last_run["nextRun"]}
        known = replace(known.with_told(told), ran=stands.ran, run=stands.run)
        known = replace(known, awaited=stands.awaited)
        await self.keep(slug, known)
        self._seen[slug] = row
        if not await asyncio.to_thread(self._write, slug, wanted, last_run, there):
            self._heard.add(slug)  # somebody was quicker: that is looked at first
            return
        await self.keep(slug, replace(known, before=(), told_before=(), is_written=True))
        if self._filled is not None:
            self._filled.add(slug)
        if self._why_too_often(row) is None:
            self._released(slug)

    async def _drop(self, slug: str) -> None:
        if self.is_on:
            await asyncio.to_thread(self._files.remove, slug)
        await self._service.forget(KIND, slug)
        await self._service.forget(SESSION, slug)
        for each in (self._awaited, self._seen, self._too_often):
            each.pop(slug, None)
        self.slugs.discard(slug)
        self._released(slug)

    async def begins_at(self, row: ScheduleRow | None, before: Fields, given: Fields) -> int:
        """Return the second that an interval is counted from: as it was, if it is the same."""
        same = is_same_interval(before.get("schedule"), given.get("schedule"))
        found = begins_at(row.definition) if row is not None and same else None
        return self._service.clock.now() // 1000 if found is None else found

    # -- what somebody has written

    async def _try(self, slug: str, step: Awaitable[None]) -> None:
        """Do something about a slug; what goes wrong with it keeps no other from its turn."""
        try:
            await step
        except (OnbeatError, OSError) as failed:
            self._put_off(slug, failed)

    def _put_off(self, slug: str, failed: Exception) -> None:
        """Have a slug looked at again, and say why, once."""
        self._heard.add(slug)
        if self._warned.get(slug) != str(failed):
            self._warned[slug] = str(failed)
            log.warning("[SCHEDULER] %s: %s (tried again)", slug, failed)

    async def _one(self, slug: str, row: ScheduleRow | None, known: SlugRecord | None) -> None:
        there = await asyncio.to_thread(self._files.read, slug)
        definition, last_run = there.definition, there.last_run
        if isinstance(last_run, dict):
            try:
                last_run = read_last_run(last_run)
            except InvalidSchedule as refused:
                last_run = Corrupt(LAST_RUN, str(refused))
        if row is not None and self._is_to_fill(slug, row):
            if isinstance(last_run, dict):
                known = SlugRecord(self.definition(row, None)) if known is None else known
                row, known = await self._take_last_run(row, known, last_run)
            await self._tell(row, known, there)
        elif isinstance(definition, Corrupt):
            await self._hold(slug, row, definition)
        elif isinstance(last_run, Corrupt):
            await self._hold(slug, row, last_run)
        elif definition is None:
            await self._without_definition(slug, row, known, there)
        elif row is None and known is not None and known.is_ours(definition):
            await self._drop(slug)  # it was deleted, by other means
        else:
            known = await self._with_definition(slug, definition, last_run, row, known)
            if known is not None:
                await self._tell(await self._service.schedule(slug), known, there)
        row = await self.row(slug)
        why = None if row is None or slug in self.corrupt else self._why_too_often(row)
        if why is not None:
            await self._hold(slug, row, Corrupt(DEFINITION, why, is_refused=True))
        await self.mind_runs(slug)

    async def mind_runs(self, slug: str) -> None:
        """Cancel what waits and is not to be sent any more: it was overtaken, or disabled."""
        row, known = await self.row(slug), await self.known(slug)
        if row is None or known is None:
            return
        await cancel_overtaken(self._service, slug)
        is_disabled = row.paused and not known.is_held(row)
        if is_disabled and known.disabled_at is None:
            # What is asked for while it is disabled is sent all the same.
            await cancel_until(self._service, slug, row.updated_at)
            await self.keep(slug, replace(known, disabled_at=row.updated_at))
            self._heard.add(slug)
        elif not is_disabled and known.disabled_at is not None:
            await self.keep(slug, replace(known, disabled_at=None))

    async def _with_definition(
        self,
        slug: str,
        definition: Fields,
        last_run: Fields | None,
        row: ScheduleRow | None,
        known: SlugRecord | None,
    ) -> SlugRecord | None:
        """Take over what the files of a slug say; return None if that cannot be."""
        try:
            if row is None or known is None:
                known = await self._adopt(slug, definition, last_run)
            elif not known.is_ours(definition):
                known = await self._edit(row, definition, known)
            elif known.held is not None and self._why_too_often(row) is None:
                known = await self._let_go(row, known)
        except (PromptRefused, InvalidSchedule, NotAllowed) as refused:
            await self._hold(slug, row, Corrupt(DEFINITION, str(refused), is_refused=True))
            return None
        self._tell_of_name(slug, definition)
        row = await self._service.schedule(slug)
        return known if last_run is None else await self._read(row, known, last_run)

    async def _adopt(self, slug: str, definition: Fields, last_run: Fields | None) -> SlugRecord:
        """Define what a folder says that was not known: it goes on where its last run left off."""
        now, enabled = self._service.clock.now(), is_enabled(definition)
        other = await self._service.find(slug)
        if other is not None and other.source != SOURCE:
            raise PromptRefused(409, f"another schedule is called {slug}", hint="another slug")
        due = last_run and last_run["nextRun"]
        due_at = now if due is None else parse_instant_ms(due)
        is_due = due is not None or not is_dependent(definition)  # else the other one says when
        first = max(due_at, now) // 1000
        schedule = read_definition(slug, definition, self._defaults, begins_at=first, now=now)
        begins = {slug: beginning(last_run, paused=not enabled)}
        await self._service.define([schedule], source=SOURCE, beginnings=begins)
        row = await self._service.schedule(slug)
        known, persists = SlugRecord(definition), is_persistent(definition)
        if last_run is not None:
            told = {name: last_run[name] for name in ("sessionId", "nextRun")}
            ran = {name: last_run[name] for name in known.ran}
            known = replace(known, told=told, ran=ran)
            if persists and last_run["sessionId"] is not None:
                await self._keep_session(row, last_run["sessionId"])
        if is_due and comes_first(row, due_at):
            cause: StartedBy = "overdue" if due_at <= now else "next_run"
            known = known.awaiting(rfc3339_ms(due_at), now, cause)
        await self.keep(slug, known)
        return known

    async def _edit(self, row: ScheduleRow, definition: Fields, known: SlugRecord) -> SlugRecord:
        """Define what somebody has written to a file."""
        slug, now = row.schedule_id, self._service.clock.now()
        first = await self.begins_at(row, known.definition, definition)
        schedule = read_definition(slug, definition, self._defaults, begins_at=first, now=now)
        await self._service.define([schedule], source=SOURCE, user_id=row.user_id)
        await self.set_enabled(self._service, row, known, enabled=is_enabled(definition))
        known = replace(known, definition=definition, before=(), held=None)
        await self.keep(slug, known)
        return known

    async def set_enabled(
        self, service: Service, row: ScheduleRow, known: SlugRecord | None, *, enabled: bool
    ) -> None:
        """Let a schedule run by itself, from now on, or not."""
        is_held = known is not None and known.is_held(row)
        if enabled and row.paused:
            await service.resume(row.schedule_id)
        if not enabled and (not row.paused or is_held):
            await service.pause(row.schedule_id, note="disabled")

    async def _let_go(self, row: ScheduleRow, known: SlugRecord) -> SlugRecord:
        """Let a schedule go on that was held here, now that its files are repaired."""
        if known.is_held(row) and is_enabled(known.definition):
            await self._service.resume(row.schedule_id)
        known = replace(known, held=None)
        await self.keep(row.schedule_id, known)
        return known

    async def _read(self, row: ScheduleRow, known: SlugRecord, last_run: Fields) -> SlugRecord:
        """Take over an edit of last-run.json: the session, and the next run.

        A later `lastRun` is of another scheduler, which had the files meanwhile: it stays, and the
        ticks up to then are not sent a second time.
        """
        slug, now = row.schedule_id, self._service.clock.now()
        row, known = await self._take_last_run(row, known, last_run)
        seen = {name: last_run[name] for name in ("sessionId", "nextRun")}
        before = [each for each in (known.told, *known.told_before) if each is not None]
        if seen in before:
            return known
        session_id, next_run = last_run["sessionId"], last_run["nextRun"]
        is_other = all(session_id != each["sessionId"] for each in before)
        if is_other and is_persistent(known.definition):
            if session_id is None:
                await self._service.forget(SESSION, slug)
            else:
                await self._keep_session(row, session_id)
        known = replace(known, told=seen, told_before=())
        if next_run is not None and all(next_run != each["nextRun"] for each in before):
            first = comes_first(row, parse_instant_ms(next_run))
            known = known.awaiting(str(next_run) if first else None, now)
        await self.keep(slug, known)
        return known

    async def _take_last_run(
        self, row: ScheduleRow, known: SlugRecord, last_run: Fields
    ) -> tuple[ScheduleRow, SlugRecord]:
        """Take over a `lastRun` that is later than ours; ticks up to then are not sent here."""
        slug = row.schedule_id
        known, elsewhere = later_of(known, last_run, self._service.clock.now())
        if elsewhere is None:
            return row, known
        await self.keep(slug, known)
        if not row.paused and row.next_due_at is not None and row.next_due_at <= elsewhere:
            note = f"another scheduler has run it at {rfc3339_ms(elsewhere)}"
            log.info("[SCHEDULER] %s: %s", slug, note)
            await self._service.pause(slug, note=note)  # it records the ticks that are owed
            await self._service.resume(slug)
            row = await self._service.schedule(slug)
        return row, known

    async def _keep_session(self, row: ScheduleRow, session_id: object) -> None:
        """Have the next runs of a schedule go to a session: one that is not ours to delete."""
        own = {"sessionId": session_id, "url": self._url, "since": row.created_at}
        await self._service.keep(SESSION, row.schedule_id, own)

    async def _start(self, slug: str) -> None:
        """Start the run that somebody has put the next run for: it is time."""
        row, known = await self.row(slug), await self.known(slug)
        if row is None or known is None or known.awaited is None:
            self._awaited.pop(slug, None)
            return
        if slug in self.corrupt:
            return
        if not row.paused:
            # The same edit is the same run, whatever breaks before the next line.
            edit = f"{slug}\n{row.created_at}\n{known.awaited}\n{known.awaited_count}"
            asked = sha256(edit.encode()).hexdigest()[:32]
            await make_way(self._service, slug, but=f"next-run-{asked}")
            await self._service.start(
                slug,
                request_id=f"next-run-{asked}",
                triggered_by=known.awaited_as,
                note=known.awaited,
            )
        await self.keep(slug, replace(known, awaited=None))
        self._heard.add(slug)

    async def _without_definition(
        self, slug: str, row: ScheduleRow | None, known: SlugRecord | None, there: Folder
    ) -> None:
        if row is None:
            self._released(slug)
            if known is not None:
                await self._drop(slug)
            return
        is_removed = known is not None and known.is_written and not self._files.has(slug)
        if is_removed and await self._has_folder() and self._filled is None:
            log.info("[SCHEDULER] %s: its folder was removed, so it is deleted", slug)
            await self._service.delete(slug)
            await self._drop(slug)
            return
        await self._tell(row, known, there)

    async def _hold(self, slug: str, row: ScheduleRow | None, why: Corrupt) -> None:
        """Have nothing run of a slug whose files cannot be read, and leave these alone."""
        self.corrupt[slug] = why
        if self._warned.get(slug) != why:
            self._warned[slug] = why
            told = "[SCHEDULER] %s: %s is %s, skipped: %s"
            log.warning(told, slug, why.name, why.kind, why.why)
        if row is not None and not row.paused:
            held, known = f"{why.name}: {why.why}"[:LONGEST_NOTE], await self.known(slug)
            known = SlugRecord(self.definition(row, None)) if known is None else known
            await self.keep(slug, replace(known, held=held))
            await self._service.pause(slug, note=held)
        self._seen[slug] = row and await self._service.find(slug)

    async def _keep_broken(self) -> None:
        """Keep what is wrong with slugs that have no schedule."""
        found = {slug: why for slug, why in self.corrupt.items() if slug not in self.slugs}
        if found != self._broken:
            await self.broken.keep(found)
            self._broken = found

    async def _tell_of_others(self) -> None:
        """Tell once of each folder that is left alone for its name."""
        for name in await asyncio.to_thread(self._files.others):
            if name not in self._misnamed:
                self._misnamed[name] = ""
                log.warning("[SCHEDULER] %s is left alone: it is no slug (%s)", shown(name), SLUGS)

    def _tell_of_name(self, slug: str, definition: Fields) -> None:
        """Tell once of a definition that calls itself other than its folder is called."""
        said = definition.get("slug", slug)
        if said != slug and self._misnamed.get(slug) != said:
            told = "[SCHEDULER] %s: it calls itself %s, but its folder is what it is called"
            log.warning(told, slug, shown(said))
        self._misnamed[slug] = said

    def _why_too_often(self, row: ScheduleRow) -> str | None:
        """Return what is wrong with a schedule that an operator would not have any more."""
        slug, said = row.schedule_id, row.definition
        if self._too_often.get(slug, ("", None))[0] != said:
            found, now = from_definition(slug, said), self._service.clock.now()
            try:
                check_minimum(found, self._defaults, now)
                self._too_often[slug] = (said, None)
            except PromptRefused as refused:
                self._too_often[slug] = (said, str(refused))
        return self._too_often[slug][1]

    def _released(self, slug: str) -> None:
        self.corrupt.pop(slug, None)
        self._warned.pop(slug, None)

    def _write(
        self, slug: str, definition: Fields, last_run: Fields, before: Folder | None
    ) -> bool:
        marks = [self._files.stamp(slug, name) for name in (DEFINITION, LAST_RUN)]
        there = self._files.read(slug)
        if before is not None and there != before:
            return False
        both = ((DEFINITION, definition, there.definition), (LAST_RUN, last_run, there.last_run))
        return all(
            said == wanted or self._files.write(slug, name, wanted, over=mark)
            for (name, wanted, said), mark in zip(both, marks, strict=True)
        )


def _known(kept: DocumentRow | None) -> SlugRecord | None:
    return None if kept is None else msgspec.convert(kept.body, SlugRecord)
