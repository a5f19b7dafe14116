"""The files of scheduled prompts and the store, kept in step.

The store is the truth. What somebody has written to a file since it was last written here is taken
over first, and only then are the files told what the store says. What was last agreed on is kept in
the store, and kept before a file is written: after a crash a file says what was kept, or what was
before that, and neither is taken for somebody's edit.
"""

import asyncio
import logging
from collections.abc import Collection
from hashlib import sha256

import msgspec
from msgspec.structs import replace

from onbeat.core.instants import parse_instant_ms, rfc3339_ms
from onbeat.errors import InvalidSchedule, NotAllowed, OnbeatError
from onbeat.ports import Beginning
from onbeat.records import DocumentRow, ScheduleRow, Which, WhichRuns
from onbeat.service import Service
from onbeat.systems.sessions.definitions import (
    SOURCE,
    Defaults,
    Fields,
    Refused,
    begins_at,
    is_enabled,
    is_persistent,
    is_same_interval,
    read_definition,
    told_of,
)
from onbeat.systems.sessions.files import DEFINITION, LAST_RUN, Corrupt, Files, Folder, Stamp
from onbeat.systems.sessions.standing import Known, Standing, read_last_run, standing

log = logging.getLogger("onbeat.sessions")

KIND = "sessions"  # of what is kept of a slug beside its schedule
SESSION = "session"  # of what the launcher keeps: the session of a schedule
HELD = "held: "  # how the note of a pause begins that is ours
LATEST = 50  # runs that are looked at


