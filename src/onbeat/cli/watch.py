"""`onbeat up --file`: apply the file again whenever it changes."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from onbeat.app.parts import check_target
from onbeat.cli.apply import ApplyOptions
from onbeat.errors import InvalidFile, OnbeatError, RevisionConflict, StoreFailed
from onbeat.service.service import Service
from onbeat.sources.watch import ONE_SECOND, WatchedFile, watch
from onbeat.sources.yaml import read_file

log = logging.getLogger("onbeat.host")


@asynccontextmanager
async def kept_applied(
    service: Service,
    watched: WatchedFile | None,
    options: ApplyOptions,
    *,
    pause: Callable[[], Awaitable[None]] = ONE_SECOND,
) -> AsyncIterator[None]:
    """Apply a file, if one is given, whenever it changes."""
    if watched is None:
        yield
        return
    path = watched.path
    watching = asyncio.create_task(
        watch(watched, lambda: apply_again(service, path, options), pause=pause)
    )
    try:
        yield
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


async def apply_again(service: Service, path: Path, options: ApplyOptions) -> bool:
    """Apply a file that has changed, or log why not; return False if it should be tried again.

    A file with mistakes changes nothing, and is not read again until it changes.
    """
    try:
        file = await asyncio.to_thread(read_file, path, check_target)
        changes = await options.plan(service, file, horizon=0)
        done = await service.apply(changes)
    except InvalidFile as refused:
        _log_mistakes(refused)
    except (StoreFailed, RevisionConflict) as broken:
        log.warning("%s: the changed file is not applied yet, will be retried: %s", path, broken)
        return False
    except OnbeatError as refused:
        log.error("%s: the file is not applied: %s", path, refused)  # noqa: TRY400 - no trace: it is a mistake
    except Exception:
        log.exception("%s: the file is not applied", path)
    else:
        counted = Counter[str](each.change for each in done)
        counted |= Counter(removed=len(changes.removed), kept=len(changes.of("keep")))
        summary = ", ".join(f"{n} {what}" for what, n in counted.items())
        extra = {"event": "file.applied", "fields": {"file": str(path), **counted}}
        log.info(
            "%s: the file is applied: %s", path, summary or "it defines no schedules", extra=extra
        )
    return True


def _log_mistakes(refused: InvalidFile) -> None:
    """Log each mistake in a file, and that nothing was changed."""
    lines = str(refused).splitlines()
    for line, each in zip(lines, refused.mistakes, strict=True):
        fields = {"file": refused.path, **each._asdict()}
        log.error("%s", line, extra={"event": "file.mistake", "fields": fields})
    extra = {"event": "file.refused", "fields": {"file": refused.path, "mistakes": len(lines)}}
    log.error("%s: the file is not applied: nothing was changed", refused.path, extra=extra)
