"""Work that is completed once it has begun, even if it is cancelled."""

import asyncio
from collections.abc import Coroutine


async def finish_despite_cancel(work: Coroutine[object, object, None]) -> None:
    """Await `work` to its end even if the caller is cancelled meanwhile; then raise that."""
    task, cancellation = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as cancelled:
            cancellation = cancelled
    task.result()
    if cancellation is not None:
        raise cancellation
