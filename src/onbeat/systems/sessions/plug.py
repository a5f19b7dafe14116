"""What the system of chat sessions declares: `run: {session: {prompt: "Standup"}}`."""

from onbeat.ports.plug import Plug

PLUG = Plug(
    name="sessions",
    kinds="onbeat.systems.sessions.kinds:KINDS",
    settings="onbeat.systems.sessions.settings:SessionsSettings",
    make="onbeat.systems.sessions.part:make",
    checkers="onbeat.systems.sessions.part:checkers",
    root_routes="onbeat.systems.sessions.routes:ROUTES",
    error_paths=("/api/schedule",),
    bodies="onbeat.systems.sessions.routes:BODIES",
    checks="onbeat.systems.sessions.checks:CHECKS",
    peers="onbeat.systems.sessions.part:peers",
)
