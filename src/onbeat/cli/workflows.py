"""`onbeat workflows`: the DAGs that are kept, and the schedules that use them."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import click

from onbeat.app.launchers import workflow_store
from onbeat.app.settings import Settings
from onbeat.cli.session import JSON, ask, with_settings, write_json, write_table
from onbeat.service.service import Service
from onbeat.systems.workflows.catalog import Catalog
from onbeat.systems.workflows.store import DatabaseStore

T = TypeVar("T")

VERSION = click.option("--version", "-v", type=click.IntRange(0), help="One version; else all.")
USER = click.option("--user", "user_id", help="Only those of this user.")
MOST = 1000


@click.group(invoke_without_command=True)
@USER
@JSON
@with_settings()
def workflows(settings: Settings, user_id: str | None, as_json: bool) -> None:
    """Show the workflows that are kept; `show` and `delete` work on one of them."""
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        # What was asked before the verb holds for the verb, unless that says otherwise.
        context.default_map = dict.fromkeys(workflows.commands, context.params)
        return

    async def work(catalog: Catalog) -> list[Mapping[str, object]]:
        found: list[Mapping[str, object]] = []
        after: object = ""
        while after is not None:
            page = await catalog.list_workflows(user_id=user_id, after=str(after), limit=MOST)
            found += _rows(page["workflows"])
            after = page["next"]
        return found

    found = _asked(settings, work)
    if as_json:
        write_json(found)
    elif found:
        write_table(("WORKFLOW", "VERSION", "USER", "UPDATED AT"), [_cells(row) for row in found])
    else:
        click.echo("no workflows (POST /schedules/deploy keeps one)")


@workflows.command()
@click.argument("workflow_id", metavar="ID")
@VERSION
@USER
@JSON
@with_settings()
def show(
    settings: Settings, workflow_id: str, version: int | None, user_id: str | None, as_json: bool
) -> None:
    """Show the versions of a workflow and the schedules that use them; or the DAG of one."""
    if version is not None:
        dag = _asked(settings, lambda its: its.get_version(workflow_id, version, user_id=user_id))
        write_json(dag)  # a DAG is JSON in any case
        return
    found = _asked(settings, lambda its: its.get_workflow(workflow_id, user_id=user_id))
    if as_json:
        write_json(found)
        return
    rows = [(*_cells(row), _listed(row["schedules"])) for row in _rows(found["versions"])]
    write_table(("WORKFLOW", "VERSION", "USER", "UPDATED AT", "SCHEDULES"), rows)


@workflows.command()
@click.argument("workflow_id", metavar="ID")
@VERSION
@USER
@click.option("--cascade", is_flag=True, help="Delete the schedules that use it as well.")
@JSON
@with_settings()
def delete(
    settings: Settings,
    workflow_id: str,
    version: int | None,
    user_id: str | None,
    cascade: bool,
    as_json: bool,
) -> None:
    """Delete a version of a workflow, or all; refused if schedules use it, unless --cascade."""
    found = _asked(
        settings,
        lambda its: its.delete_workflow(workflow_id, version, user_id=user_id, cascade=cascade),
    )
    if as_json:
        write_json(found)
        return
    schedules = found["schedules"]
    assert isinstance(schedules, list), "it is a list of ids"
    for name in schedules:
        click.echo(f"deleted schedule {name}")
    for row in _rows(found["deleted"]):
        click.echo(f"deleted {row['workflow_id']} v{row['version']}{_of(row)}")


def _asked(settings: Settings, work: Callable[[Catalog], Awaitable[T]]) -> T:
    def with_catalog(service: Service) -> Awaitable[T]:
        store = workflow_store(settings, DatabaseStore(service, owner=service.caller.owner))
        return work(Catalog(service, store))

    return ask(settings, with_catalog)


def _rows(found: object) -> Sequence[Mapping[str, object]]:
    assert isinstance(found, list), "it is a list of versions"
    return found


def _cells(row: Mapping[str, object]) -> tuple[str, str, str, str]:
    told = (row["workflow_id"], row["version"], row["user_id"] or "-", row["updated_at"])
    workflow_id, version, user_id, updated_at = map(str, told)
    return workflow_id, version, user_id, updated_at


def _listed(found: object) -> str:
    assert isinstance(found, list), "it is a list of ids"
    return " ".join(found) or "-"


def _of(row: Mapping[str, object]) -> str:
    return "" if row["user_id"] is None else f" of {row['user_id']}"
