"""`onbeat workflows`: stored DAGs, and the schedules that use them."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import click

from onbeat.app.settings import Settings
from onbeat.cli.runtime import JSON, with_service, with_settings, write_json
from onbeat.cli.tables import WIDE, Column, write_table
from onbeat.cli.verbs import ListingGroup, hand_down_options
from onbeat.service.service import Service
from onbeat.systems.workflows.catalog import Catalog
from onbeat.systems.workflows.settings import WorkflowsSettings
from onbeat.systems.workflows.store import DatabaseStore, configured_store

T = TypeVar("T")

VERSION = click.option(
    "--version", "-v", type=click.IntRange(0), help="The version. [default: all]"
)
USER = click.option("--user", "user_id", help="Only workflows of this user.")
PAGE = 1000
COLUMNS = (
    Column("WORKFLOW", least=12),
    Column("VERSION"),
    Column("USER", least=8, drop=1),
    Column("UPDATED AT"),
)


@click.group(
    cls=ListingGroup, examples=["onbeat workflows", "onbeat workflows show digest --version 1"]
)
@USER
@WIDE
@JSON
@with_settings()
def workflows(settings: Settings, user_id: str | None, wide: bool, as_json: bool) -> None:
    """List stored workflows; `show` and `delete` take the id of one."""
    if hand_down_options(workflows):
        return

    async def work(catalog: Catalog) -> list[Mapping[str, object]]:
        found: list[Mapping[str, object]] = []
        after: object = ""
        while after is not None:
            page = await catalog.list_workflows(user_id=user_id, after=str(after), limit=PAGE)
            found += _rows(page["workflows"])
            after = page["next"]
        return found

    found = _with_catalog(settings, work)
    if as_json:
        write_json(found)
    elif found:
        write_table(COLUMNS, [_cells(row) for row in found], wide=wide)
    else:
        click.echo("no workflows (POST /schedules/deploy stores one)")


@workflows.command(examples=["onbeat workflows show digest"])
@click.argument("workflow_id", metavar="ID")
@VERSION
@USER
@WIDE
@JSON
@with_settings()
def show(
    settings: Settings,
    workflow_id: str,
    version: int | None,
    user_id: str | None,
    wide: bool,
    as_json: bool,
) -> None:
    """Show the versions of a workflow and their schedules, or the DAG of one version."""
    if version is not None:
        dag = _with_catalog(
            settings, lambda catalog: catalog.get_version(workflow_id, version, user_id=user_id)
        )
        write_json(dag)  # also without --json
        return
    found = _with_catalog(
        settings, lambda catalog: catalog.get_workflow(workflow_id, user_id=user_id)
    )
    if as_json:
        write_json(found)
        return
    rows = [(*_cells(row), _schedules(row["schedules"])) for row in _rows(found["versions"])]
    write_table((*COLUMNS, Column("SCHEDULES", least=12)), rows, wide=wide)


@workflows.command(examples=["onbeat workflows delete digest --cascade"])
@click.argument("workflow_id", metavar="ID")
@VERSION
@USER
@click.option("--cascade", is_flag=True, help="Also delete the schedules that use it.")
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
    """Delete one version of a workflow, or all versions.

    It is refused if schedules use it, unless --cascade is given.
    """
    found = _with_catalog(
        settings,
        lambda catalog: catalog.delete_workflow(
            workflow_id, version, user_id=user_id, cascade=cascade
        ),
    )
    if as_json:
        write_json(found)
        return
    schedules = found["schedules"]
    assert isinstance(schedules, list), "a list of ids"
    for name in schedules:
        click.echo(f"deleted schedule {name}")
    for row in _rows(found["deleted"]):
        click.echo(f"deleted {row['workflow_id']} v{row['version']}{_owner(row)}")


def _with_catalog(settings: Settings, work: Callable[[Catalog], Awaitable[T]]) -> T:
    def connected(service: Service) -> Awaitable[T]:
        in_database = DatabaseStore(service, owner=service.caller.owner)
        store = configured_store(settings.of(WorkflowsSettings), in_database)
        return work(Catalog(service, store))

    return with_service(settings, connected)


def _rows(found: object) -> Sequence[Mapping[str, object]]:
    assert isinstance(found, list), "a list of versions"
    return found


def _cells(row: Mapping[str, object]) -> tuple[str, str, str, str]:
    fields = (row["workflow_id"], row["version"], row["user_id"] or "-", row["updated_at"])
    workflow_id, version, user_id, updated_at = map(str, fields)
    return workflow_id, version, user_id, updated_at


def _schedules(found: object) -> str:
    assert isinstance(found, list), "a list of ids"
    return " ".join(found) or "-"


def _owner(row: Mapping[str, object]) -> str:
    return "" if row["user_id"] is None else f" of {row['user_id']}"
