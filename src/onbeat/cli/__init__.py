"""The command `onbeat`: one module a group of verbs, loaded when one of them is called.

Exit codes: 0 ok, 1 failed, 2 usage, 3 different (if asked for), 4 invalid definition, 69
unavailable.
"""

from importlib import import_module

import click

import onbeat
from onbeat.errors import meant

FAILED, USAGE, DIFFERENT, INVALID_DEFINITION, UNAVAILABLE = 1, 2, 3, 4, 69

VERBS = {
    "init": ("onbeat.cli.define:init", "Write a first file of schedules."),
    "up": ("onbeat.cli.node:up", "Plan and run schedules."),
    "down": ("onbeat.cli.node:down", "Stop what is up."),
    "status": ("onbeat.cli.node:status", "Show which nodes are up, what is due and what runs."),
    "nodes": ("onbeat.cli.node:nodes", "Show the nodes, and what each of them does."),
    "next": ("onbeat.cli.next:next_ticks", "Show the coming ticks of a trigger."),
    "plan": ("onbeat.cli.apply:plan", "Show what applying a file would do."),
    "apply": ("onbeat.cli.apply:apply_", "Define the schedules of a file."),
    "export": ("onbeat.cli.apply:export", "Write schedules as a file."),
    "import": ("onbeat.cli.importing:import_", "Translate the definitions of another program."),
    "schema": ("onbeat.cli.apply:schema", "Write the JSON Schema of a file of schedules."),
    "list": ("onbeat.cli.define:list_", "Show every schedule."),
    "show": ("onbeat.cli.define:show", "Show one schedule."),
    "delete": ("onbeat.cli.define:delete", "Take schedules away."),
    "pause": ("onbeat.cli.operate:pause", "Start nothing more of a schedule by itself."),
    "resume": ("onbeat.cli.operate:resume", "Let a paused schedule go on from now."),
    "run": ("onbeat.cli.runs:run", "Start a run now."),
    "backfill": ("onbeat.cli.backfill:backfill", "Run ticks of the past after all."),
    "cancel": ("onbeat.cli.operate:cancel", "End runs that have not ended."),
    "report": ("onbeat.cli.operate:report", "Tell of the end of a run that was accepted."),
    "groups": ("onbeat.cli.operate:groups", "Show the groups, and how full they are."),
    "group": ("onbeat.cli.operate:group", "Say how many runs of a group may run at once."),
    "runs": ("onbeat.cli.runs:runs", "Show what ran, what did not, and why."),
    "why": ("onbeat.cli.why:why", "Say why a schedule ran, or did not, at a time."),
    "audit": ("onbeat.cli.audit:audit", "Show who had what done."),
    "simulate": ("onbeat.cli.simulate:simulate", "Show what schedules would do, and why."),
    "logs": ("onbeat.cli.runs:logs", "Show what a run printed."),
    "notify": ("onbeat.cli.notify:notify", "Show who is told of failures, and try it out."),
    "workflows": (
        "onbeat.cli.workflows:workflows",
        "Show the workflows that are kept, or delete one.",
    ),
    "timers": ("onbeat.cli.timers:timers", "Show the timers of services, or switch one."),
    "timer": ("onbeat.cli.timer:timer", "Start, stop or look at the timer of flows."),
    "move": ("onbeat.cli.node:move", "Move everything from SQLite to PostgreSQL."),
    "token": ("onbeat.cli.token:token", "Say who may come in over HTTP."),
    "gate": ("onbeat.cli.node:gate", "Stop everything, or let it go on."),
    "doctor": ("onbeat.cli.doctor:doctor", "Look for what is wrong, and say what would be right."),
}


class Verbs(click.Group):
    """A group that imports a verb only when it is called, so that `--help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, told) for verb, (_, told) in VERBS.items()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            if (near := meant(cmd_name, VERBS)).startswith("did you mean"):
                ctx.fail(f"No such command {cmd_name!r}: {near}")
            return None
        module, name = VERBS[cmd_name][0].split(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command), f"{name} is no command"
        return command


@click.group(cls=Verbs)
@click.version_option(onbeat.__version__, prog_name="onbeat", message="%(prog)s %(version)s")
def main() -> None:
    """A durable scheduler for agents, workflows and oneshot jobs."""
