"""What a run printed: from the file that it prints to, from its node, or as it was kept."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp

from onbeat.records import NodeRow, RunRow
from onbeat.web.live import Live, follow_output, read_output

Again = Callable[[], Awaitable[RunRow]]
PATIENCE = aiohttp.ClientTimeout(total=None, connect=3, sock_read=30)


class Output:
    """Finds what runs print. `path_of` is where a run of this machine prints to."""

    def __init__(
        self,
        live: Live,
        *,
        path_of: Callable[[RunRow], Path | None],
        nodes: Callable[[], Awaitable[list[NodeRow]]],
        node_token: Callable[[], Awaitable[str]],
    ) -> None:
        self._live, self._path_of, self._nodes = live, path_of, nodes
        self._node_token = node_token

    async def of(
        self, run: RunRow, again: Again, *, follow: bool, here: bool
    ) -> AsyncIterator[bytes]:
        """Yield what a run printed, or prints until it has ended.

        With `here`, no other node is asked: it is one that asks.
        """
        while follow and not self._prints(run, here=here) and not self._live.is_closed:
            await self._live.wait(0.5)
            run = await again()
        path = self._path_of(run)
        if path is not None and path.exists():
            if follow:
                async for chunk in follow_output(path, run, again, self._live):
                    yield chunk
            else:
                async for chunk in read_output(path):
                    yield chunk
        elif run.finished_at is None and run.leased_by is not None and not here:
            async for chunk in self._from_its_node(run, follow=follow):
                yield chunk
        else:
            yield (run.log_tail or "").encode()

    def _prints(self, run: RunRow, *, here: bool) -> bool:
        """Return whether there is something to follow: here, or at its node, or no more."""
        path = self._path_of(run)
        is_here = path is not None and path.exists()
        return is_here or run.finished_at is not None or (run.leased_by is not None and not here)

    async def _from_its_node(self, run: RunRow, *, follow: bool) -> AsyncIterator[bytes]:
        """Yield what the node of a run says that it prints."""
        rows = {row.node_id: row for row in await self._nodes()}
        node = rows.get(run.leased_by or "")
        if node is None or not node.address:
            told = "its node has no API" if node is not None else "its node is not there"
            yield f"[{told}: what it prints is kept when it has ended]\n".encode()
            return
        url = f"{node.address}/api/v1/runs/{run.run_id}/log"
        asked = {"here": "true", "follow": "true" if follow else "false"}
        headers = {"Authorization": f"Bearer {await self._node_token()}"}
        try:
            async with (
                aiohttp.ClientSession(timeout=PATIENCE, trust_env=False) as session,
                session.get(url, params=asked, headers=headers) as response,
            ):
                if response.status != 200:
                    yield f"[its node answered {response.status}]\n".encode()
                    return
                async for chunk in response.content.iter_any():
                    yield chunk
        except (aiohttp.ClientError, TimeoutError):
            yield b"[its node cannot be reached: what it prints is kept when it has ended]\n"
