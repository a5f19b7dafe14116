"""The command `onbeat` and its verbs, by section of `--help`."""

from functools import cache
from importlib import import_module

import click

import onbeat
from onbeat.errors import did_you_mean
from onbeat.host.plugs import declarations

SECTIONS = {
    "Run": {
        "up": ("onbeat.cli.up:up", "Plan and run schedules."),
        "down": ("onbeat.cli.nodes:down", "Stop nodes."),
        "run": ("onbeat.cli.runs:run", "Start a run now."),
        "backfill": ("onbeat.cli.backfill:backfill", "Run past ticks that were not run."),
        "cancel": ("onbeat.cli.control:cancel", "Cancel runs."),
        "report": ("onbeat.cli.control:report", "Report the outcome of an accepted run."),
    },
    "Define": {
        "init": ("onbeat.cli.schedules:init", "Write an example file of schedules."),
        "next": ("onbeat.cli.next:next_ticks", "Preview the next ticks of a trigger."),
        "plan": ("onbeat.cli.apply:plan", "Show what applying a file would change."),
        "apply": ("onbeat.cli.apply:apply_", "Create and update the schedules of a file."),
        "export": ("onbeat.cli.apply:export", "Write schedules as a file."),
        "schema": ("onbeat.cli.apply:schema", "Print the JSON Schema of schedule files."),
        "simulate": ("onbeat.cli.simulate:simulate", "Simulate what schedules will do."),
        "delete": ("onbeat.cli.schedules:delete", "Delete schedules."),
    },
    "Look": {
        "status": ("onbeat.cli.nodes:status", "Show nodes, due ticks and unfinished runs."),
        "list": ("onbeat.cli.schedules:list_", "List schedules."),
        "show": ("onbeat.cli.schedules:show", "Show one schedule and its last runs."),
        "runs": ("onbeat.cli.runs:runs", "List runs, the latest first."),
        "logs": ("onbeat.cli.runs:logs", "Print the output of a run."),
        "why": ("onbeat.cli.why:why", "Explain why a schedule ran, or did not, at a time."),
        "nodes": ("onbeat.cli.nodes:nodes", "List nodes, with their roles and launchers."),
        "audit": ("onbeat.cli.audit:audit", "List changes, with who made them."),
    },
    "Operate": {
        "pause": ("onbeat.cli.control:pause", "Pause schedules."),
        "resume": ("onbeat.cli.control:resume", "Resume paused schedules from now on."),
        "gate": ("onbeat.cli.control:gate", "Stop all schedules, or start them again."),
        "group": ("onbeat.cli.groups:group", "List groups; set a group's concurrency limit."),
        "token": ("onbeat.cli.token:token", "Manage API tokens."),
        "notify": ("onbeat.cli.notify:notify", "List and test notification channels."),
        "doctor": ("onbeat.cli.doctor:doctor", "Diagnose the installation."),
        "move": ("onbeat.cli.move:move", "Move a database from SQLite to PostgreSQL."),
        "completion": ("onbeat.cli.completion:completion", "Print a shell completion script."),
    },
}
ALIASES = {"groups": "onbeat.cli.groups:groups"}  # former spellings, which --help does not list


@cache
def sections() -> dict[str, dict[str, tuple[str, str]]]:
    """Return the verbs by section: the module and name of each, and its line of help.

    A plug cannot replace a verb of Onbeat.
    """
    own = {name for section in SECTIONS.values() for name in section}
    of_plugs = {
        name: (verb.command, verb.help)
        for plug in declarations().plugs
        for name, verb in plug.verbs.items()
        if name not in own
    }
    return SECTIONS | {"Systems": of_plugs}


def verbs() -> dict[str, tuple[str, str]]:
    """Return every verb."""
    return {name: entry for section in sections().values() for name, entry in section.items()}


class Verbs(click.Group):
    """A group that imports a verb only when it is called, so that `--help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(verbs())

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, verbs()))
        for title, section in sections().items():
            with formatter.section(title):
                formatter.write_dl(
                    [(f"{verb:<{width}}", text) for verb, (_, text) in section.items()]
                )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = _place_of(cmd_name)
        if place is None:
            if (near := did_you_mean(cmd_name, verbs())).startswith("did you mean"):
                ctx.fail(f"No such command {cmd_name!r}: {near}")
            return None
        module, name = place.split(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command), f"{name} is not a command"
        return command


def _place_of(verb: str) -> str | None:
    """Return the module and name of a verb. Plugs are imported only for a verb of theirs."""
    for section in SECTIONS.values():
        if verb in section:
            return section[verb][0]
    if verb in ALIASES:
        return ALIASES[verb]
    entry = sections()["Systems"].get(verb)
    return None if entry is None else entry[0]


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="onbeat COMMAND -h shows the options of a command, and examples.",
)
@click.version_option(onbeat.__version__, prog_name="onbeat", message="%(prog)s %(version)s")
@click.pass_context
def main(ctx: click.Context) -> None:
    """A durable scheduler for agents, workflows and oneshot jobs."""
    from onbeat.cli.terminal import has_colours  # noqa: PLC0415 - not needed for `--help`

    if not has_colours():
        ctx.color = False  # also for the verbs below
