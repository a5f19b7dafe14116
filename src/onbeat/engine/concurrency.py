"""Work that is done to its end, once it was begun."""

import asyncio
from collections.abc import Coroutine


async def finish_despite_cancel(work: Coroutine[object, object, None]) -> None:
    """Await all of `work`, however often the caller is cancelled meanwhile; then pass that on."""
    task, asked = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as cancelled:
            asked = cancelled
    task.result()
    if asked is not None:
        raise asked
