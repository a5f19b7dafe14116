"""`onbeat reminders`."""

import click

from onbeat.app.settings import Settings
from onbeat.cli.runtime import JSON, with_service, with_settings, write_json
from onbeat.cli.verbs import Verb
from onbeat_toys.reminders.system import listed


@click.command(cls=Verb, examples=["onbeat reminders"])
@JSON
@with_settings()
def reminders(settings: Settings, as_json: bool) -> None:
    """List reminders."""
    ids = [row.schedule_id for row in with_service(settings, listed)]
    if as_json:
        write_json(ids)
    else:
        click.echo("\n".join(ids))
