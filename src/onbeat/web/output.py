"""The output of a run: from its file, from its node, or the tail kept in the database."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import aiohttp

from onbeat.ports.rows import NodeRow, RunRow
from onbeat.web.live import EventStreams, follow_output, read_output

ReloadRun = Callable[[], Awaitable[RunRow]]
# A run may print nothing for hours: the database says whether it continues, not silence.
TIMEOUT = aiohttp.ClientTimeout(total=None, connect=3, sock_read=None)
ANSWERS_WITHIN = 10.0  # seconds in which a node begins to answer
RECHECK_EVERY = 30.0  # seconds of silence after which the run is read again
FILE_WITHIN = 5.0  # seconds in which a run that starts on this node has a file
AVAILABLE_LATER = "its output is available once it has ended"
NOT_HERE = f"[the run has no output file on this node: {AVAILABLE_LATER}]\n".encode()


class Output:
    """Reads the output of runs. `path_of` returns the output file of a run of this machine."""

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

    async def read(self, run: RunRow, reload: ReloadRun, *, here: bool) -> AsyncIterator[bytes]:
        """Yield the output of the last attempt so far; with `here`, only that of this node."""
        if (path := self._file(run)) is not None:
            async for chunk in read_output(path):
                yield chunk
        elif run.finished_at is None and run.leased_by is not None and not here:
            async for chunk in self._from_its_node(run, reload, follow=False):
                yield chunk
        else:
            yield (run.log_tail or "").encode()

    async def follow(self, run: RunRow, reload: ReloadRun) -> AsyncGenerator[bytes, None]:
        """Yield the output of a run until it has ended, from the current attempt on."""
        attempt, is_first = max(run.attempt, 1), True
        while not self._live.is_closed:
            run = await self._until_it_prints(replace(run, attempt=attempt), reload)
            if not is_first:
                yield f"[attempt {attempt}]\n".encode()
            has_printed = False
            async for chunk in self._attempt(run, reload):
                has_printed = has_printed or not (isinstance(chunk, _Note) or chunk == NOT_HERE)
                yield chunk
            run = await self._until_next_attempt(attempt, reload)
            if run.attempt <= attempt:
                if not has_printed and run.finished_at is not None:
                    yield (run.log_tail or "").encode()
                return
            attempt, is_first = self._next_attempt(attempt, run), False

    async def follow_here(self, run: RunRow, reload: ReloadRun) -> AsyncGenerator[bytes, None]:
        """Yield the output of the current attempt from this node, for another node."""
        until = asyncio.get_running_loop().time() + FILE_WITHIN
        while (path := self._file(run)) is None and run.finished_at is None:
            if self._live.is_closed or asyncio.get_running_loop().time() >= until:
                yield NOT_HERE
                return
            await self._live.wait(0.2)
            run = await reload()
        if path is None:
            yield (run.log_tail or "").encode()
            return
        async for chunk in follow_output(path, run.attempt, reload, self._live):
            yield chunk

    def _file(self, run: RunRow) -> Path | None:
        path = self._path_of(run)
        return path if path is not None and path.exists() else None

    async def _until_it_prints(self, run: RunRow, reload: ReloadRun) -> RunRow:
        """Return a run, as of this attempt, once this or another node has output of it."""
        attempt = run.attempt
        while self._file(run) is None and not self._live.is_closed:
            found = await reload()
            if found.attempt > attempt:  # this attempt has ended and has no node any more
                return replace(found, attempt=attempt, leased_by=None)
            run = replace(found, attempt=attempt)
            has_begun = found.attempt == attempt and found.leased_by is not None
            if has_begun or found.finished_at is not None:
                break
            await self._live.wait(0.5)
        return run

    async def _attempt(self, run: RunRow, reload: ReloadRun) -> AsyncIterator[bytes]:
        """Yield the output of one attempt; nothing if it ended and has no file on this node."""
        if (path := self._file(run)) is not None:
            async for chunk in follow_output(path, run.attempt, reload, self._live):
                yield chunk
        elif run.finished_at is None and run.leased_by is not None:
            async for chunk in self._from_its_node(run, reload, follow=True):
                yield chunk

    async def _until_next_attempt(self, attempt: int, reload: ReloadRun) -> RunRow:
        """Return a run once it has ended or has another attempt."""
        run = await reload()
        while run.finished_at is None and run.attempt <= attempt and not self._live.is_closed:
            await self._live.wait(0.5)
            run = await reload()
        return run

    def _next_attempt(self, attempt: int, run: RunRow) -> int:
        """Return the next attempt to show: a short one may have ended and left a file here."""
        between = range(attempt + 1, run.attempt)
        found = (each for each in between if self._file(replace(run, attempt=each)) is not None)
        return next(found, run.attempt)

    async def _from_its_node(
        self, run: RunRow, reload: ReloadRun, *, follow: bool
    ) -> AsyncIterator[bytes]:
        """Yield the output of a run, as its node returns it."""
        rows = {row.node_id: row for row in await self._nodes()}
        node = rows.get(run.leased_by or "")
        if node is None or not node.address:
            problem = "its node has no API" if node is not None else "its node is not registered"
            yield _note(f"{problem}: {AVAILABLE_LATER}")
            return
        url = f"{node.address}/api/v1/runs/{run.run_id}/log"
        params = {"here": "true", "follow": "true" if follow else "false"}
        headers = {"Authorization": f"Bearer {await self._node_token()}"}
        try:
            async with aiohttp.ClientSession(timeout=TIMEOUT, trust_env=False) as session:
                async with asyncio.timeout(ANSWERS_WITHIN):
                    # A node never redirects, and its token must not reach another server.
                    response = await session.get(
                        url, params=params, headers=headers, allow_redirects=False
                    )
                async with response:
                    if response.status != 200:
                        yield _note(f"its node answered with status {response.status}")
                        return
                    async for chunk in _chunks(response, run, reload):
                        yield chunk
        except (aiohttp.ClientError, TimeoutError):
            yield _note(f"its node cannot be reached: {AVAILABLE_LATER}")


async def _chunks(
    response: aiohttp.ClientResponse, run: RunRow, reload: ReloadRun
) -> AsyncIterator[bytes]:
    """Yield a response until it ends, or until its node no longer has the run."""
    while True:
        try:
            async with asyncio.timeout(RECHECK_EVERY):
                chunk = await response.content.readany()
        except TimeoutError:
            now = await reload()
            is_same = (now.attempt, now.leased_by) == (run.attempt, run.leased_by)
            if now.finished_at is not None or not is_same:
                return
        else:
            if not chunk:
                return
            yield chunk


class _Note(bytes):
    """A remark about the output of a run, which the run did not print itself."""


def _note(text: str) -> _Note:
    return _Note(f"[{text}]\n".encode())
