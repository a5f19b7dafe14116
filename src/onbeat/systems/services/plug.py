"""What the system of oneshot services declares: timers, which start commands."""

from onbeat.ports.plug import Plug, VerbReference

PLUG = Plug(
    name="services",
    settings="onbeat.systems.services.settings:ServicesSettings",
    make="onbeat.systems.services.part:make",
    sections="onbeat.systems.services.page:section",
    verbs={
        "timers": VerbReference(
            "onbeat.systems.services.verbs:timers", "Services: list, enable and disable timers."
        ),
        "import": VerbReference(
            "onbeat.systems.services.import_verb:import_",
            "Services: import a configuration in Emacs Lisp.",
        ),
    },
    source_files="onbeat.systems.services.part:source_files",
)
