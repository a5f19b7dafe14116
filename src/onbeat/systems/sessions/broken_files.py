"""Slugs whose files were broken when they were first seen: there is no schedule of them yet.

They are kept in the store, so that every node, the command line and `onbeat why` can say what is
wrong. They are answered as a schedule whose file was broken later is.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from onbeat.core.target import json_can_say
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

SHOWN: tuple[str, ...] = (
    "prompt", "schedule", "sessionConfig", "createdAt", "updatedAt", *LIMITS,
)  # fmt: skip
LONGEST_FIELD = 16 * 1024  # bytes of what is shown of a definition


class Unscheduled(msgspec.Struct, frozen=True):
    """A slug without a schedule: what is wrong, and what can be read of its files."""

    why: str
    where: str  # the file
    is_refused: bool = False
    source: str = SOURCE
    definition: Fields = msgspec.field(default_factory=dict)
    last_run: Fields = msgspec.field(default_factory=lambda: dict(NOT_RUN))

    @property
    def corrupt(self) -> Corrupt:
        """What is wrong, as of any file."""
        return Corrupt(self.where, self.why, is_refused=self.is_refused)


class BrokenFiles:
    """The slugs whose files are broken and that have no schedule, as the store has them."""

    def __init__(self, service: Service, files: Files) -> None:
        self._service, self._files = service, files

    async def all(self) -> dict[str, Unscheduled]:
        """Return those that are kept."""
        rows = await self._service.kept_all(BROKEN)
        found = {row.name: _read(row.body) for row in rows}
        return {slug: each for slug, each in found.items() if each is not None}

    async def one(self, slug: str) -> Unscheduled | None:
        """Return one, if it is kept."""
        row = await self._service.kept(BROKEN, slug)
        return None if row is None else _read(row.body)

    async def keep(self, corrupt: Mapping[str, Corrupt]) -> None:
        """Have these be kept, and no other."""
        kept = await self.all()
        for slug in sorted(kept.keys() - corrupt.keys()):
            await self._service.forget(BROKEN, slug)
        for slug, why in sorted(corrupt.items()):
            wanted = unscheduled(self._files, slug, why)
            if kept.get(slug) != wanted:
                await self._service.keep(BROKEN, slug, msgspec.to_builtins(wanted))


def unscheduled(files: Files, slug: str, why: Corrupt) -> Unscheduled:
    """Return what is kept of a slug whose files are broken."""
    there = files.read(slug)
    said = there.definition if isinstance(there.definition, dict) else {}
    shown = {name: said[name] for name in SHOWN if name in said and _can_be_kept(said[name])}
    ran: Fields = dict(NOT_RUN)
    if isinstance(there.last_run, dict):
        with suppress(InvalidSchedule):
            ran = {name: read_last_run(there.last_run)[name] for name in (*NOT_RUN, "sessionId")}
    return Unscheduled(why.why, why.name, why.is_refused, definition=shown, last_run=ran)


def _can_be_kept(value: object) -> bool:
    return json_can_say(value, DEEPEST) and len(msgspec.json.encode(value)) <= LONGEST_FIELD


def broken_in(folder: Path, defaults: PromptDefaults, *, now: int) -> dict[str, str]:
    """Return what is wrong with the files of a folder, by slug. It only reads."""
    files, found = Files(folder), {}
    for slug in files.stamps():
        there = files.read(slug)
        if isinstance(there.definition, Corrupt):
            found[slug] = str(there.definition)
        elif isinstance(there.last_run, Corrupt):
            found[slug] = str(there.last_run)
        elif there.definition is not None:
            try:
                read_definition(slug, there.definition, defaults, begins_at=now // 1000, now=now)
            except PromptRefused as refused:
                found[slug] = str(Corrupt(DEFINITION, str(refused), is_refused=True))
            try:
                read_last_run(there.last_run or {})
            except InvalidSchedule as refused:
                found[slug] = str(Corrupt(LAST_RUN, str(refused)))
    return found


def _read(body: object) -> Unscheduled | None:
    try:
        found = msgspec.convert(body, Unscheduled)
    except msgspec.ValidationError:
        return None
    return found if found.source == SOURCE else None
