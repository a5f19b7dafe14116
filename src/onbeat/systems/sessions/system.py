"""Prompts that are sent to chat sessions by schedule: six calls, and a folder of JSON files.

A definition is `{prompt, enabled, schedule: {type, expression | intervalMinutes}, sessionConfig}`;
the calls answer as the routes under `/api/schedule` do, with the statuses and texts of those.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Literal, TypedDict

import msgspec
from msgspec.structs import replace

from onbeat.core.runs.run import Status
from onbeat.core.time.instants import rfc3339_ms
from onbeat.errors import InvalidSettings, NotAllowed
from onbeat.events import (
    DocumentForgotten,
    DocumentKept,
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
from onbeat.systems.base import PeriodicTask
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
from onbeat.systems.sessions.mirror import SESSION, FileMirror
from onbeat.systems.sessions.status import SlugRecord
from onbeat.systems.sessions.waiting_runs import in_hand, make_way

__all__ = [
    "OUTCOMES", "SLUG", "TIDIED_EVERY", "TIMEOUT", "PromptDefaults", "PromptFields", "PromptRefused", "Sessions",
    "broken_in",
]  # fmt: skip

log = logging.getLogger("onbeat.sessions")

EVERY = 1.0  # seconds between two looks at the files
TIDIED_EVERY = 60.0  # seconds
PATIENCE = 2.0  # seconds that whoever starts a run waits to hear of its session
LOOKS = 40  # in that time
DEFINED = ("prompt", "enabled", "schedule", "sessionConfig", *LIMITS)  # by the caller


class PromptLimits(TypedDict):
    """What a definition may have besides."""

    timeout_minutes: int | None
    rate_limit: dict[str, object] | None


class PromptFields(msgspec.Struct, frozen=True, rename="camel"):
    """A scheduled prompt: how it is defined, and where it stands. Times are in UTC."""

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
    """The system, beside a node: its calls, and what keeps its files in step with the store.

    `url` is where prompts are sent to, and `tidy` deletes sessions that were made for one run. Each
    call is for whoever asks: `service` is that of the caller.
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
        self._keeper = PeriodicTask("sessions", self.look, every=EVERY)
        self._tidying = PeriodicTask("chat sessions", tidy, every=TIDIED_EVERY)
        self._one_at_a_time = asyncio.Lock()

    # -- beside a node

    async def begin(self) -> None:
        """Have the store be as the files say."""
        self._mirror.begin()
        try:
            await self.look()
        except OSError as broken:
            problem = f"{self._folder} cannot be used: {broken.strerror}"
            hint = "a folder that can be written to"
            raise InvalidSettings("sessions_folder", problem, hint=hint) from None
        self._keeper.begin()
        self._tidying.begin()

    def heard(self, at: int, events: Sequence[Event]) -> None:  # noqa: ARG002 - the events say when
        """Hear of what was committed: tell of errors, and have the files told the rest."""
        slugs = set()
        for event in events:
            match event:
                case RunRetrying(reason="lost"):
                    slugs.add(event.schedule_id)  # another node reattaches it
                case RunRetrying() | RunFailed() if event.schedule_id in self._mirror.slugs:
                    level = logging.WARNING if isinstance(event, RunRetrying) else logging.ERROR
                    told = event.error or event.reason
                    log.log(level, "[SCHEDULER] %s: %s", event.schedule_id, told)
                    slugs.add(event.schedule_id)
                case RunStarted() | RunSucceeded() | RunCanceled() | RunSkipped():
                    slugs.add(event.schedule_id)
                case SchedulePaused():
                    slugs.add(event.schedule_id)
                case DocumentKept() | DocumentForgotten() if event.kind == SESSION:
                    slugs.add(event.document)
                case _:
                    pass
        if slugs & self._mirror.slugs:
            self._mirror.hear(slugs & self._mirror.slugs)
            self._keeper.wake()
            self._tidying.wake()

    async def end(self) -> None:
        """Bring the files up to date, and stop."""
        await self._tidying.abandon()
        await self._keeper.end()
        try:
            await self.look()
        finally:
            self._mirror.is_on = False

    async def look(self) -> None:
        """Look at what has changed in the files and in the store, and bring them in step."""
        async with self._one_at_a_time:
            await self._mirror.look()

    # -- the calls

    async def items(self, service: Service) -> list[PromptFields]:
        """Return all that whoever asks may see, by slug."""
        found = [await self._item(row) for row in await service.schedules(ScheduleFilter(SOURCE))]
        if service.caller.only_of is None:
            known = {item.slug for item in found}
            broken = await self._mirror.broken.all()
            found += [_broken(slug, why) for slug, why in broken.items() if slug not in known]
        return sorted(found, key=lambda item: item.slug)

    async def item(self, service: Service, slug: str) -> PromptFields:
        """Return one."""
        row = await self._find(service, check_slug(slug))
        if row is not None:
            return await self._item(row)
        is_for_all = service.caller.only_of is None  # files that say nothing have no owner
        broken = await self._mirror.broken.one(slug) if is_for_all else None
        if broken is None:
            raise _not_found(slug)
        return _broken(slug, broken)

    async def put(self, service: Service, slug: str, given: Fields) -> Fields:
        """Define a slug, or give it another definition: all of it is replaced."""
        check_slug(slug)
        _check_scope(service, "define")
        async with self._one_at_a_time:
            row = await self._mirror.refresh(slug)
            if row is None and (other := await service.find(slug)) is not None:
                whose = f"it is defined by {other.source or 'other means'}"
                raise PromptRefused(409, f"Schedule exists elsewhere: {slug}", hint=whose)
            is_own = row is not None or service.caller.only_of is None
            if not is_own and await self._mirror.broken.one(slug) is not None:
                # A file that cannot be used has no owner, as one that `delete` leaves.
                raise NotAllowed(f"{slug} is another owner's", hint="take another name")
            is_new = await self._define(service, slug, row, given)
            item = await self.item(service, slug)
        return {"slug": slug, "nextRun": item.next_run, "created": is_new}

    async def patch(self, service: Service, slug: str, given: Fields) -> Fields:
        """Change some of a definition; who may operate may enable and disable it."""
        check_slug(slug)
        given = {name: value for name, value in given.items() if name in DEFINED}
        _check_scope(service, "define" if given.keys() - {"enabled"} else "operate")
        if not given:
            raise PromptRefused(400, "there is nothing to change", hint=", ".join(DEFINED))
        async with self._one_at_a_time:
            await self._mirror.refresh(slug)
            row = await self._find(service, slug)
            enabled = is_enabled(given)
            stays_off = row is not None and not (enabled and "enabled" in given)
            await self._refuse_corrupt(
                service,
                row,
                slug,
                definition="refusing partial update",
                last_run="" if stays_off else "cannot re-enable",
            )
            if row is None:
                raise _not_found(slug)
            known = await self._mirror.known(slug)
            if given.keys() - {"enabled"}:
                now_said = self._mirror.definition(row, known)
                await self._define(service, slug, row, _merged(now_said, given))
            else:
                await self._mirror.set_enabled(service, row, known, enabled=enabled)
                await self._mirror.mind_runs(slug)
                await self._mirror.refresh(slug)
            item = await self.item(service, slug)
        return {"slug": slug, "enabled": item.enabled, "nextRun": item.next_run}

    async def delete(self, service: Service, slug: str) -> Fields:
        """Take one away, with its files; one that is not there is gone already."""
        check_slug(slug)
        _check_scope(service, "define")
        async with self._one_at_a_time:
            is_there = await self._find(service, slug) is not None
            if is_there:
                await service.delete(slug)
            # A folder that says nothing has no owner.
            is_left = service.caller.only_of is None and await self._service.find(slug) is None
            if is_there or is_left:
                await self._mirror.drop(slug)
        return {"success": True}

    async def run(self, service: Service, slug: str) -> Fields:
        """Start a run now, whatever the time is, and whether it is enabled or not.

        One that is being sent, or is to be for the first time, is the answer: there is no other.
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
            run = await in_hand(service, slug)
            if run is None:
                await make_way(service, slug)
                run = await service.start(slug)
        return {"slug": slug, "status": "running", "sessionId": await self._session_of(row, run)}

    # -- below them

    async def _define(
        self, service: Service, slug: str, row: ScheduleRow | None, given: Fields
    ) -> bool:
        """Define a slug and have its files say so; return whether it is new."""
        now, known = self._service.clock.now(), await self._mirror.known(slug)
        before = known.definition if known is not None else {}
        stamp = rfc3339_ms(now)
        made = before.get("createdAt", stamp) if row is not None else stamp
        definition: Fields = {
            "slug": slug,
            "prompt": given.get("prompt"),
            "enabled": is_enabled(given),
            "schedule": given.get("schedule"),
            "sessionConfig": {} if (own := given.get("sessionConfig")) is None else own,
        }
        definition |= {name: given[name] for name in LIMITS if given.get(name) is not None}
        if row is not None:  # what somebody has put into the file is theirs
            known_here = (*definition, *LIMITS)
            definition |= {name: value for name, value in before.items() if name not in known_here}
        definition |= {"createdAt": made, "updatedAt": stamp}
        first = await self._mirror.begins_at(row, before, definition)
        schedule = read_definition(slug, definition, self._defaults, begins_at=first, now=now)
        enabled = is_enabled(definition)
        persists = is_persistent(definition)
        definition["sessionConfig"] = {"persistSession": persists} | _config(definition)
        (done,) = await service.define(
            [schedule],
            source=SOURCE,
            user_id=row.user_id if row is not None else "",
            beginnings={slug: InitialPosition(paused=not enabled)},
            expected={slug: None} if row is None else {},
        )
        found = await service.schedule(slug)
        await self._mirror.set_enabled(service, found, known, enabled=enabled)
        if known is None or row is None:
            known = SlugRecord(definition)
        else:
            known = replace(known.with_definition(definition), held=None)
        await self._mirror.keep(slug, known)
        self._mirror.slugs.add(slug)
        await self._mirror.mind_runs(slug)
        known = await self._mirror.known(slug) or known
        await self._mirror.tell(await service.schedule(slug), known)
        return done.change == "created"

    async def _find(self, service: Service, slug: str) -> ScheduleRow | None:
        row = await service.find(slug)
        return row if row is not None and row.source == SOURCE else None

    async def _item(self, row: ScheduleRow) -> PromptFields:
        known = await self._mirror.known(row.schedule_id)
        definition = self._mirror.definition(row, known)
        stands = await self._mirror.standing(row, known or SlugRecord(definition))
        schedule, made, edited = (
            definition.get(name) for name in ("schedule", "createdAt", "updatedAt")
        )
        ran = {name: None if value is None else str(value) for name, value in stands.ran.items()}
        broken = self._mirror.why_held(row, known)
        return PromptFields(
            slug=row.schedule_id,
            prompt=str(definition["prompt"]),
            enabled=is_enabled(definition) and not broken,
            schedule=schedule if isinstance(schedule, dict) else {},
            session_config=_config(definition),
            last_run=ran["lastRun"],
            last_result=ran["lastResult"],
            last_error=broken or ran["lastError"],
            next_run=None if broken else stands.next_run,
            session_id=stands.session_id if is_persistent(definition) else None,
            created_at=made if isinstance(made, str) else None,
            updated_at=edited if isinstance(edited, str) else None,
            **_limits_in(definition),
        )

    async def _refuse_corrupt(
        self,
        service: Service,
        row: ScheduleRow | None,
        slug: str,
        *,
        definition: str,
        last_run: str,
    ) -> None:
        """Refuse what is corrupt, in these words; to an owner there is nothing but what is theirs.

        An empty text is for a file that does not matter.
        """
        if row is None and service.caller.only_of is not None:
            raise _not_found(slug)
        corrupt = self._mirror.corrupt.get(slug)
        if corrupt is None and row is None and (kept := await self._mirror.broken.one(slug)):
            corrupt = kept.corrupt  # the folder is another node's
        if corrupt is None:
            return
        if corrupt.name == DEFINITION:
            error = f"Schedule definition is {corrupt.kind}; {definition}: {slug}"
            raise PromptRefused(409, error, hint=corrupt.why)
        if last_run:
            error = f"Schedule last-run state is corrupt; {last_run}: {slug}"
            raise PromptRefused(409, error, hint=corrupt.why)

    async def _session_of(self, row: ScheduleRow, run: RunRow) -> str | None:
        """Return the session that a run is sent to, if that is known soon."""
        definition = self._mirror.definition(row, await self._mirror.known(row.schedule_id))
        for _ in range(LOOKS):
            if is_persistent(definition):
                found = await self._mirror.session_of(row)
                if found is not None:
                    return found
            run = await self._service.run(run.run_id)
            if run.external_id or (run.was_tried and run.status != Status.STARTED):
                break
            await asyncio.sleep(PATIENCE / LOOKS)
        result = run.result if isinstance(run.result, dict) else {}
        told = result.get("sessionId", run.external_id)
        return told if isinstance(told, str) else None


def _broken(slug: str, broken: Unscheduled) -> PromptFields:
    """Return what is shown of a slug whose files were broken when they were first seen."""
    said, ran = broken.definition, broken.last_run
    prompt, schedule = said.get("prompt"), said.get("schedule")
    made, edited = said.get("createdAt"), said.get("updatedAt")
    return PromptFields(
        slug=slug,
        prompt=prompt if isinstance(prompt, str) else "",
        enabled=False,
        schedule=schedule if isinstance(schedule, dict) else {},
        session_config=_config(said),
        last_run=_text(ran.get("lastRun")),
        last_result=_text(ran.get("lastResult")),
        last_error=str(broken.corrupt),
        next_run=None,
        session_id=_text(ran.get("sessionId")),
        created_at=_text(made),
        updated_at=_text(edited),
        **_limits_in(said),
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
    """Refuse who may not, before anything is looked at or done for them."""
    if not service.caller.may(scope):
        raise NotAllowed(f"this needs scope {scope}", hint=f"a token with scope {scope}")


def _config(definition: Fields) -> dict[str, object]:
    found = definition.get("sessionConfig")
    return dict(found) if isinstance(found, dict) else {}


def _merged(kept: Fields, given: Fields) -> Fields:
    """Return a definition with some of it replaced; of `sessionConfig` what is given."""
    config = given.get("sessionConfig")
    own = {"sessionConfig": _config(kept) | config} if isinstance(config, dict) else {}
    return kept | given | own
