"""Slugs without a schedule: their files were broken when they were first read.

They are recorded in the store, so that every node, the command line and `onbeat why` can report the
problem. The API shows them like a schedule whose file broke later.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from onbeat.core.target import is_json_value
from onbeat.errors import InvalidSchedule
from onbeat.ports.rows import BROKEN
from onbeat.service.service import Service
from onbeat.systems.sessions.definitions import (
    DEEPEST,
    LIMITS,
    SOURCE,
    Fields,
    PromptDefaults,
    PromptRefused,
    read_definition,
)
from onbeat.systems.sessions.files import DEFINITION, LAST_RUN, Corrupt, Files
from onbeat.systems.sessions.status import NOT_RUN, read_last_run

SHOWN_FIELDS: tuple[str, ...] = (
    "prompt", "schedule", "sessionConfig", "createdAt", "updatedAt", *LIMITS,
)  # fmt: skip
LONGEST_FIELD = 16 * 1024  # bytes; longer fields of a broken definition are not stored


class Unscheduled(msgspec.Struct, frozen=True):
    """A slug without a schedule: the problem, and the readable fields of its files."""

    why: str
    where: str  # the file
    is_refused: bool = False
    source: str = SOURCE
    definition: Fields = msgspec.field(default_factory=dict)
    last_run: Fields = msgspec.field(default_factory=lambda: dict(NOT_RUN))

    @property
    def corrupt(self) -> Corrupt:
        """The problem, as `Files` reports it."""
        return Corrupt(self.where, self.why, is_refused=self.is_refused)


class BrokenFiles:
    """The stored records of slugs whose files are broken and that have no schedule."""

    def __init__(self, service: Service, files: Files) -> None:
        self._service, self._files = service, files

    async def all(self) -> dict[str, Unscheduled]:
        """Return all records, by slug."""
        rows = await self._service.list_documents(BROKEN)
        found = {row.name: _read(row.body) for row in rows}
        return {slug: each for slug, each in found.items() if each is not None}

    async def one(self, slug: str) -> Unscheduled | None:
        """Return the record of a slug, or None."""
        row = await self._service.kept(BROKEN, slug)
        return None if row is None else _read(row.body)

    async def replace_all(self, corrupt: Mapping[str, Corrupt]) -> None:
        """Store records of exactly these slugs, and delete all others."""
        stored = await self.all()
        for slug in sorted(stored.keys() - corrupt.keys()):
            await self._service.forget(BROKEN, slug)
        for slug, why in sorted(corrupt.items()):
            wanted = unscheduled(self._files, slug, why)
            if stored.get(slug) != wanted:
                await self._service.keep(BROKEN, slug, msgspec.to_builtins(wanted))


def unscheduled(files: Files, slug: str, why: Corrupt) -> Unscheduled:
    """Return the record of a slug whose files are broken."""
    folder = files.read(slug)
    fields = folder.definition if isinstance(folder.definition, dict) else {}
    names = [name for name in SHOWN_FIELDS if name in fields and _is_storable(fields[name])]
    last_run: Fields = dict(NOT_RUN)
    if isinstance(folder.last_run, dict):
        with suppress(InvalidSchedule):
            read = read_last_run(folder.last_run)
            last_run = {name: read[name] for name in (*NOT_RUN, "sessionId")}
    shown = {name: fields[name] for name in names}
    return Unscheduled(why.why, why.name, why.is_refused, definition=shown, last_run=last_run)


def _is_storable(value: object) -> bool:
    return is_json_value(value, DEEPEST) and len(msgspec.json.encode(value)) <= LONGEST_FIELD


def broken_in(folder: Path, defaults: PromptDefaults, *, now: int) -> dict[str, str]:
    """Return the problems of the files in a folder, by slug, without changing anything."""
    files, found = Files(folder), {}
    for slug in files.stamps():
        contents = files.read(slug)
        if isinstance(contents.definition, Corrupt):
            found[slug] = str(contents.definition)
        elif isinstance(contents.last_run, Corrupt):
            found[slug] = str(contents.last_run)
        elif contents.definition is not None:
            try:
                read_definition(slug, contents.definition, defaults, begins_at=now // 1000, now=now)
            except PromptRefused as refused:
                found[slug] = str(Corrupt(DEFINITION, str(refused), is_refused=True))
            try:
                read_last_run(contents.last_run or {})
            except InvalidSchedule as refused:
                found[slug] = str(Corrupt(LAST_RUN, str(refused)))
    return found


def _read(body: object) -> Unscheduled | None:
    try:
        found = msgspec.convert(body, Unscheduled)
    except msgspec.ValidationError:
        return None
    return found if found.source == SOURCE else None
