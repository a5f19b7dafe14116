"""`onbeat group`, `group list` and `group limit`: the groups, and their concurrency limits."""

import click
import msgspec

from onbeat.app.settings import Settings
from onbeat.cli.runtime import JSON, with_service, with_settings, write_json
from onbeat.cli.tables import WIDE, Column, write_table
from onbeat.cli.verbs import ListingGroup, hand_down_options

COLUMNS = (Column("GROUP", least=16), "PLACES", "USED", "WAITING")


class _Groups(ListingGroup):
    """A group that also takes `NAME PLACES`, which was the spelling of `limit NAME PLACES`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        positional = [each for each in args if not each.startswith("-")]
        if args[0] not in self.commands and len(positional) > 1:
            return "limit", self.commands["limit"], args
        return super().resolve_command(ctx, args)


@click.group(cls=_Groups, examples=["onbeat group", "onbeat group limit slow 2"])
@WIDE
@JSON
@with_settings()
def group(settings: Settings, wide: bool, as_json: bool) -> None:
    """List groups, or set the concurrency limit of one."""
    if not hand_down_options(group):
        _list(settings, wide=wide, as_json=as_json)


@group.command("list", examples=["onbeat group list --json"])
@WIDE
@JSON
@with_settings()
def list_(settings: Settings, wide: bool, as_json: bool) -> None:
    """List groups, with used places and waiting runs."""
    _list(settings, wide=wide, as_json=as_json)


@group.command(examples=["onbeat group limit slow 2"])
@click.argument("name")
@click.argument("places", metavar="N", type=int)
@JSON
@with_settings()
def limit(settings: Settings, name: str, places: int, as_json: bool) -> None:
    """Set a group's concurrency limit.

    At most N runs of its schedules run at the same time.
    """
    changed = with_service(
        settings, lambda service: service.set_group(name, places=places), create=True
    )
    if as_json:
        write_json({"group": name, "places": places, "changed": changed})
    else:
        click.echo(f"{name} has {places} place{'s' * (places != 1)}")


groups = click.Command(
    "groups", callback=list_.callback, params=list_.params, help=list_.help, hidden=True
)


def _list(settings: Settings, *, wide: bool, as_json: bool) -> None:
    found = with_service(settings, lambda service: service.groups())
    if as_json:
        write_json([msgspec.to_builtins(each) for each in found])
    elif found:
        rows = [(each.name, *map(str, (each.places, each.used, each.waiting))) for each in found]
        write_table(COLUMNS, rows, wide=wide)
    else:
        click.echo("no groups (a schedule with `group: NAME` creates one)")
