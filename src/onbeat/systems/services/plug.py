"""What the system of oneshot services declares: timers, which start commands."""

from onbeat.ports.system import Plug, Verb
from onbeat.systems.services.settings import ServicesSettings

PLUG = Plug(
    name="services",
    settings=ServicesSettings,
    make="onbeat.systems.services.part:make",
    sections="onbeat.systems.services.page:section",
    verbs={
        "timers": Verb(
            "onbeat.systems.services.verbs:timers", "Services: list, enable and disable timers."
        ),
        "import": Verb(
            "onbeat.systems.services.import_verb:import_",
            "Services: import a configuration in Emacs Lisp.",
        ),
    },
    source_files="onbeat.systems.services.part:source_files",
)
