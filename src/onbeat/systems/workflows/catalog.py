"""The stored DAGs: list, read and delete them, with the schedules that use them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from onbeat.core.schedule import from_definition
from onbeat.core.time.instants import rfc3339_ms
from onbeat.errors import (
    InvalidSchedule,
    NoSuchSchedule,
    NoSuchWorkflow,
    NotAllowed,
    WorkflowIsUsed,
    quote_value,
)
from onbeat.ports.rows import ScheduleFilter, ScheduleRow
from onbeat.service.service import Service
from onbeat.systems.workflows.registrar import SOURCES, check_may
from onbeat.systems.workflows.store import (
    DagRow,
    DirectoryStore,
    WorkflowStore,
    check_text,
    check_workflow,
)

PAGE = 500  # schedules that are read together
MOST_LISTED = 1000


@dataclass(frozen=True, slots=True)
class _Use:
    """A schedule that runs a version of a workflow for a user."""

    row: ScheduleRow
    version: int
    user_id: str


class Catalog:
    """The workflows of one caller; a version has one DAG for each owner, or one for all users."""

    def __init__(self, service: Service, store: WorkflowStore) -> None:
        self._service, self._store = service, store

    async def list_workflows(
        self,
        *,
        workflow_id: str | None = None,
        user_id: str | None = None,
        after: str = "",
        limit: int = 100,
    ) -> dict[str, object]:
        """Return versions of workflows by name, and `next`: where the next page begins, or None."""
        check_may(self._service, "read")
        if type(limit) is not int or not 1 <= limit <= MOST_LISTED:
            problem = f"{quote_value(limit)} is not a valid number"
            raise InvalidSchedule("limit", problem, hint=f"1 to {MOST_LISTED}")
        if workflow_id is not None:
            check_text("workflow_id", workflow_id)
        found: list[DagRow] = []
        async for row in self._rows(workflow_id, after=after):
            if user_id in (None, row.user_id):
                found.append(row)
            if len(found) > limit:
                break
        rest = found[limit - 1].name if len(found) > limit else None
        return {"workflows": [_fields_of(row) for row in found[:limit]], "next": rest}

    async def get_workflow(
        self, workflow_id: str, *, user_id: str | None = None
    ) -> dict[str, object]:
        """Return the versions of a workflow, each with the schedules that use it."""
        check_may(self._service, "read")
        versions = await self._versions(workflow_id, None, user_id)
        uses = await self._uses(workflow_id)
        listed = [
            {
                **_fields_of(row),
                "schedules": [use.row.schedule_id for use in _uses_of(row, uses, versions)],
            }
            for row in versions
        ]
        return {"workflow_id": workflow_id, "versions": listed}

    async def get_version(
        self, workflow_id: str, version: int, *, user_id: str | None = None
    ) -> dict[str, object]:
        """Return one version of a workflow: its DAG, and the schedules that use it."""
        check_may(self._service, "read")
        (row,) = _only(await self._versions(workflow_id, version, user_id), workflow_id)
        dag = await self._store.load_dag(workflow_id, version, users=[row.user_id])
        if dag is None:  # deleted since
            raise NoSuchWorkflow(workflow_id, version)
        every = await self._versions(workflow_id, version, None)
        uses = _uses_of(row, await self._uses(workflow_id), every)
        return {**_fields_of(row), "schedules": [use.row.schedule_id for use in uses], "dag": dag}

    async def delete_workflow(
        self,
        workflow_id: str,
        version: int | None = None,
        *,
        user_id: str | None = None,
        cascade: bool = False,
    ) -> dict[str, object]:
        """Delete a version of a workflow, or all of them; return what was deleted.

        If schedules use it, it is refused with their ids. With `cascade` those of this system are
        deleted first; a schedule that is defined elsewhere stays, and so does the DAG. Nothing is
        deleted if the caller may not delete one of them. A schedule that is defined concurrently
        finds no DAG: its runs fail as `invalid_target`.
        """
        check_may(self._service, "define")
        versions = await self._versions(workflow_id, version, user_id)
        if version is not None:
            _only(versions, workflow_id)
        self._check_may_delete(versions)
        every = await self._versions(workflow_id, version, None)
        uses = await self._uses(workflow_id)
        used = {
            use.row.schedule_id: use.row for row in versions for use in _uses_of(row, uses, every)
        }
        blocking = [
            name for name, row in sorted(used.items()) if not cascade or row.source not in SOURCES
        ]
        if blocking:
            raise WorkflowIsUsed(workflow_id, blocking, cascade=cascade)
        await self._service.check_changes(list(used.values()))
        for name in sorted(used):
            with suppress(NoSuchSchedule):  # deleted concurrently
                await self._service.delete(name)
        deleted = [
            row
            for row in versions
            if await self._store.delete_dag(row.workflow_id, row.version, user_id=row.user_id)
        ]
        return {"deleted": [_fields_of(row) for row in deleted], "schedules": sorted(used)}

    async def _versions(
        self, workflow_id: str, version: int | None, user_id: str | None
    ) -> list[DagRow]:
        """Return the stored versions of a workflow, or raise NoSuchWorkflow."""
        check_workflow(workflow_id, 0 if version is None else version)
        found = [
            row
            async for row in self._rows(workflow_id)
            if version in (None, row.version) and user_id in (None, row.user_id)
        ]
        if not found:
            raise NoSuchWorkflow(workflow_id, version)
        return sorted(found, key=lambda row: (row.version, row.user_id))

    async def _rows(self, workflow_id: str | None, *, after: str = "") -> AsyncIterator[DagRow]:
        if self._service.caller.only_owner is not None and isinstance(self._store, DirectoryStore):
            return  # files have no owner
        while rows := await self._store.list_dags(workflow_id=workflow_id, after=after, limit=PAGE):
            for row in rows:
                yield row
            if len(rows) < PAGE:
                return
            after = rows[-1].name

    async def _uses(self, workflow_id: str) -> list[_Use]:
        """Return the schedules that run a workflow, of any source, by id."""
        part = msgspec.json.encode(workflow_id).decode()[1:-1]  # as encoded in a definition
        found: list[_Use] = []
        after = ""
        while rows := await self._service.schedules(
            ScheduleFilter(search=part), after=after, limit=PAGE
        ):
            for row in rows:
                try:
                    target = from_definition(row.schedule_id, row.definition).target
                except InvalidSchedule:  # unreadable schedules run nothing
                    continue
                fields = target.fields
                if target.kind == "workflow" and fields.get("workflow") == workflow_id:
                    version = fields.get("version")
                    assert isinstance(version, int), "it was checked when it was defined"
                    found.append(_Use(row, version, str(fields.get("user_id"))))
            after = rows[-1].schedule_id
        return found

    def _check_may_delete(self, rows: Sequence[DagRow]) -> None:
        owner = self._service.caller.only_owner
        if owner is not None and any(row.user_id != owner for row in rows):
            raise NotAllowed("this workflow belongs to another user", hint=f"user_id: {owner}")


def _uses_of(row: DagRow, uses: Sequence[_Use], every: Sequence[DagRow]) -> list[_Use]:
    """Return the uses of a DAG; a schedule uses that of its user, its owner, or all users."""
    owners = {each.user_id for each in every if each.version == row.version}
    found = []
    for use in uses:
        first = [each for each in (use.user_id, use.row.user_id, "") if each in owners]
        if use.version == row.version and first and first[0] == row.user_id:
            found.append(use)
    return found


def _only(found: Sequence[DagRow], workflow_id: str) -> Sequence[DagRow]:
    if len(found) > 1:
        problem = f"several users have a workflow {quote_value(workflow_id)}"
        users = ", ".join(quote_value(row.user_id) for row in found[:5])
        raise InvalidSchedule("user_id", problem, hint=f"one of {users}")
    return found


def _fields_of(row: DagRow) -> dict[str, object]:
    return {
        "workflow_id": row.workflow_id,
        "version": row.version,
        "user_id": row.user_id or None,
        "updated_at": rfc3339_ms(row.updated_at),
    }
