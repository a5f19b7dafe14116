"""What the system of Ray declares: `run: {python: "reports:build", on: ray}`."""

from onbeat.ports.plug import Plug

PLUG = Plug(
    name="ray",
    kinds="onbeat.systems.ray.kinds:KINDS",
    settings="onbeat.systems.ray.settings:RaySettings",
    make="onbeat.systems.ray.part:make",
    checkers="onbeat.systems.ray.part:checkers",
    peers="onbeat.systems.ray.part:peers",
)
