"""Requests to a chat server about a session: is it busy, stop it, delete it.

`GET /api/sessions/ID/state` has `isBusy`; a server without it may have `isBusy` in its list,
`GET /api/sessions`. `POST /api/sessions/ID/cancel` stops a session. A server may lack any of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

from onbeat.core.runs.run import Failed
from onbeat.ports.http import HttpResponse, SendRequest
from onbeat.systems.sessions.session_registry import ChatSession

LONGEST_LOOK = 10_000  # timeout of one request, in milliseconds

Activity = Literal["busy", "idle", "unknown"]
"""What a server reports about a session; `unknown`: it does not report it."""


@dataclass(frozen=True, slots=True)
class ChatServer:
    """A chat server and one of its sessions."""

    request: SendRequest
    session: ChatSession
    is_own: bool  # it is the operator's

    async def activity(self) -> Activity | Failed:
        """Return whether the session is busy, or why the server gave no answer."""
        answer = _available(await self._send("GET", "/state"))
        if isinstance(answer, Failed):
            return answer
        state = answer.body if answer.status < 300 and isinstance(answer.body, Mapping) else {}
        if isinstance(found := state.get("isBusy"), bool):
            return "busy" if found else "idle"
        if state.get("status") == "busy":
            return "busy"
        # An older server reports `idle` here even for a busy session; its list is right.
        is_idle = state.get("status") in IDLE
        listed = await self._listed()
        if listed is None:
            return "idle" if is_idle else "unknown"
        return listed

    async def stop(self) -> str:
        """Stop the session; return an error message, or an empty string."""
        answer = await self._send("POST", "/cancel")
        return "" if isinstance(answer, HttpResponse) and answer.status < 300 else answer.error

    async def delete(self) -> HttpResponse | Failed:
        """Delete the session."""
        return await self._send("DELETE", "")

    async def _listed(self) -> Activity | Failed | None:
        """Return what the list of sessions reports; None: the server has no such list."""
        url = f"{self.session.url}/api/sessions"
        answer = _available(
            await self.request(
                "GET",
                url,
                timeout=LONGEST_LOOK,
                public_only=self.session.public_only,
                trusted=self.is_own,
            )
        )
        if isinstance(answer, Failed):
            return answer
        if answer.status >= 300:
            return None
        listed = {str(each.get("sessionId")): each.get("isBusy") for each in _entries(answer.body)}
        busy_by_id = {
            session_id: busy for session_id, busy in listed.items() if isinstance(busy, bool)
        }
        if not busy_by_id:
            return None
        return "busy" if busy_by_id.get(self.session.session_id, False) else "idle"  # or deleted

    async def _send(self, method: str, path: str) -> HttpResponse | Failed:
        return await self.request(
            method,
            f"{self.session.url}/api/sessions/{quote(self.session.session_id, safe='')}{path}",
            timeout=LONGEST_LOOK,
            public_only=self.session.public_only,
            trusted=self.is_own,
        )


def _available(answer: HttpResponse | Failed) -> HttpResponse | Failed:
    """Return the answer, or `Failed` for a status that means: retry later."""
    if isinstance(answer, Failed):
        return answer
    is_unavailable = answer.status == 429 or (answer.status >= 500 and answer.status != 501)
    return Failed(answer.error) if is_unavailable else answer


def _entries(body: object) -> Iterator[Mapping[str, object]]:
    """Return the sessions of a list; they may be grouped by folder."""
    if not isinstance(body, Mapping):
        return
    grouped = body.get("grouped")
    lists = [body.get("sessions"), *(grouped.values() if isinstance(grouped, Mapping) else ())]
    for each in lists:
        if isinstance(each, list):
            yield from (entry for entry in each if isinstance(entry, Mapping))


IDLE = ("idle", "inactive")
