"""What the system of agents declares: `run: {flock: {url: ..., agent: daily}}`."""

from onbeat.ports.plug import Plug

PLUG = Plug(
    name="agents",
    kinds="onbeat.systems.agents.kinds:KINDS",
    make="onbeat.systems.agents.part:make",
    checkers="onbeat.systems.agents.part:checkers",
    routes="onbeat.systems.agents.routes:ROUTES",
    bodies="onbeat.systems.agents.routes:BODIES",
)
