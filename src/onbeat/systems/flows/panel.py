"""A panel of flows over HTTP: authentication and requests.

A login key lasts for a day; after a 401 the panel logs in once more and repeats the request.
"""

import asyncio
import re
from collections.abc import Mapping

from onbeat.core.runs.run import Failed
from onbeat.errors import InvalidSettings
from onbeat.ports.http import NO_HEADERS, HttpResponse, SendRequest
from onbeat.systems.flows.answers import panel_error_text

LONGEST_ANSWER = 60_000  # milliseconds; the panel waits until a launch has an id
KEY = "KODOSUMI_API_KEY"
LOGIN_SETTINGS = "flows_user and flows_password, or KODO_TIMER_USER"
VISIBLE = re.compile(r"[!-~]{1,8000}")


class PanelAway(Exception):  # noqa: N818 - it names the condition
    """The panel could not be reached, so nothing was started: a retry may succeed."""


class PanelRefuses(Exception):  # noqa: N818 - it names the condition
    """The panel refuses the login: a retry cannot succeed."""


class Panel:
    """A panel, as one of its users sees it. `password` is the name of a secret."""

    def __init__(self, ask: SendRequest, url: str, *, user: str, password: str) -> None:
        self._ask, self.url, self.user = ask, url.rstrip("/"), user
        self._password = check_password(password, user=user, url=self.url)
        self._key = ""
        self._one_at_a_time = asyncio.Lock()

    async def ask(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> HttpResponse | Failed:
        """Return the answer, or why there is none; raise PanelAway or PanelRefuses on login."""
        answer: HttpResponse | Failed | None = None
        for _ in range(2):
            key = self._key or await self._log_in()
            answer = await self._ask(
                method,
                f"{self.url}{path}",
                body=body,
                headers={KEY: key, **headers},
                timeout=LONGEST_ANSWER,
                trusted=True,
            )
            if not isinstance(answer, HttpResponse) or answer.status != 401:
                return answer
            if self._key == key:
                self._key = ""
        assert answer is not None, "the loop has run"
        raise PanelRefuses(
            f"{self.url} accepts the login of {self.user!r}, but not its requests: "
            f"{panel_error_text(answer)}"
        )

    def again(self) -> "Panel":
        """Return the same panel with a separate login."""
        return Panel(self._ask, self.url, user=self.user, password=self._password)

    async def check(self) -> None:
        """Log in and request a list of flows; raise PanelAway or PanelRefuses if that fails."""
        answer = await self.ask("GET", "/flow?pp=1")
        if isinstance(answer, Failed):
            raise PanelAway(answer.error)
        if answer.status >= 500:
            raise PanelAway(panel_error_text(answer))

    async def _log_in(self) -> str:
        async with self._one_at_a_time:
            if self._key:
                return self._key
            answer = await self._ask(
                "POST",
                f"{self.url}/api/login",
                body={"name": self.user},
                secrets={"password": self._password},
                timeout=LONGEST_ANSWER,
                trusted=True,
            )
            if isinstance(answer, Failed):
                if answer.reason == "invalid_target":
                    raise PanelRefuses(answer.error)
                raise PanelAway(answer.error)
            if answer.status >= 500:
                raise PanelAway(f"{self.url}: {panel_error_text(answer)}")
            found = answer.body.get(KEY) if isinstance(answer.body, Mapping) else None
            if not 200 <= answer.status < 300 or not isinstance(found, str):
                raise PanelRefuses(
                    f"{self.url} refuses the login of {self.user!r}: "
                    f"{panel_error_text(answer)} ({LOGIN_SETTINGS})"
                )
            if VISIBLE.fullmatch(found) is None:
                raise PanelRefuses(f"{self.url} returned a key that is not a valid header value")
            self._key = found
            return found


def check_password(password: str, *, user: str, url: str) -> str:
    """Return the name of the secret that is the password, or refuse it."""
    if not password:
        problem = f"it is missing: flows run as {user!r} on {url}"
        hint = f"the password of {user!r} there: secret://NAME, or ${{env:NAME}} with pass_env"
        raise InvalidSettings("flows_password", problem, hint=hint)
    if not password.startswith(("${env:", "secret://")):
        hint = "secret://name, a file that contains it, or ${env:NAME}"
        raise InvalidSettings("flows_password", "it is not a reference to a secret", hint=hint)
    return password
