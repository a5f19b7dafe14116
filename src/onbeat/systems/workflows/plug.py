"""What the system of workflows declares: `run: {workflow: report, version: 3, user_id: ada}`."""

from onbeat.ports.plug import Plug, VerbReference

PLUG = Plug(
    name="workflows",
    kinds="onbeat.systems.workflows.kinds:KINDS",
    settings="onbeat.systems.workflows.settings:WorkflowsSettings",
    variables="onbeat.systems.workflows.settings:VARIABLES",
    make="onbeat.systems.workflows.part:make",
    checkers="onbeat.systems.workflows.part:checkers",
    root_routes="onbeat.systems.workflows.routes:ROUTES",
    verbs={
        "workflows": VerbReference(
            "onbeat.systems.workflows.verbs:workflows", "Workflows: list, show and delete DAGs."
        )
    },
    source_files="onbeat.systems.workflows.part:source_files",
    peers="onbeat.systems.workflows.part:peers",
)
