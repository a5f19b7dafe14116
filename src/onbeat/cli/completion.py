"""`onbeat completion`: completion of commands, options and schedules in bash, zsh and fish."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import click
from click.shell_completion import get_completion_class

from onbeat.cli.verbs import Verb

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_ONBEAT_COMPLETE"  # as click derives it from the name of the program
MOST_NAMES = 500
PATIENCE = 0.2  # seconds to wait for a lock of the database
# The store's own readers open a database for writing, and take longer to import than a user waits.
STARTING_WITH = """
    SELECT schedule_id FROM schedules
    WHERE deleted_at IS NULL AND schedule_id >= ?1 AND substr(schedule_id, 1, length(?1)) = ?1
    ORDER BY schedule_id LIMIT ?2
"""


@click.command(
    cls=Verb,
    examples=[
        """echo 'eval "$(onbeat completion bash)"' >> ~/.bashrc""",
        """echo 'eval "$(onbeat completion zsh)"' >> ~/.zshrc""",
        "onbeat completion fish > ~/.config/fish/completions/onbeat.fish",
    ],
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def completion(shell: str, as_json: bool) -> None:
    """Print a shell completion script (commands, options and schedule names).

    Names are read from the SQLite database that the settings name.
    """
    from onbeat.cli.command import main  # noqa: PLC0415 - it imports this module by name

    shell_class = get_completion_class(shell)
    assert shell_class is not None, "click completes in these shells"
    script = click.shell_completion.ShellComplete.source(shell_class(main, {}, "onbeat", VARIABLE))
    if as_json:
        import msgspec  # noqa: PLC0415 - not needed to complete a name

        click.echo(msgspec.json.encode({"shell": shell, "script": script}))
    else:
        click.echo(script)


def complete_schedules(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the schedules of the local database that begin so; none if it cannot be read."""
    try:
        path = _database_path(ctx.params.get("database"), ctx.params.get("config"))
        given = {
            each for value in ctx.params.values() if isinstance(value, tuple) for each in value
        }
        return [] if path is None else [n for n in _names(path, incomplete) if n not in given]
    except Exception:  # noqa: BLE001 - a shell that completes shows no errors
        return []


def _database_path(database: str | None, config: Path | None) -> Path | None:
    from onbeat.app.settings import Settings  # noqa: PLC0415 - only where a name is completed

    settings = Settings.load(
        flags={"database": database}, environment=os.environ, file=config, folder=Path()
    )
    return settings.database_path


def _names(path: Path, start: str) -> list[str]:
    """Return the schedules whose names begin so, without changing any file of the database."""
    # Without a WAL nothing is being written, and nothing but an immutable database could be read
    # without creating one.
    has_wal = path.with_name(f"{path.name}-wal").exists()
    uri = f"file:{quote(str(path.absolute()))}?{'mode=ro' if has_wal else 'immutable=1'}"
    with closing(sqlite3.connect(uri, uri=True, timeout=PATIENCE)) as connection:
        return [name for (name,) in connection.execute(STARTING_WITH, (start, MOST_NAMES))]
