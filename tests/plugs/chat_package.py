"""A small package with every part of a plug, which tests install and break."""

import importlib
import sys

from onbeat.app import parts, setting_sources, settings
from onbeat.cli import command
from onbeat.core.target_kinds import KINDS
from onbeat.host import plugs

METADATA = "Metadata-Version: 2.1\nName: onbeat-chat\nVersion: 1.0\n"
POINTS = "[onbeat.plugins]\nchat = onbeat_chat.plug:PLUG\n"
FILES = {
    "plug.py": """
from onbeat.ports.plug import Plug, VerbReference
PLUG = Plug(
    name="chat",
    kinds="onbeat_chat.kinds:KINDS",
    settings="onbeat_chat.settings:ChatSettings",
    variables="onbeat_chat.settings:VARIABLES",
    make="onbeat_chat.part:make",
    checkers="onbeat_chat.part:checkers",
    routes="onbeat_chat.routes:ROUTES",
    bodies="onbeat_chat.routes:BODIES",
    sections="onbeat_chat.page:section",
    verbs={"chat": VerbReference("onbeat_chat.verbs:chat", "List channels.")},
    checks="onbeat_chat.checks:CHECKS",
    source_files="onbeat_chat.part:source_files",
    peers="onbeat_chat.part:peers",
)
""",
    "kinds.py": """
from onbeat.core.json_schema import target_schema, text
from onbeat.core.target_kinds import TargetKind
CHAT = TargetKind(
    name="chat",
    schema=target_schema("chat", {"chat": text("the channel", "#ops")}, inputs=False),
)
KINDS = (CHAT,)
""",
    "settings.py": """
from dataclasses import dataclass
from typing import Annotated
from onbeat.core.fields import Option, Variable, number, text
@dataclass(frozen=True)
class ChatSettings:
    url: Annotated[str, text("the server"), Option("URL", "URL of the server.")] = ""
    most: Annotated[int, number("messages per minute", 1, 1000)] = 60
VARIABLES = {"CHAT_URL": Variable("chat_url")}
""",
    "part.py": """
from onbeat.ports.system import Part, Peer, PeerCheck, SourceFile
from onbeat.testing import RecordingLauncher
from onbeat_chat.background import Background, listen
from onbeat_chat.launcher import ChatLauncher
def make(process):
    launcher = ChatLauncher(offers=["chat"])
    return Part(
        launchers={"chat": launcher}, background=[Background()], listeners=[listen], surface=launcher
    )
def checkers(check_url):
    return {"chat": ChatLauncher(offers=[])}
def source_files(settings):
    return [SourceFile("channels", lambda: ["line 3: no channel"])]
async def _check():
    return PeerCheck("chat server", "ok", "it answers")
def peers(context):
    return [Peer("chat server", _check)]
""",
    "launcher.py": """
from onbeat.testing import RecordingLauncher
class ChatLauncher(RecordingLauncher):
    pass
""",
    "background.py": """
class Background:
    async def start(self):
        pass
    def on_events(self, at, events):
        pass
    async def stop(self):
        pass
def listen(at, events):
    pass
""",
    "routes.py": '''
from litestar import get
@get("/chat/channels", operation_id="chat_channels")
async def channels() -> list[str]:
    """Return the channels."""
    return ["#ops"]
ROUTES = [channels]
BODIES = {}
''',
    "page.py": """
async def section(service, surface):
    return "<h2>Channels</h2>"
""",
    "verbs.py": """
import click
@click.command()
def chat():
    click.echo("#ops")
""",
    "checks.py": """
from onbeat.doctor.findings import ok
def chat_token(facts):
    return ok("chat token", "set")
CHECKS = (chat_token,)
""",
}


class ChatPackage:
    """The package in a folder that is on the path of this process while it is installed."""

    def __init__(self, folder):
        self.folder = folder
        self._kinds = dict(KINDS._by_name), dict(KINDS._by_key), KINDS._unresolved_needs

    def install(self, file="", old="", new=""):
        """Install the package, with another text in a file."""
        about, modules = self.folder / "onbeat_chat-1.0.dist-info", self.folder / "onbeat_chat"
        about.mkdir()
        modules.mkdir()
        (about / "METADATA").write_text(METADATA)
        (about / "entry_points.txt").write_text(POINTS)
        for name, text in FILES.items():
            assert name != file or old in text, f"{file} has no {old!r}"
            (modules / name).write_text(text.replace(old, new, 1) if name == file else text)
        sys.path.insert(0, str(self.folder))
        self._forget()

    def remove(self):
        """Remove the package, and what this process has of it."""
        sys.path[:] = [each for each in sys.path if each != str(self.folder)]
        KINDS._by_name, KINDS._by_key, KINDS._unresolved_needs = self._kinds
        self._forget()

    def _forget(self):
        for name in [each for each in sys.modules if each.partition(".")[0] == "onbeat_chat"]:
            del sys.modules[name]
        importlib.invalidate_caches()
        plugs._failures.clear()
        for each in (
            plugs.find_plugs, plugs.declarations, settings.known_settings, command.sections,
            parts.checking_launchers, setting_sources._log_ignored,
        ):  # fmt: skip
            each.cache_clear()
        KINDS.loader = plugs.find_plugs  # as in a new process
