"""The command `onbeat` and its verbs, by section of `--help`."""

from functools import cache

import click

import onbeat
from onbeat.errors import did_you_mean
from onbeat.host.own_names import ALIASES, SECTIONS
from onbeat.host.plugs import declarations, find_plugs, is_from_package, load, problem_of


@cache
def sections() -> dict[str, dict[str, tuple[str, str]]]:
    """Return the verbs by section: the reference of each, and its line of help.

    A plug of a package is checked before its verbs are listed; those of Onbeat are not imported.
    """
    declared = declarations()
    of_plugs = {
        name: (verb.command, verb.help)
        for plug in (find_plugs() if declared.origins else declared).plugs
        for name, verb in plug.verbs.items()
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
        try:
            return load(place, click.Command)
        except Exception as error:
            if not _is_of_package(cmd_name):
                raise
            ctx.fail(f"the verb {cmd_name!r} of a package cannot be loaded: {problem_of(error)}")

    def invoke(self, ctx: click.Context) -> object:
        """Call a verb. Warnings about plugs are shown even before it has set up the log."""
        from onbeat.cli.plug_warnings import show_warnings  # noqa: PLC0415 - not for `--help`

        show_warnings()
        return super().invoke(ctx)


def _is_of_package(verb: str) -> bool:
    return any(verb in plug.verbs and is_from_package(plug) for plug in declarations().plugs)


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
