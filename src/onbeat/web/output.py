"""What a run printed: from the file that it prints to, from its node, or as it was kept."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import aiohttp

from onbeat.ports.rows import NodeRow, RunRow
from onbeat.web.live import EventStreams, follow_output, read_output

Again = Callable[[], Awaitable[RunRow]]
# A run may print nothing for hours: whether it goes on is looked up, not guessed from silence.
PATIENCE = aiohttp.ClientTimeout(total=None, connect=3, sock_read=None)
ANSWERS_WITHIN = 10.0  # seconds in which a node begins to answer
STILL_THERE_EVERY = 30.0  # seconds of silence after which the run is looked at
HERE_WITHIN = 5.0  # seconds in which a run that starts here has a file
KEPT = "what it prints is kept when it has ended"
NOT_HERE = f"[it prints to no file of the node that was asked: {KEPT}]\n".encode()


class Output:
    """Finds what runs print. `path_of` is where a run of this machine prints to."""

    def __init__(
        self,
        live: EventStreams,
        *,
        path_of: Callable[[RunRow], Path | None],
        nodes: Callable[[], Awaitable[list[NodeRow]]],
        node_token: Callable[[], Awaitable[str]],
    ) -> None:
        self._live, self._path_of, self._nodes = live, path_of, nodes
        self._node_token = node_token

    async def so_far(self, run: RunRow, again: Again, *, here: bool) -> AsyncIterator[bytes]:
        """Yield what the last attempt of a run has printed; with `here`, no other node is asked."""
        if (path := self._file(run)) is not None:
            async for chunk in read_output(path):
                yield chunk
        elif run.finished_at is None and run.leased_by is not None and not here:
            async for chunk in self._from_its_node(run, again, follow=False):
                yield chunk
        else:
            yield (run.log_tail or "").encode()

    async def followed(self, run: RunRow, again: Again) -> AsyncGenerator[bytes, None]:
        """Yield what a run prints until it has ended, from the attempt on that there is now."""
        attempt, is_first = max(run.attempt, 1), True
        while not self._live.is_closed:
            run = await self._until_it_prints(replace(run, attempt=attempt), again)
            if not is_first:
                yield f"[attempt {attempt}]\n".encode()
            has_printed = False
            async for chunk in self._attempt(run, again):
                has_printed = has_printed or not (isinstance(chunk, _Note) or chunk == NOT_HERE)
                yield chunk
            run = await self._until_it_goes_on(attempt, again)
            if run.attempt <= attempt:
                if not has_printed and run.finished_at is not None:
                    yield (run.log_tail or "").encode()
                return
            attempt, is_first = self._next_attempt(attempt, run), False

    async def followed_here(self, run: RunRow, again: Again) -> AsyncGenerator[bytes, None]:
        """Yield what the attempt that there is now prints on this node: it is another that asks."""
        until = asyncio.get_running_loop().time() + HERE_WITHIN
        while (path := self._file(run)) is None and run.finished_at is None:
            if self._live.is_closed or asyncio.get_running_loop().time() >= until:
                yield NOT_HERE
                return
            await self._live.wait(0.2)
            run = await again()
        if path is None:
            yield (run.log_tail or "").encode()
            return
        async for chunk in follow_output(path, run.attempt, again, self._live):
            yield chunk

    def _file(self, run: RunRow) -> Path | None:
        path = self._path_of(run)
        return path if path is not None and path.exists() else None

    async def _until_it_prints(self, run: RunRow, again: Again) -> RunRow:
        """Return a run, as of this attempt, when there is something of it: here, or elsewhere."""
        attempt = run.attempt
        while self._file(run) is None and not self._live.is_closed:
            found = await again()
            if found.attempt > attempt:  # this one is over, and nobody has it any more
                return replace(found, attempt=attempt, leased_by=None)
            run = replace(found, attempt=attempt)
            has_begun = found.attempt == attempt and found.leased_by is not None
            if has_begun or found.finished_at is not None:
                break
            await self._live.wait(0.5)
        return run

    async def _attempt(self, run: RunRow, again: Again) -> AsyncIterator[bytes]:
        """Yield what one attempt prints; nothing if it is over, and did not print here."""
        if (path := self._file(run)) is not None:
            async for chunk in follow_output(path, run.attempt, again, self._live):
                yield chunk
        elif run.finished_at is None and run.leased_by is not None:
            async for chunk in self._from_its_node(run, again, follow=True):
                yield chunk

    async def _until_it_goes_on(self, attempt: int, again: Again) -> RunRow:
        """Return a run when it has ended, or there is another attempt."""
        run = await again()
        while run.finished_at is None and run.attempt <= attempt and not self._live.is_closed:
            await self._live.wait(0.5)
            run = await again()
        return run

    def _next_attempt(self, attempt: int, run: RunRow) -> int:
        """Return which attempt comes next: one that was short may be over, and its file here."""
        between = range(attempt + 1, run.attempt)
        found = (each for each in between if self._file(replace(run, attempt=each)) is not None)
        return next(found, run.attempt)

    async def _from_its_node(
        self, run: RunRow, again: Again, *, follow: bool
    ) -> AsyncIterator[bytes]:
        """Yield what the node of a run says that it prints."""
        rows = {row.node_id: row for row in await self._nodes()}
        node = rows.get(run.leased_by or "")
        if node is None or not node.address:
            told = "its node has no API" if node is not None else "its node is not there"
            yield _note(f"{told}: {KEPT}")
            return
        url = f"{node.address}/api/v1/runs/{run.run_id}/log"
        asked = {"here": "true", "follow": "true" if follow else "false"}
        headers = {"Authorization": f"Bearer {await self._node_token()}"}
        try:
            async with aiohttp.ClientSession(timeout=PATIENCE, trust_env=False) as session:
                async with asyncio.timeout(ANSWERS_WITHIN):
                    # What leads elsewhere is no node, and is not to have the token of one.
                    response = await session.get(
                        url, params=asked, headers=headers, allow_redirects=False
                    )
                async with response:
                    if response.status != 200:
                        yield _note(f"its node answered {response.status}")
                        return
                    async for chunk in _as_it_comes(response, run, again):
                        yield chunk
        except (aiohttp.ClientError, TimeoutError):
            yield _note(f"its node cannot be reached: {KEPT}")


async def _as_it_comes(
    response: aiohttp.ClientResponse, run: RunRow, again: Again
) -> AsyncIterator[bytes]:
    """Yield an answer until it ends; one that is silent, until its run is no longer there."""
    while True:
        try:
            async with asyncio.timeout(STILL_THERE_EVERY):
                chunk = await response.content.readany()
        except TimeoutError:
            now = await again()
            is_there = (now.attempt, now.leased_by) == (run.attempt, run.leased_by)
            if now.finished_at is not None or not is_there:
                return
        else:
            if not chunk:
                return
            yield chunk


class _Note(bytes):
    """What is said about what a run prints, rather than printed by it."""


def _note(told: str) -> _Note:
    return _Note(f"[{told}]\n".encode())