class Mirror:
    """Keeps the files of slugs and the store in step, one slug after the other."""

    def __init__(
        self, service: Service, files: Files, defaults: Defaults, *, store_id: str
    ) -> None:
        self._service, self._files = service, files
        self._defaults, self._store_id = defaults, store_id
        self.is_on = False  # whether the files are this process's to write
        self.slugs: set[str] = set()  # those that there are
        self.corrupt: dict[str, Corrupt] = {}
        self._warned: dict[str, Corrupt] = {}
        self._heard: set[str] = set()
        self._seen: dict[str, object] = {}  # the rows that were told to the files
        self._stamps: dict[str, Stamp] = {}
        self._awaited: dict[str, int] = {}
        self._newest = -1

    def hear(self, slugs: Collection[str]) -> None:
        """Have slugs looked at whatever else has changed."""
        self._heard |= set(slugs)

    async def look(self) -> None:
        """Look at all slugs whose files or schedules have changed since."""
        stamps = await asyncio.to_thread(self._files.stamps)
        newest, now = await self._service.newest_event(), self._service.clock.now()
        heard, self._heard = self._heard, set()
        heard |= {slug for slug, at in self._awaited.items() if at <= now}
        heard |= {slug for slug, _ in stamps.items() ^ self._stamps.items()}
        if newest == self._newest and not heard:
            return
        rows = {row.schedule_id: row for row in await self._service.schedules(Which(SOURCE))}
        known = {row.name: row for row in await self._service.kept_all(KIND)}
        self.slugs = set(rows)
        for slug in sorted({*rows, *known, *stamps}):
            row = rows.get(slug)
            is_news = self._service.is_shared or self._seen.get(slug) != row
            if slug in heard or is_news or (row is None and slug in known):
                await self._try(slug, row, _known(known.get(slug)))
        if self.is_on:
            await asyncio.to_thread(self._files.mark, self._store_id)
        self._newest, self._stamps = newest, stamps

    async def refresh(self, slug: str) -> ScheduleRow | None:
        """Look at one slug now; return its schedule."""
        if self.is_on:
            await self._one(slug, await self.row(slug), await self.known(slug))
        return await self.row(slug)

    async def row(self, slug: str) -> ScheduleRow | None:
        """Return the schedule of a slug, if it is one of ours."""
        found = await self._service.find(slug)
        return found if found is not None and found.source == SOURCE else None

    async def known(self, slug: str) -> Known | None:
        """Return what is kept of a slug."""
        return _known(await self._service.kept(KIND, slug))

    async def standing(self, row: ScheduleRow, known: Known) -> Standing:
        """Return where a schedule stands."""
        slug = row.schedule_id
        runs = await self._service.runs(WhichRuns(slug), limit=LATEST)
        session_id = await self.session_of(slug)
        return standing(row, runs, known, session_id, now=self._service.clock.now())

    async def session_of(self, slug: str) -> str | None:
        """Return the session that the runs of a slug share."""
        kept = await self._service.kept(SESSION, slug)
        found = kept.body.get("sessionId") if kept and isinstance(kept.body, dict) else None
        return found if isinstance(found, str) else None

    def definition(self, row: ScheduleRow, known: Known | None) -> Fields:
        """Return the definition of a slug as the store has it."""
        before = known.definition if known is not None else _fresh(row)
        found = told_of(row.definition, before)
        is_held = row.paused and row.pause_note.startswith(HELD)
        if not is_held and is_enabled(found) == row.paused:
            found["enabled"] = not row.paused
        return found

    async def tell(
        self, row: ScheduleRow, known: Known | None, there: Folder | None = None
    ) -> None:
        """Have the files of a slug say what the store does, unless they are not as `there` says."""
        slug, now = row.schedule_id, self._service.clock.now()
        wanted = self.definition(row, known)
        if known is None:
            known = Known(wanted)
        elif wanted != known.definition:
            wanted["updatedAt"] = rfc3339_ms(now)
            known = replace(known, definition=wanted, definition_before=known.definition)
        stands = await self.standing(row, known)
        last_run = stands.as_last_run(persists=is_persistent(wanted))
        told = {"sessionId": last_run.get("sessionId"), "nextRun": last_run["nextRun"]}
        if told != known.told:
            known = replace(known, told=told, told_before=known.told)
        if stands.run != known.run:
            known = replace(known, ran=stands.ran, run=stands.run, awaited=None)
        await self.keep(slug, known)
        self.slugs.add(slug)
        self._seen[slug] = row
        if not self.is_on:
            return
        if not await asyncio.to_thread(self._write, slug, wanted, last_run, there):
            self._heard.add(slug)  # somebody was quicker: that is looked at first
            return
        known = replace(known, definition_before=None, told_before=None, is_written=True)
        await self.keep(slug, known)
        self._released(slug)

    async def keep(self, slug: str, known: Known) -> None:
        """Keep what is known of a slug; the same again writes nothing."""
        await self._service.keep(KIND, slug, msgspec.to_builtins(known))
        self._awaited.pop(slug, None)
        if known.awaited is not None:
            self._awaited[slug] = parse_instant_ms(known.awaited)

    async def drop(self, slug: str) -> None:
        """Forget a slug that has no schedule any more, and remove its files."""
        if self.is_on:
            await asyncio.to_thread(self._files.remove, slug)
        await self._service.forget(KIND, slug)
        await self._service.forget(SESSION, slug)
        self._awaited.pop(slug, None)
        self._seen.pop(slug, None)
        self.slugs.discard(slug)
        self._released(slug)

    async def begins_at(self, row: ScheduleRow | None, before: Fields, given: Fields) -> int:
        """Return the second that an interval is counted from: as it was, if it is the same."""
        same = is_same_interval(before.get("schedule"), given.get("schedule"))
        found = begins_at(row.definition) if row is not None and same else None
        return self._service.clock.now() // 1000 if found is None else found

    # -- what somebody has written

    async def _try(self, slug: str, row: ScheduleRow | None, known: Known | None) -> None:
        """Look at a slug; what goes wrong with it keeps no other from its turn."""
        try:
            await self._one(slug, row, known)
        except (OnbeatError, OSError) as failed:
            self._heard.add(slug)
            log.warning("[SCHEDULER] %s: %s (tried again)", slug, failed)

    async def _one(self, slug: str, row: ScheduleRow | None, known: Known | None) -> None:
        there = await asyncio.to_thread(self._files.read, slug)
        definition, last_run = there.definition, there.last_run
        if isinstance(last_run, dict):
            try:
                last_run = read_last_run(last_run)
            except InvalidSchedule as refused:
                last_run = Corrupt(LAST_RUN, str(refused))
        if isinstance(definition, Corrupt):
            await self._hold(slug, row, definition)
        elif isinstance(last_run, Corrupt):
            await self._hold(slug, row, last_run)
        elif definition is None:
            await self._without_definition(slug, row, known)
        elif row is None and known is not None and _is_ours(definition, known):
            await self.drop(slug)  # it was deleted, by other means
        else:
            known = await self._with_definition(slug, definition, last_run, row, known)
            if known is not None:
                await self.tell(await self._service.schedule(slug), known, there)

    async def _with_definition(
        self,
        slug: str,
        definition: Fields,
        last_run: Fields | None,
        row: ScheduleRow | None,
        known: Known | None,
    ) -> Known | None:
        """Take over what the files of a slug say; return None if that cannot be."""
        try:
            if row is None or known is None:
                known = await self._adopt(slug, definition, last_run)
            elif not _is_ours(definition, known):
                known = await self._edit(row, definition, known)
            elif row.paused and row.pause_note.startswith(HELD) and is_enabled(definition):
                await self._service.resume(slug)
        except (Refused, InvalidSchedule, NotAllowed) as refused:
            await self._hold(slug, row, Corrupt(DEFINITION, str(refused)))
            return None
        row = await self._service.schedule(slug)
        if last_run is not None:
            known = await self._read(row, known, last_run)
        return await self._start(row, known)

    async def _adopt(self, slug: str, definition: Fields, last_run: Fields | None) -> Known:
        """Define what a folder says that was not known: it goes on where its last run left off."""
        now, enabled = self._service.clock.now(), is_enabled(definition)
        other = await self._service.find(slug)
        if other is not None and other.source != SOURCE:
            raise Refused(409, f"another schedule is called {slug}", hint="another slug")
        due = last_run and last_run["nextRun"]
        due_at = now if due is None else parse_instant_ms(due)
        first = max(due_at, now) // 1000
        schedule = read_definition(slug, definition, self._defaults, begins_at=first, now=now)
        begins = {slug: Beginning(paused=not enabled)}
        await self._service.define([schedule], source=SOURCE, beginnings=begins)
        row = await self._service.schedule(slug)
        known, persists = Known(definition), is_persistent(definition)
        if last_run is not None:
            told = {name: last_run[name] for name in ("sessionId", "nextRun")}
            ran = {name: last_run[name] for name in known.ran}
            known = replace(known, told=told, ran=ran)
            if persists and last_run["sessionId"] is not None:
                await self._service.keep(SESSION, slug, {"sessionId": last_run["sessionId"]})
        if _comes_first(row, due_at):
            known = replace(known, awaited=rfc3339_ms(due_at))
        await self.keep(slug, known)
        return known

    async def _edit(self, row: ScheduleRow, definition: Fields, known: Known) -> Known:
        """Define what somebody has written to a file."""
        slug, now = row.schedule_id, self._service.clock.now()
        first = await self.begins_at(row, known.definition, definition)
        schedule = read_definition(slug, definition, self._defaults, begins_at=first, now=now)
        await self._service.define([schedule], source=SOURCE, user_id=row.user_id)
        await self.set_enabled(self._service, row, is_enabled(definition))
        known = replace(known, definition=definition, definition_before=None)
        await self.keep(slug, known)
        return known

    async def set_enabled(self, service: Service, row: ScheduleRow, enabled: bool) -> None:  # noqa: FBT001 - it is what is set
        """Let a schedule run by itself, from now on, or not."""
        if enabled and row.paused:
            await service.resume(row.schedule_id)
        if not enabled and (not row.paused or row.pause_note.startswith(HELD)):
            await service.pause(row.schedule_id, note="disabled")

    async def _read(self, row: ScheduleRow, known: Known, last_run: Fields) -> Known:
        """Take over what somebody has written to last-run.json: the session, and the next run."""
        seen = {name: last_run[name] for name in ("sessionId", "nextRun")}
        if seen in (known.told, known.told_before):
            return known
        slug, both = row.schedule_id, (known.told, known.told_before)
        before = [each for each in both if each is not None]
        session_id, next_run = last_run["sessionId"], last_run["nextRun"]
        is_other = all(session_id != each["sessionId"] for each in before)
        if is_other and is_persistent(known.definition):
            if session_id is None:
                await self._service.forget(SESSION, slug)
            else:
                await self._service.keep(SESSION, slug, {"sessionId": session_id})
        known = replace(known, told=seen, told_before=None)
        if next_run is not None and all(next_run != each["nextRun"] for each in before):
            first = _comes_first(row, parse_instant_ms(next_run))
            known = replace(known, awaited=str(next_run) if first else None)
        await self.keep(slug, known)
        return known

    async def _start(self, row: ScheduleRow, known: Known) -> Known:
        """Start the run that somebody has put the next run for, if it is time."""
        if known.awaited is None:
            return known
        is_due = parse_instant_ms(known.awaited) <= self._service.clock.now()
        if is_due and not row.paused:
            # The same edit is the same run, whatever breaks before the next line.
            asked = sha256(f"{row.schedule_id}\n{known.awaited}\n{known.run}".encode()).hexdigest()
            await self._service.start(row.schedule_id, request_id=f"next-run-{asked[:32]}")
        if is_due or row.paused:
            known = replace(known, awaited=None)
            await self.keep(row.schedule_id, known)
        return known

    async def _without_definition(
        self, slug: str, row: ScheduleRow | None, known: Known | None
    ) -> None:
        if row is None:
            await self.drop(slug)
            return
        is_removed = known is not None and known.is_written and not self._files.has(slug)
        if is_removed and self._files.is_of(self._store_id):
            log.info("[SCHEDULER] %s: its folder was removed, so it is deleted", slug)
            await self._service.delete(slug)
            await self.drop(slug)
            return
        await self.tell(row, known)

    async def _hold(self, slug: str, row: ScheduleRow | None, why: Corrupt) -> None:
        """Have nothing run of a slug whose files cannot be read, and leave these alone."""
        self.corrupt[slug] = why
        if self._warned.get(slug) != why:
            self._warned[slug] = why
            log.warning("[SCHEDULER] %s: %s is corrupt, skipped: %s", slug, why.name, why.why)
        if row is not None and not row.paused:
            await self._service.pause(slug, note=f"{HELD}{why.name} is corrupt")
        self._seen[slug] = row and await self._service.find(slug)

    def _released(self, slug: str) -> None:
        self.corrupt.pop(slug, None)
        self._warned.pop(slug, None)

    def _write(
        self, slug: str, definition: Fields, last_run: Fields, before: Folder | None
    ) -> bool:
        there = self._files.read(slug)
        if before is not None and there != before:
            return False
        if there.definition != definition:
            self._files.write(slug, DEFINITION, definition)
        if there.last_run != last_run:
            self._files.write(slug, LAST_RUN, last_run)
        return True


def _known(kept: DocumentRow | None) -> Known | None:
    return None if kept is None else msgspec.convert(kept.body, Known)


def _is_ours(definition: Fields, known: Known) -> bool:
    return definition in (known.definition, known.definition_before)


def _comes_first(row: ScheduleRow, at: int) -> bool:
    """Return whether an instant is earlier than the next tick of a schedule that is enabled."""
    return not row.paused and (row.next_due_at is None or at < row.next_due_at)


def _fresh(row: ScheduleRow) -> Fields:
    return {
        "slug": row.schedule_id,
        "prompt": "",
        "enabled": not row.paused,
        "schedule": {},
        "sessionConfig": {"persistSession": True},
        "createdAt": rfc3339_ms(row.created_at),
        "updatedAt": rfc3339_ms(row.updated_at),
    }
