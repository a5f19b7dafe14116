"""What `onbeat up --file` does as long as it is up: it applies the file whenever it changes."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from onbeat.app.launchers import check_target
from onbeat.cli.apply import Wish
from onbeat.errors import ChangedSince, InvalidFile, OnbeatError, StoreFailed
from onbeat.service.service import Service
from onbeat.sources.watch import A_MOMENT, Watched, watch
from onbeat.sources.yaml import read_file

log = logging.getLogger("onbeat.files")


@asynccontextmanager
async def kept_applied(
    service: Service,
    watched: Watched | None,
    wish: Wish,
    *,
    pause: Callable[[], Awaitable[None]] = A_MOMENT,
) -> AsyncIterator[None]:
    """Apply a file, if there is one, whenever it has changed."""
    if watched is None:
        yield
        return
    path = watched.path
    watching = asyncio.create_task(
        watch(watched, lambda: apply_again(service, path, wish), pause=pause)
    )
    try:
        yield
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


async def apply_again(service: Service, path: Path, wish: Wish) -> bool:
    """Apply a file that has changed, or say in the log why not; return whether that was all.

    A file that is wrong changes nothing, and is left until it changes again.
    """
    try:
        file = await asyncio.to_thread(read_file, path, check_target)
        changes = await wish.plan(service, file, horizon=0)
        done = await service.apply(changes)
    except InvalidFile as refused:
        _tell_mistakes(refused)
    except (StoreFailed, ChangedSince) as broken:
        log.warning("%s will be applied in a moment: %s", path, broken)
        return False
    except OnbeatError as refused:
        log.error("%s was not applied: %s", path, refused)  # noqa: TRY400 - a person reads it
    except Exception:
        log.exception("%s was not applied", path)
    else:
        counted = Counter[str](each.change for each in done)
        counted |= Counter(removed=len(changes.removed), kept=len(changes.of("keep")))
        told = ", ".join(f"{n} {what}" for what, n in counted.items())
        extra = {"event": "file.applied", "told": {"file": str(path), **counted}}
        log.info("%s was applied: %s", path, told or "it defines nothing", extra=extra)
    return True


def _tell_mistakes(refused: InvalidFile) -> None:
    """Log each mistake in a file, and that nothing of it holds."""
    lines = str(refused).splitlines()
    for line, each in zip(lines, refused.mistakes, strict=True):
        told = {"file": refused.path, **each._asdict()}
        log.error("%s", line, extra={"event": "file.mistake", "told": told})
    extra = {"event": "file.refused", "told": {"file": refused.path, "mistakes": len(lines)}}
    log.error("%s was not applied: nothing was changed", refused.path, extra=extra)
