"""Start, cancel, report and backfill runs."""

from collections.abc import Mapping

import msgspec

from onbeat.core.decide.backfill import Choice
from onbeat.core.runs.run import Accepted, Failed, StartedBy, Succeeded
from onbeat.core.schedule import from_definition
from onbeat.core.time.instants import rfc3339
from onbeat.errors import InvalidSchedule
from onbeat.ports.rows import BackfillStep, RunRow
from onbeat.service.commands import Commands

MOST_BACKFILLED = 10_000  # ticks in one request


class RunCommands(Commands):
    """The use cases that change runs."""

    async def start(
        self,
        schedule_id: str,
        *,
        inputs: Mapping[str, object] | None = None,
        request_id: str | None = None,
        triggered_by: StartedBy = "manual",
        note: str = "",
    ) -> RunRow:
        """Start a manual run now. A repeated `request_id` returns the same run.

        A system that starts a run passes its cause as `triggered_by`, and details as `note`.
        """
        self._needs("operate")
        run = await self._store.enqueue(
            schedule_id,
            request_id=request_id or self._new_id(),
            inputs=inputs,
            triggered_by=triggered_by,
            note=note,
        )
        self._wake()
        wanted = msgspec.json.decode(msgspec.json.encode(inputs)) if inputs else {}
        stored = run.inputs or {}
        if any(name not in stored or stored[name] != value for name, value in wanted.items()):
            problem = f"run {run.run_id} has this request id, but other inputs"
            raise InvalidSchedule("request_id", problem, hint="another request id")
        return run

    async def cancel(self, run_id: int, *, note: str = "") -> RunRow:
        """Cancel a run: a waiting one immediately, a started one as soon as its node can end it."""
        self._needs("operate")
        found = await self._store.cancel(run_id, note=note)
        self._wake()
        return found

    async def report(
        self, run: int | str, outcome: Succeeded | Failed | Accepted, *, external_id: str = ""
    ) -> RunRow:
        """Record the report of a target about an accepted run, given by its id or key."""
        self._needs("operate")
        found = await self._store.report(run, outcome, external_id=external_id)
        self._wake()
        return found

    async def preview_backfill(self, schedule_id: str, *, first: int, last: int) -> list[Choice]:
        """Return what a backfill from `first` to `last` would do with each tick."""
        self._needs("read")
        await self._check_range(schedule_id, first, last)
        return await self._store.preview_backfill(
            schedule_id, first=first, last=last, limit=MOST_BACKFILLED
        )

    async def backfill(self, schedule_id: str, *, first: int, last: int) -> BackfillStep:
        """Run past ticks, up to a limit; the result has in `following` where to continue."""
        self._needs("operate")
        await self._check_range(schedule_id, first, last)
        found = await self._store.backfill(
            schedule_id, first=first, last=last, limit=MOST_BACKFILLED
        )
        self._wake()
        return found

    async def _check_range(self, schedule_id: str, first: int, last: int) -> None:
        row = await self.schedule(schedule_id)
        trigger = from_definition(schedule_id, row.definition).trigger
        if last < first:
            problem = f"{rfc3339(last)} is before {rfc3339(first)}"
            raise InvalidSchedule("backfill", problem, hint="the earlier time first")
        count = len(trigger.between(first, last + 1))
        if count > MOST_BACKFILLED:
            hint = f"{MOST_BACKFILLED} at most: choose a shorter range"
            raise InvalidSchedule("backfill", f"the range has {count} ticks", hint=hint)
