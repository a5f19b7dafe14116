"""What the system of reminders declares: a file with lines such as `07:30 breakfast`."""

from onbeat.ports.plug import Plug, VerbReference

PLUG = Plug(
    name="reminders",
    settings="onbeat_toys.reminders.settings:RemindersSettings",
    make="onbeat_toys.reminders.part:make",
    root_routes="onbeat_toys.reminders.routes:ROUTES",
    routes="onbeat_toys.reminders.routes:API_ROUTES",
    sections="onbeat_toys.reminders.page:section",
    verbs={"reminders": VerbReference("onbeat_toys.reminders.verbs:reminders", "List reminders.")},
    checks="onbeat_toys.reminders.checks:CHECKS",
    source_files="onbeat_toys.reminders.part:source_files",
    peers="onbeat_toys.reminders.part:peers",
)
