"""Cancel flows on a panel, retrying until the panel confirms.

Unconfirmed requests are stored, so that the next process continues them. After a day a request is
given up, with a log line.
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
from onbeat.systems.flows.answers import is_canceled, panel_error_text
from onbeat.systems.flows.launch_log import FlowLaunch
from onbeat.systems.flows.panel import Panel, PanelAway, PanelRefuses

log = logging.getLogger("onbeat.timer")

TO_END = "flow-end"  # document kind: unconfirmed cancellations
LAST_WORDS = 8.0  # seconds to wait for the panel when a flow is cancelled
FIRST_WAIT, LONGEST_WAIT = 0.2, 60.0  # seconds between two requests
GIVEN_UP_AFTER = 86_400_000  # milliseconds


class PendingCancel(msgspec.Struct, frozen=True):
    """A flow whose cancellation was requested and not confirmed."""

    url: str  # of the panel
    fid: str
    key: str  # the key of the flow
    since: int  # milliseconds


class Cancellations:
    """Cancels flows on a panel, with retries."""

    def __init__(self, panel: Panel, store: Store) -> None:
        self._panel, self._store = panel, store
        self._unsaved: dict[str, PendingCancel] = {}  # requests that the store did not take
        self._repeating: asyncio.Task[None] | None = None

    async def cancel(self, attempt: Attempt, launch: FlowLaunch, key: str) -> Sequence[str]:
        """Cancel a flow, and retry in the background if need be; return lines for the run's log."""
        done, line = await self._request(launch.fid)
        if done:
            return [line]
        log.error(
            "flow %s: launch %s could not be canceled on the panel, will be retried: %s",
            key,
            launch.fid,
            line,
        )
        pending = PendingCancel(self._panel.url, launch.fid, key, self._store.clock.now())
        name = f"{attempt.run_id}.{attempt.attempt}"
        try:
            body = msgspec.to_builtins(pending)
            await self._store.keep(TO_END, name, body, user_id=attempt.user_id)
        except OnbeatError:
            self._unsaved[name] = pending
        self.repeat()
        return [line, "the panel has not canceled it; the request is retried"]

    def repeat(self) -> None:
        """Retry unconfirmed cancellations, if there are any."""
        if self._repeating is None or self._repeating.done():
            self._repeating = asyncio.ensure_future(self._repeat())

    async def close(self) -> None:
        """Stop retrying in this process."""
        if self._repeating is not None:
            self._repeating.cancel()
            await asyncio.wait([self._repeating])

    async def _repeat(self) -> None:
        wait = FIRST_WAIT
        while True:
            with suppress(OnbeatError):  # of the store: retried
                pending = await self._pending()
                if not pending:
                    return
                for name, each in pending.items():
                    if await self._is_settled(each):
                        self._unsaved.pop(name, None)
                        await self._store.forget(TO_END, name)
            await asyncio.sleep(wait)
            wait = min(wait * 2, LONGEST_WAIT)

    async def _pending(self) -> dict[str, PendingCancel]:
        found = dict(self._unsaved)
        for row in await self._store.list_documents(TO_END):
            with suppress(msgspec.ValidationError):
                found[row.name] = msgspec.convert(row.body, PendingCancel)
        return found

    async def _is_settled(self, each: PendingCancel) -> bool:
        """Retry once; return whether no further retry is needed."""
        done, line = False, f"flows_panel is {self._panel.url} now"
        if each.url == self._panel.url:
            done, line = await self._request(each.fid)
        if done:
            log.info("flow %s: launch %s was canceled on the panel", each.key, each.fid)
        elif self._store.clock.now() - each.since > GIVEN_UP_AFTER:
            message = (
                "flow %s: launch %s on %s could not be canceled for a day, and may be running: %s"
            )
            log.error(message, each.key, each.fid, each.url, line)
            return True
        return done

    async def _request(self, fid: str) -> tuple[bool, str]:
        """Send one request; return whether the flow has ended, and a line for the run's log."""
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
                return is_canceled(answer), f"DELETE {self._panel.url}{path}: {why}"
        except (TimeoutError, PanelAway, PanelRefuses) as broken:
            return False, f"DELETE {self._panel.url}{path}: {str(broken) or why}"
