"""What the launcher of commands declares: `run: {command: [./backup.sh, --all]}`."""

from onbeat.ports.plug import Plug

PLUG = Plug(
    name="command",
    kinds="onbeat.launchers.command.kinds:KINDS",
    make="onbeat.launchers.command.part:make",
    checkers="onbeat.launchers.command.part:checkers",
)
