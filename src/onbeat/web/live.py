"""Live streams: events as server-sent events that can be resumed, and the output of runs."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from onbeat.errors import StoreFailed
from onbeat.events import Event
from onbeat.ports.rows import EventRow, RunRow
from onbeat.service.serialize import event_fields
from onbeat.service.service import Service

LOOK_EVERY = 0.5  # seconds between queries without a notification
SOONEST = 0.05  # minimum seconds between queries
KEEP_ALIVE = 15.0  # seconds without an event after which a comment is sent
LOOK_BACK = 10_000  # milliseconds: older rows are complete, unless a transaction is still open
MOST_SENT = 10_000  # event rows that are remembered until all rows before them are complete
BATCH = 50  # transactions, each with the events of up to some hundred runs
MOST_STREAMS, MOST_STREAMS_OF_CALLER = 100, 20
AUTHORIZE_EVERY = 2.5  # seconds between authorization checks, whose result may be 2 s old
CHUNK = 64 * 1024

T = TypeVar("T")


class EventStreams:
    """The open streams, and a signal that there may be something new to send."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._happened = asyncio.Event()
        self._open, self._by_caller = 0, Counter[str]()
        self._closed = False

    def wake(self, at: int, events: Sequence[Event]) -> None:  # noqa: ARG002 - a listener's signature
        """Wake the streams after a commit of this process. Callable from any thread."""
        with suppress(RuntimeError):  # the loop is closed, and so are all streams
            self._loop.call_soon_threadsafe(self._happened.set)

    def close(self) -> None:
        """End all streams, so that the server can stop."""
        self._closed = True
        self._happened.set()

    @property
    def is_closed(self) -> bool:
        """Whether all streams have to end."""
        return self._closed

    async def wait(self, seconds: float) -> None:
        """Wait until something may have happened, for at most `seconds`."""
        await asyncio.sleep(SOONEST)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._happened.wait(), seconds)
        if not self._closed:
            self._happened.clear()

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of streams is open."""
        return self._open >= MOST_STREAMS

    def is_full_for(self, name: str) -> bool:
        """Return whether this caller has its maximum number of streams open."""
        return self._by_caller[name] >= MOST_STREAMS_OF_CALLER

    @contextmanager
    def counted(self, name: str = "") -> Iterator[None]:
        """Count an open stream; one without a name counts only towards the total."""
        self._open += 1
        self._by_caller += Counter([name] if name else [])
        try:
            yield
        finally:
            self._open -= 1
            self._by_caller -= Counter([name] if name else [])


async def retry_store(call: Callable[[], Awaitable[T]], live: EventStreams) -> T:
    """Repeat a call until the store answers: a stream outlives an outage of the database.

    Once all streams have to end, the error is raised.
    """
    while True:
        try:
            return await call()
        except StoreFailed:
            if live.is_closed:
                raise
            await asyncio.sleep(LOOK_EVERY)


async def while_authorized(
    chunks: AsyncGenerator[bytes, None], is_still_authorized: Callable[[], Awaitable[bool]]
) -> AsyncIterator[bytes]:
    """Yield chunks while the caller is authorized, which is checked even if no chunk arrives."""
    loop = asyncio.get_running_loop()
    check_at = loop.time() + AUTHORIZE_EVERY
    next_chunk = asyncio.ensure_future(anext(chunks, None))
    try:
        while True:
            await asyncio.wait([next_chunk], timeout=max(0.0, check_at - loop.time()))
            if loop.time() >= check_at:
                with suppress(StoreFailed):  # unknown for now: checked again later
                    if not await is_still_authorized():
                        return
                check_at = loop.time() + AUTHORIZE_EVERY
            if next_chunk.done():
                chunk = next_chunk.result()
                if chunk is None:
                    return
                yield chunk
                next_chunk = asyncio.ensure_future(anext(chunks, None))
    finally:
        next_chunk.cancel()
        await asyncio.gather(next_chunk, return_exceptions=True)
        await chunks.aclose()


async def follow_events(
    service: Service,
    live: EventStreams,
    *,
    after: tuple[int, int] | None,
    is_wanted: Callable[[EventRow], bool],
) -> AsyncGenerator[bytes, None]:
    """Yield server-sent events: those after a given event, or those from now on.

    On a store that several nodes share, a row may appear after one with a greater number. So each
    query starts where rows are old enough to be complete, and excludes those already sent. A client
    that resumes receives shortly preceding events again, and drops the ids that it has seen.
    """
    now = service.clock.now()
    before = now - LOOK_BACK if service.is_shared else None
    low = await retry_store(lambda: service.newest_event(before=before), live)
    sent: set[int] = set()  # event rows that were sent
    if after is not None:
        low = after[0] - 1 if not service.is_shared else min(low, after[0] - 1)
    elif service.is_shared:
        recent = await retry_store(lambda: service.events(after=low, limit=10_000), live)
        sent = {row.event_id for row in recent}
    yield b"retry: 2000\n\n"
    quiet = 0.0
    while not live.is_closed:
        settled_at = service.clock.now() - LOOK_BACK if service.is_shared else None
        try:
            complete = await service.newest_event(before=settled_at)
            rows = await service.events(after=low, but=sent, limit=BATCH)
        except StoreFailed:
            await asyncio.sleep(LOOK_EVERY)
            continue
        for row in rows:
            was_sent = (
                after is not None and (row.event_id, row.n) <= after and not service.is_shared
            )
            if is_wanted(row) and not was_sent:
                yield _message(row)
                quiet = 0.0
        has_more = len({row.event_id for row in rows}) >= BATCH
        if not has_more:  # rows that the caller may not see need no second look either
            low = max(low, complete)
        if service.is_shared:
            sent |= {row.event_id for row in rows}
            low, sent = _advance(low, sent, complete)
        elif rows:
            low = max(low, rows[-1].event_id)
        del rows  # free the memory while this waits
        if has_more:
            continue
        await live.wait(LOOK_EVERY)
        quiet += LOOK_EVERY
        if quiet >= KEEP_ALIVE:
            yield b": nothing happened\n\n"
            quiet = 0.0


def _advance(low: int, sent: set[int], complete: int) -> tuple[int, set[int]]:
    """Return the row after which the next query starts, and the rows that it excludes.

    Up to `complete` no further row appears, and all that were sent are in order.
    """
    low = max([low, *(event_id for event_id in sent if event_id <= complete)])
    if len(sent) > MOST_SENT:  # a transaction is open for very long: its events are not sent
        low = max(low, sorted(sent)[MOST_SENT // 2])
    return low, {event_id for event_id in sent if event_id > low}


def _message(row: EventRow) -> bytes:
    fields = event_fields(row)
    body = msgspec.json.encode(fields).decode()
    return f"id: {fields.event_id}\nevent: {fields.name}\ndata: {body}\n\n".encode()


async def follow_output(
    path: Path, attempt: int, reload: Callable[[], Awaitable[RunRow]], live: EventStreams
) -> AsyncIterator[bytes]:
    """Yield the output file of an attempt as it grows, until the attempt or the run has ended."""
    position = 0
    while True:
        run = await reload()
        async for chunk in read_output(path, position):
            position += len(chunk)
            yield chunk
        if run.finished_at is not None or run.attempt > attempt or live.is_closed:
            return
        await live.wait(0.2)


async def read_output(path: Path, position: int = 0) -> AsyncIterator[bytes]:
    """Yield the content of a file from `position` on; nothing if it does not exist."""

    def read(start: int) -> bytes:
        try:
            with path.open("rb") as file:
                file.seek(start)
                return file.read(CHUNK)
        except OSError:
            return b""

    while chunk := await asyncio.to_thread(read, position):
        position += len(chunk)
        yield chunk
