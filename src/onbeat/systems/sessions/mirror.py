"""Keeps the files of scheduled prompts and the store in step.

The store is the truth. Edits of a file are applied to the store first, then files are written.
`reconcile_slug` decides what to do about a slug, `carry_out` does it; here is which slugs are
reconciled, and when.
"""

import asyncio
from collections.abc import Awaitable, Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from onbeat.errors import InvalidSchedule, NotAllowed, OnbeatError
from onbeat.ports.rows import DocumentRow, ScheduleRow
from onbeat.service.service import Service
from onbeat.systems.sessions import definitions
from onbeat.systems.sessions.broken_files import BrokenFiles
from onbeat.systems.sessions.carry_out import Seen, SlugExecutor
from onbeat.systems.sessions.definitions import PromptDefaults
from onbeat.systems.sessions.files import Files, Folder, Stamp
from onbeat.systems.sessions.kept_folder import KeptFolder
from onbeat.systems.sessions.reconcile_slug import (
    EMPTY,
    SlugState,
    drop,
    reconcile,
    refuse,
    start_requested_run,
    switch,
)
from onbeat.systems.sessions.slug_actions import Stage
from onbeat.systems.sessions.slug_problems import IntervalLimit, SlugProblems
from onbeat.systems.sessions.slug_records import SlugRecords
from onbeat.systems.sessions.status import SlugRecord, to_record

APART = 0.002  # seconds between two starts, since runs due in one millisecond have no order
LIMITED: tuple[Stage, ...] = ("files", "checks")  # stages that need the operator's minimum
MAY_BE_DELETED: tuple[Stage, ...] = ("checks", "runs")  # stages that need no schedule


