"""What the system of flows declares: `run: {flow: {url: /-/host/port/-/}}`."""

from onbeat.ports.plug import Plug, VerbReference

PLUG = Plug(
    name="flows",
    kinds="onbeat.systems.flows.kinds:KINDS",
    settings="onbeat.systems.flows.settings:FlowsSettings",
    variables="onbeat.systems.flows.settings:VARIABLES",
    make="onbeat.systems.flows.part:make",
    checkers="onbeat.systems.flows.part:checkers",
    root_routes="onbeat.systems.flows.routes:ROUTES",
    sections="onbeat.systems.flows.routes:section",
    verbs={
        "timer": VerbReference(
            "onbeat.systems.flows.verbs:timer", "Flows: start, stop or inspect the timer."
        )
    },
    source_files="onbeat.systems.flows.part:source_files",
    peers="onbeat.systems.flows.part:peers",
)
