"""What the launcher of Python functions declares: `run: {python: "reports:build"}`."""

from onbeat.ports.plug import Plug

PLUG = Plug(
    name="python",
    kinds="onbeat.launchers.python.kinds:KINDS",
    make="onbeat.launchers.python.part:make",
    checkers="onbeat.launchers.python.part:checkers",
)