class FileMirror:
    """Keeps the files of slugs and the store in step, one slug after the other."""

    def __init__(
        self, service: Service, files: Files, defaults: PromptDefaults, *, store_id: str, url: str
    ) -> None:
        self._service, self._files, self._defaults = service, files, defaults
        self.folder = KeptFolder(service, files, store_id=store_id)
        self.records = SlugRecords(service, url=url)
        self.broken = BrokenFiles(service, files)
        self.problems = SlugProblems(self.broken)
        self._limit, self._seen = IntervalLimit(defaults), Seen()
        self._executor = SlugExecutor(
            service,
            files,
            folder=self.folder,
            records=self.records,
            problems=self.problems,
            limit=self._limit,
            seen=self._seen,
        )

    @property
    def slugs(self) -> AbstractSet[str]:
        """The slugs with a schedule."""
        return self._seen.slugs

    def mark_changed(self, slugs: Collection[str]) -> None:
        """Have slugs reconciled next time, whatever else has changed."""
        self._seen.changed |= set(slugs)

    # -- all slugs

    async def reconcile(self) -> None:
        """Reconcile all slugs whose files or schedules have changed."""
        newest, now = await self._service.newest_event(), self._service.clock.now()
        seen = self._seen
        if not await self.folder.is_in_use():
            if newest != seen.newest_event:
                seen.slugs, seen.newest_event = set(await self.records.rows()), newest
            return
        if self.folder.is_filling:
            await asyncio.to_thread(self._files.create)
        stamps = await asyncio.to_thread(self._files.stamps)
        self.problems.check_folders(await asyncio.to_thread(self._files.misnamed))
        changed = self._take_changed(stamps, now)
        if newest == seen.newest_event and not changed and not self.folder.is_filling:
            return
        rows, records = await self.records.rows(), await self.records.documents()
        seen.slugs, corrupt = set(rows), set(self.problems.corrupt)
        slugs = sorted({*rows, *records, *stamps, *corrupt})
        unsettled = set(slugs) - set(rows) | corrupt
        follows = await asyncio.to_thread(self._files.followed, unsettled)
        for slug in definitions.in_order(slugs, follows):
            row, stored = rows.get(slug), records.get(slug)
            # The schedule that an unsettled slug follows may exist by now.
            if slug in changed or slug in follows or self._differs(slug, row, stored):
                await self._try(slug, self._reconcile_slug(slug, row, to_record(stored)))
        await self._start_requested_runs()
        await self.problems.store(self.slugs)
        await self.folder.claim(rows)
        seen.newest_event, seen.stamps = newest, stamps

    def _take_changed(self, stamps: Mapping[str, Stamp], now: int) -> set[str]:
        """Return the slugs that are marked, whose requested run is due, or whose files differ."""
        changed, self._seen.changed = self._seen.changed, set()
        changed |= {slug for slug, at in self.records.requested.items() if at <= now}
        return changed | {slug for slug, _ in stamps.items() ^ self._seen.stamps.items()}

    def _differs(self, slug: str, row: ScheduleRow | None, stored: DocumentRow | None) -> bool:
        """Return whether what is stored of a slug differs from what its files reflect."""
        if self._service.is_shared or self._seen.rows.get(slug) != row:
            return True
        return stored is not None if row is None else self.folder.is_to_fill(slug)

    async def _start_requested_runs(self) -> None:
        """Start the runs that edits of `nextRun` requested and that are due, in time order."""
        now = self._service.clock.now()
        requested = self.records.requested.items()
        for _, slug in sorted((at, slug) for slug, at in requested if at <= now):
            await self._try(slug, self._start_requested_run(slug))
            await asyncio.sleep(APART)

    async def _try(self, slug: str, step: Awaitable[None]) -> None:
        """Run a step for a slug; an error does not affect other slugs, and the step is repeated."""
        try:
            await step
        except (OnbeatError, OSError) as failed:
            self._retry_later(slug, failed)

    def _retry_later(self, slug: str, failed: Exception) -> None:
        self._seen.changed.add(slug)
        self.problems.retry(slug, failed)

    # -- one slug

    async def refresh(self, slug: str) -> ScheduleRow | None:
        """Reconcile one slug now; return its schedule."""
        if await self.folder.is_in_use():
            row, record = await self.records.row(slug), await self.records.one(slug)
            try:
                await self._reconcile_slug(slug, row, record)
            except OSError as broken:
                self._retry_later(slug, broken)
            await self.problems.store(self.slugs)
        return await self.records.row(slug)

    async def update_files(self, slug: str) -> None:
        """Write the stored state to the files, whatever they contain; retry later if need be."""
        self._seen.slugs.add(slug)
        if not self.folder.is_on:
            return
        row, record = await self._service.schedule(slug), await self.records.one(slug)
        state = await self._state("files", slug, EMPTY, row, record)
        actions = reconcile(replace(state, overwrites=True), "files")
        try:
            await self._executor.carry_out(slug, actions)
        except OSError as broken:
            self._retry_later(slug, broken)

    async def drop(self, slug: str) -> None:
        """Delete the record and the files of a slug without a schedule; retry later if need be."""
        try:
            await self._executor.carry_out(slug, drop())
        except OSError as broken:
            self._retry_later(slug, broken)
        await self.problems.store(self.slugs)

    async def switch(
        self, caller: Service, row: ScheduleRow, record: SlugRecord | None, *, enabled: bool
    ) -> None:
        """Enable or disable a schedule with the rights of a caller."""
        actions = switch(row, record, enabled=enabled)
        await self._executor.carry_out(row.schedule_id, actions, caller=caller)

    async def cancel_obsolete_runs(self, slug: str) -> None:
        """Cancel waiting runs that were overtaken, or created before the schedule was disabled."""
        await self._reconcile_from("runs", slug, EMPTY)

    async def _reconcile_slug(
        self, slug: str, row: ScheduleRow | None, record: SlugRecord | None
    ) -> None:
        """Apply edits of the files of a slug, and bring them up to date."""
        folder = await asyncio.to_thread(self._files.read, slug)
        state = await self._state("definition", slug, folder, row, record)
        actions = reconcile(state)
        try:
            stage = await self._executor.carry_out(slug, actions)
        except (InvalidSchedule, NotAllowed) as refused:  # by the store
            stage = await self._executor.carry_out(slug, refuse(state, str(refused)))
        if stage is not None:
            await self._reconcile_from(stage, slug, folder, now=state.now)

    async def _reconcile_from(
        self, first: Stage, slug: str, folder: Folder, *, now: int | None = None
    ) -> None:
        """Decide and act, stage by stage; before each the schedule and its record are read."""
        stage: Stage | None = first
        while stage is not None:
            if stage == "files":
                self._seen.slugs.add(slug)
                stage = stage if self.folder.is_on else "checks"
            row, record = await self.records.row(slug), await self.records.one(slug)
            if row is None and stage not in MAY_BE_DELETED:
                row = await self._service.schedule(slug)  # raises NoSuchSchedule
            state = await self._state(stage, slug, folder, row, record, now=now)
            stage = await self._executor.carry_out(slug, reconcile(state, stage))

    async def _start_requested_run(self, slug: str) -> None:
        row, record = await self.records.row(slug), await self.records.one(slug)
        state = await self._state("runs", slug, EMPTY, row, record)
        await self._executor.carry_out(slug, start_requested_run(state))

    async def _state(
        self,
        stage: Stage,
        slug: str,
        folder: Folder,
        row: ScheduleRow | None,
        record: SlugRecord | None,
        *,
        now: int | None = None,
    ) -> SlugState:
        """Return what a stage is decided from; only what it needs is read."""
        now = self._service.clock.now() if now is None else now
        is_first, is_written = stage == "definition", stage == "files"
        is_held = record is not None and record.held is not None
        needs_limit = stage in LIMITED or (is_first and is_held)
        return SlugState(
            slug=slug,
            now=now,
            folder=folder,
            row=row,
            record=record,
            defaults=self._defaults,
            is_taken=is_first and row is None and await self.records.is_taken(slug),
            is_to_fill=row is not None and self.folder.is_to_fill(slug),
            is_removed=is_first and bool(row) and await self._is_removed(slug, folder, record),
            is_broken=slug in self.problems.corrupt,
            too_often=self._limit.error_of(row, now=now) if row and needs_limit else None,
            runs=await self.records.runs(slug) if is_written else (),
            session_id=await self.records.session_of(row) if row and is_written else None,
        )

    async def _is_removed(self, slug: str, folder: Folder, record: SlugRecord | None) -> bool:
        """Return whether the user removed the folder of a slug, and not the folder of all."""
        if folder.definition is not None or record is None or not record.is_written:
            return False
        is_gone = not await asyncio.to_thread(self._files.has, slug)
        return is_gone and await self.folder.is_in_use() and not self.folder.is_filling
