"""Flows that are to be ended on their panel, which is asked until it has done so.

What it could not be asked, or did not do, is kept: whoever starts next goes on asking. After a day
that is given up, and told.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import quote

import msgspec

from onbeat.core.runs.run import Failed
from onbeat.errors import OnbeatError
from onbeat.ports.store import Attempt, Store
from onbeat.systems.flows.launch_log import FlowLaunch
from onbeat.systems.flows.panel import Panel, PanelAway, PanelRefuses, panel_error_text

log = logging.getLogger("onbeat.timer")

TO_END = "flow-end"
LAST_WORDS = 8.0  # seconds that whoever ends a flow waits for the panel
FIRST_WAIT, LONGEST_WAIT = 0.2, 60.0  # seconds until it is asked again
GIVEN_UP_AFTER = 86_400_000  # milliseconds
GONE = (404, 410)


class PendingCancel(msgspec.Struct, frozen=True):
    """A flow whose end was asked for, and not confirmed."""

    url: str  # of the panel
    fid: str
    key: str  # what it was launched for
    since: int  # milliseconds


class Cancellations:
    """Ends flows on a panel, however long that takes."""

    def __init__(self, panel: Panel, store: Store) -> None:
        self._panel, self._store = panel, store
        self._unkept: dict[str, PendingCancel] = {}  # those that the store could not be told of
        self._repeating: asyncio.Task[None] | None = None

    async def end(self, attempt: Attempt, made: FlowLaunch, key: str) -> Sequence[str]:
        """Ask the panel to end a flow, and go on asking if it does not; return what is told."""
        done, line = await self._asked(made.fid)
        if done:
            return [line]
        log.error("%s: %s could not be ended, and is tried again: %s", key, made.fid, line)
        to_end = PendingCancel(self._panel.url, made.fid, key, self._store.clock.now())
        name = f"{attempt.run_id}.{attempt.attempt}"
        try:
            body = msgspec.to_builtins(to_end)
            await self._store.keep(TO_END, name, body, user_id=attempt.user_id)
        except OnbeatError:
            self._unkept[name] = to_end
        self.repeat()
        return [line, "the panel has not ended it: it is asked again"]

    def repeat(self) -> None:
        """Go on asking for what is to be ended, if there is anything."""
        if self._repeating is None or self._repeating.done():
            self._repeating = asyncio.ensure_future(self._repeat())

    async def close(self) -> None:
        """Ask no more; whoever is next does."""
        if self._repeating is not None:
            self._repeating.cancel()
            await asyncio.wait([self._repeating])

    async def _repeat(self) -> None:
        wait = FIRST_WAIT
        while True:
            with suppress(OnbeatError):  # of the store: it is asked again
                to_end = await self._listed()
                if not to_end:
                    return
                for name, each in to_end.items():
                    if await self._is_over(each):
                        self._unkept.pop(name, None)
                        await self._store.forget(TO_END, name)
            await asyncio.sleep(wait)
            wait = min(wait * 2, LONGEST_WAIT)

    async def _listed(self) -> dict[str, PendingCancel]:
        found = dict(self._unkept)
        for row in await self._store.kept_all(TO_END):
            with suppress(msgspec.ValidationError):
                found[row.name] = msgspec.convert(row.body, PendingCancel)
        return found

    async def _is_over(self, each: PendingCancel) -> bool:
        """Ask once more; return whether it need not be asked again."""
        done, line = False, f"flows_panel is {self._panel.url} now"
        if each.url == self._panel.url:
            done, line = await self._asked(each.fid)
        if done:
            log.info("%s: %s is ended", each.key, each.fid)
        elif self._store.clock.now() - each.since > GIVEN_UP_AFTER:
            told_of = "%s: %s on %s could not be ended for a day, and may run: %s"
            log.error(told_of, each.key, each.fid, each.url, line)
            return True
        return done

    async def _asked(self, fid: str) -> tuple[bool, str]:
        """Ask for the end of a flow; return whether it is over, and what is told of that."""
        path = f"/outputs/{quote(fid, safe='')}"
        why = "no answer"
        try:
            async with asyncio.timeout(LAST_WORDS):
                answer = await self._panel.ask("DELETE", path)
                why = (
                    panel_error_text(answer)
                    if isinstance(answer, Failed)
                    else f"HTTP {answer.status}"
                )
                done = not isinstance(answer, Failed) and (
                    200 <= answer.status < 300 or answer.status in GONE
                )
                return done, f"DELETE {self._panel.url}{path}: {why}"
        except (TimeoutError, PanelAway, PanelRefuses) as broken:
            return False, f"DELETE {self._panel.url}{path}: {str(broken) or why}"
