"""What happens while somebody listens: events as a stream that can be resumed, and live output."""

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

LOOK_EVERY = 0.5  # seconds between looks, when nothing is known to have happened
SOONEST = 0.05  # seconds between looks at a busy store
KEEP_ALIVE = 15.0  # seconds after which a listener hears that there is nothing to hear
LOOK_BACK = 10_000  # milliseconds: what is older is complete, but for transactions still open
MOST_SENT = 10_000  # event rows that are remembered until all before them are complete
AT_ONCE = 50  # transactions, each of which may tell of some hundred runs
MOST_LISTENERS, MOST_OF_ONE = 100, 20
WELCOME_EVERY = 2.5  # seconds between looks whether who listens may; what is found is 2 s old
CHUNK = 64 * 1024

T = TypeVar("T")


class EventStreams:
    """Who listens, and whether something has happened that they may want to look at."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._happened = asyncio.Event()
        self._listeners, self._of = 0, Counter[str]()
        self._closed = False

    def heard(self, at: int, events: Sequence[Event]) -> None:  # noqa: ARG002 - as listeners are called
        """Have listeners look: something was committed by this process. Any thread may call it."""
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._happened.set)

    def close(self) -> None:
        """Let all who listen go, so that the server can stop."""
        self._closed = True
        self._happened.set()

    @property
    def is_closed(self) -> bool:
        """Whether nobody is to wait any more."""
        return self._closed

    async def wait(self, seconds: float) -> None:
        """Wait until something may have happened, for so long at most."""
        await asyncio.sleep(SOONEST)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._happened.wait(), seconds)
        if not self._closed:
            self._happened.clear()

    @property
    def is_full(self) -> bool:
        """Whether as many listen as there may: one has to leave before another can."""
        return self._listeners >= MOST_LISTENERS

    def has_enough(self, name: str) -> bool:
        """Return whether this one listens as often as one may: others are to have places, too."""
        return self._of[name] >= MOST_OF_ONE

    @contextmanager
    def listening(self, name: str = "") -> Iterator[None]:
        """Count a listener for as long as it listens; without a name, only as one of all."""
        self._listeners += 1
        self._of += Counter([name] if name else [])
        try:
            yield
        finally:
            self._listeners -= 1
            self._of -= Counter([name] if name else [])


async def patiently(call: Callable[[], Awaitable[T]], live: EventStreams) -> T:
    """Ask the store until it answers: a stream outlives a database that is away for a while.

    The error is raised once all who listen are let go.
    """
    while True:
        try:
            return await call()
        except StoreFailed:
            if live.is_closed:
                raise
            await asyncio.sleep(LOOK_EVERY)


async def while_welcome(
    chunks: AsyncGenerator[bytes, None], still_welcome: Callable[[], Awaitable[bool]]
) -> AsyncIterator[bytes]:
    """Yield what there is to hear, which may be nothing, for as long as who listens is welcome."""
    loop = asyncio.get_running_loop()
    looks_at = loop.time() + WELCOME_EVERY
    coming = asyncio.ensure_future(anext(chunks, None))
    try:
        while True:
            await asyncio.wait([coming], timeout=max(0.0, looks_at - loop.time()))
            if loop.time() >= looks_at:
                with suppress(StoreFailed):  # it is not known now: looked at again
                    if not await still_welcome():
                        return
                looks_at = loop.time() + WELCOME_EVERY
            if coming.done():
                chunk = coming.result()
                if chunk is None:
                    return
                yield chunk
                coming = asyncio.ensure_future(anext(chunks, None))
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
        await chunks.aclose()


async def follow_events(
    service: Service,
    live: EventStreams,
    *,
    after: tuple[int, int] | None,
    is_wanted: Callable[[EventRow], bool],
) -> AsyncGenerator[bytes, None]:
    """Yield events as server-sent ones, from after one of them, or from now on.

    On a store that several nodes share, a row may appear after one with a greater number. So each
    look goes back to what is old enough to be complete, and leaves out what was sent already;
    whoever resumes gets what came shortly before, too, and drops the ids that they know.
    """
    now = service.clock.now()
    before = now - LOOK_BACK if service.is_shared else None
    low = await patiently(lambda: service.newest_event(before=before), live)
    sent: set[int] = set()  # event rows that were sent
    if after is not None:
        low = after[0] - 1 if not service.is_shared else min(low, after[0] - 1)
    elif service.is_shared:
        known = await patiently(lambda: service.events(after=low, limit=10_000), live)
        sent = {row.event_id for row in known}
    yield b"retry: 2000\n\n"
    quiet = 0.0
    while not live.is_closed:
        looked = service.clock.now() - LOOK_BACK if service.is_shared else None
        try:
            complete = await service.newest_event(before=looked)
            rows = await service.events(after=low, but=sent, limit=AT_ONCE)
        except StoreFailed:
            await asyncio.sleep(LOOK_EVERY)
            continue
        for row in rows:
            is_known = (
                after is not None and (row.event_id, row.n) <= after and not service.is_shared
            )
            if is_wanted(row) and not is_known:
                yield _sent(row)
                quiet = 0.0
        has_more = len({row.event_id for row in rows}) >= AT_ONCE
        if not has_more:  # also what whoever asks may not hear of need not be looked at again
            low = max(low, complete)
        if service.is_shared:
            sent |= {row.event_id for row in rows}
            low, sent = _moved_on(low, sent, complete)
        elif rows:
            low = max(low, rows[-1].event_id)
        del rows  # who waits keeps none of it
        if has_more:
            continue
        await live.wait(LOOK_EVERY)
        quiet += LOOK_EVERY
        if quiet >= KEEP_ALIVE:
            yield b": nothing happened\n\n"
            quiet = 0.0


def _moved_on(low: int, sent: set[int], complete: int) -> tuple[int, set[int]]:
    """Return from where to look next time, and what to leave out then.

    Up to `complete` no further row appears, and all that were sent came in order.
    """
    low = max([low, *(event_id for event_id in sent if event_id <= complete)])
    if len(sent) > MOST_SENT:  # a transaction is open for very long: what it wrote is given up
        low = max(low, sorted(sent)[MOST_SENT // 2])
    return low, {event_id for event_id in sent if event_id > low}


def _sent(row: EventRow) -> bytes:
    told = event_fields(row)
    body = msgspec.json.encode(told).decode()
    return f"id: {told.event_id}\nevent: {told.name}\ndata: {body}\n\n".encode()


async def follow_output(
    path: Path, attempt: int, again: Callable[[], Awaitable[RunRow]], live: EventStreams
) -> AsyncIterator[bytes]:
    """Yield what an attempt of a run prints to a file, until it or the run has ended."""
    position = 0
    while True:
        run = await again()
        async for chunk in read_output(path, position):
            position += len(chunk)
            yield chunk
        if run.finished_at is not None or run.attempt > attempt or live.is_closed:
            return
        await live.wait(0.2)


async def read_output(path: Path, position: int = 0) -> AsyncIterator[bytes]:
    """Yield what is in a file from there on, as far as there is one."""

    def read(begin: int) -> bytes:
        try:
            with path.open("rb") as file:
                file.seek(begin)
                return file.read(CHUNK)
        except OSError:
            return b""

    while chunk := await asyncio.to_thread(read, position):
        position += len(chunk)
        yield chunk
