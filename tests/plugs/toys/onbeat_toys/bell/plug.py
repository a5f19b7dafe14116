"""What the launcher of bells declares: `run: {bell: dinner, times: 3}`."""

from onbeat.ports.plug import Plug

PLUG = Plug(
    name="bell",
    kinds="onbeat_toys.bell.kinds:KINDS",
    settings="onbeat_toys.bell.settings:BellSettings",
    make="onbeat_toys.bell.part:make",
    checkers="onbeat_toys.bell.part:checkers",
)
