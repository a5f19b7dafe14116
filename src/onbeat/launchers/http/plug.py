"""What the launcher of HTTP requests declares: `run: {http: "https://..."}`."""

from onbeat.ports.plug import Plug

PLUG = Plug(
    name="http",
    kinds="onbeat.launchers.http.kinds:KINDS",
    make="onbeat.launchers.http.part:make",
    checkers="onbeat.launchers.http.part:checkers",
)
