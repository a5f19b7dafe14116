"""The command `onbeat` and its verbs, by section of `--help`."""

from importlib import import_module

import click

import onbeat
from onbeat.errors import did_you_mean

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
    "Systems": {
        "timers": ("onbeat.cli.timers:timers", "Services: list, enable and disable timers."),
        "timer": ("onbeat.cli.timer:timer", "Flows: start, stop or inspect the timer."),
        "workflows": ("onbeat.cli.workflows:workflows", "Workflows: list, show and delete DAGs."),
        "import": ("onbeat.cli.import_:import_", "Services: import a configuration in Emacs Lisp."),
    },
}
VERBS = {verb: entry for section in SECTIONS.values() for verb, entry in section.items()}
ALIASES = {"groups": "onbeat.cli.groups:groups"}  # former spellings, which --help does not list


class Verbs(click.Group):
    """A group that imports a verb only when it is called, so that `--help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, VERBS))
        for title, verbs in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(f"{verb:<{width}}", text) for verb, (_, text) in verbs.items()]
                )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = VERBS[cmd_name][0] if cmd_name in VERBS else ALIASES.get(cmd_name)
        if place is None:
            if (near := did_you_mean(cmd_name, VERBS)).startswith("did you mean"):
                ctx.fail(f"No such command {cmd_name!r}: {near}")
            return None
        module, name = place.split(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command), f"{name} is not a command"
        return command


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
