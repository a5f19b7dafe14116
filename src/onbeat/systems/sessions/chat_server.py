"""What a chat server can be asked about a session: whether it works, and to stop.

`GET /api/sessions/ID/state` has `isBusy`. A server without that may have it in the list, which is
`GET /api/sessions`. `POST /api/sessions/ID/cancel` stops what a session works on. A server need not
have any of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

from onbeat.core.runs.run import Failed
from onbeat.ports.http import HttpResponse, SendRequest
from onbeat.systems.sessions.session_registry import ChatSession

LONGEST_LOOK = 10_000  # milliseconds for one of these requests

Working = Literal["busy", "idle", "unknown"]
"""What a server says of a session; `unknown` is one that does not say it."""


@dataclass(frozen=True, slots=True)
class ChatServer:
    """The server of a session."""

    ask: SendRequest
    made: ChatSession

    async def working(self) -> Working | Failed:
        """Return whether the session works, or why the server could not be asked."""
        answer = _given(await self._send("GET", "/state"))
        if isinstance(answer, Failed):
            return answer
        state = answer.body if answer.status < 300 and isinstance(answer.body, Mapping) else {}
        if isinstance(found := state.get("isBusy"), bool):
            return "busy" if found else "idle"
        if state.get("status") == "busy":
            return "busy"
        # An older server says `idle` here whatever the session does: its list knows better.
        is_idle = state.get("status") in IDLE
        listed = await self._listed()
        if listed is None:
            return "idle" if is_idle else "unknown"
        return listed

    async def stop(self) -> str:
        """Have the session stop what it works on; return why that is not so, or nothing."""
        answer = await self._send("POST", "/cancel")
        return "" if isinstance(answer, HttpResponse) and answer.status < 300 else answer.error

    async def delete(self) -> HttpResponse | Failed:
        """Have the session deleted."""
        return await self._send("DELETE", "")

    async def _listed(self) -> Working | Failed | None:
        """Return what the list of sessions says, if it says anything, or why it was not given."""
        url = f"{self.made.url}/api/sessions"
        answer = _given(
            await self.ask("GET", url, timeout=LONGEST_LOOK, public_only=self.made.public_only)
        )
        if isinstance(answer, Failed):
            return answer
        if answer.status >= 300:
            return None
        listed = {str(each.get("sessionId")): each.get("isBusy") for each in _entries(answer.body)}
        known = {name: busy for name, busy in listed.items() if isinstance(busy, bool)}
        if not known:
            return None
        return "busy" if known.get(self.made.session_id, False) else "idle"  # or it is gone

    async def _send(self, method: str, path: str) -> HttpResponse | Failed:
        return await self.ask(
            method,
            f"{self.made.url}/api/sessions/{quote(self.made.session_id, safe='')}{path}",
            timeout=LONGEST_LOOK,
            public_only=self.made.public_only,
        )


def _given(answer: HttpResponse | Failed) -> HttpResponse | Failed:
    """Return an answer, unless the server could not give one now: it is asked again."""
    if isinstance(answer, Failed):
        return answer
    is_away = answer.status == 429 or (answer.status >= 500 and answer.status != 501)
    return Failed(answer.error) if is_away else answer


def _entries(body: object) -> Iterator[Mapping[str, object]]:
    """Return the sessions of a list: one list, or one for each folder that sessions work in."""
    if not isinstance(body, Mapping):
        return
    grouped = body.get("grouped")
    lists = [body.get("sessions"), *(grouped.values() if isinstance(grouped, Mapping) else ())]
    for each in lists:
        if isinstance(each, list):
            yield from (entry for entry in each if isinstance(entry, Mapping))


IDLE = ("idle", "inactive")
