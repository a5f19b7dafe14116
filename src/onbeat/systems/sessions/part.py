"""What a process has of chat sessions: the launcher of prompts, and their files."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from onbeat.ports.launcher import Launcher
from onbeat.ports.system import BackgroundSystem, Part, Peer, PeerCheck, PeerContext
from onbeat.service.process import CheckUrl, Process
from onbeat.systems.base import PeriodicCleanup, peer_answers
from onbeat.systems.sessions.definitions import PromptDefaults
from onbeat.systems.sessions.launcher import SessionLauncher
from onbeat.systems.sessions.settings import SessionsSettings
from onbeat.systems.sessions.system import Sessions


def make(process: Process) -> Part:
    """Return the launcher of prompts, and the files of a chat server if there is one."""
    settings = process.settings.of(SessionsSettings)
    launcher = SessionLauncher(
        check_url=process.requests.check,
        url=settings.url,
        ask=process.requests.ask,
        store=process.store,
        cwd=settings.cwd or str(Path.cwd()),
        busy_delay=settings.busy_delay,
        most=settings.most,
        callback=process.callback(),
        public_only=process.settings.public_only,
    )
    sessions = _sessions(process, settings, launcher) if settings.url else None
    # Without that server, too, a prompt may leave a chat session behind.
    tidy: BackgroundSystem = sessions or PeriodicCleanup("chat sessions", launcher.tidy)
    return Part(launchers={"session": launcher}, background=[tidy], surface=sessions)


def checkers(check_url: CheckUrl) -> Mapping[str, Launcher]:
    """Return a launcher that only checks targets.

    The server of the operator is not known: a prompt without a URL may be right.
    """
    return {"session": SessionLauncher(check_url=check_url, url="http://localhost")}


def peers(context: PeerContext) -> Sequence[Peer]:
    """Return the chat server of the settings."""
    url = context.settings.of(SessionsSettings).url
    return [Peer("chat server", partial(_check_server, context, url))] if url else ()


def _sessions(process: Process, settings: SessionsSettings, launcher: SessionLauncher) -> Sessions:
    return Sessions(
        process.service,
        folder=Path(settings.folder).expanduser(),
        store_id=process.store_id,
        url=settings.url,
        defaults=PromptDefaults(settings.check, settings.minimum),
        tidy=launcher.tidy,
    )


async def _check_server(context: PeerContext, url: str) -> PeerCheck:
    answer = await context.ask(
        "GET", f"{url}/api/sessions", timeout=context.request_timeout, trusted=True
    )
    return peer_answers("chat server", url, answer, "start it, or correct sessions_url")
