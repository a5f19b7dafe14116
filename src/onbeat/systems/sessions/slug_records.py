"""What is stored of slugs: their schedules, their records, and their sessions."""

import msgspec

from onbeat.core.time.instants import parse_instant_ms
from onbeat.ports.rows import DocumentRow, RunFilter, RunRow, ScheduleFilter, ScheduleRow
from onbeat.service.service import Service
from onbeat.systems.sessions import waiting_runs
from onbeat.systems.sessions.definitions import SOURCE
from onbeat.systems.sessions.status import PromptStatus, SlugRecord, prompt_status, to_record

KIND = "sessions"  # document kind: the record of a slug
SESSION = "session"  # document kind of the launcher: the session of a schedule


class SlugRecords:
    """Reads and stores the records of slugs; `url` is the chat server."""

    def __init__(self, service: Service, *, url: str) -> None:
        self._service, self._url = service, url
        self.requested: dict[str, int] = {}  # when runs are due that edits requested, by slug

    async def rows(self) -> dict[str, ScheduleRow]:
        """Return the schedules of all slugs."""
        found = await self._service.schedules(ScheduleFilter(SOURCE))
        return {row.schedule_id: row for row in found}

    async def row(self, slug: str) -> ScheduleRow | None:
        """Return the schedule of a slug, if it belongs to this system."""
        found = await self._service.find(slug)
        return found if found is not None and found.source == SOURCE else None

    async def is_taken(self, slug: str) -> bool:
        """Return whether a schedule of another source has the id of a slug."""
        found = await self._service.find(slug)
        return found is not None and found.source != SOURCE

    async def documents(self) -> dict[str, DocumentRow]:
        """Return the documents of all records, by slug."""
        return {row.name: row for row in await self._service.list_documents(KIND)}

    async def one(self, slug: str) -> SlugRecord | None:
        """Return the record of a slug."""
        return to_record(await self._service.kept(KIND, slug))

    async def save(self, slug: str, record: SlugRecord) -> None:
        """Store the record of a slug; an unchanged one writes nothing."""
        await self._service.keep(KIND, slug, msgspec.to_builtins(record))
        self.requested.pop(slug, None)
        if record.awaited is not None:
            self.requested[slug] = parse_instant_ms(record.awaited)

    async def forget(self, slug: str) -> None:
        """Delete the record of a slug."""
        await self._service.forget(KIND, slug)
        self.requested.pop(slug, None)

    async def runs(self, slug: str) -> list[RunRow]:
        """Return the latest runs of a schedule."""
        return await self._service.runs(RunFilter(slug), limit=waiting_runs.LATEST)

    async def status(self, row: ScheduleRow, record: SlugRecord) -> PromptStatus:
        """Return the current status of a schedule."""
        runs, session_id = await self.runs(row.schedule_id), await self.session_of(row)
        return prompt_status(row, runs, record, session_id, now=self._service.clock.now())

    async def session_of(self, row: ScheduleRow) -> str | None:
        """Return the session that the runs of a schedule share."""
        stored = await self._service.kept(SESSION, row.schedule_id)
        body = stored.body if stored is not None and isinstance(stored.body, dict) else {}
        found = body.get("sessionId") if body.get("since") == row.created_at else None
        return found if isinstance(found, str) else None

    async def set_session(self, slug: str, session_id: object, *, since: int) -> None:
        """Send the next runs of a schedule to a session that was not created here."""
        own = {"sessionId": session_id, "url": self._url, "since": since}
        await self._service.keep(SESSION, slug, own)

    async def forget_session(self, slug: str) -> None:
        """Send the next run of a schedule to a new session."""
        await self._service.forget(SESSION, slug)
