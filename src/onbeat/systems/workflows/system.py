"""The workflows of a process: the registrar, the catalog, the run launcher, and deploying."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from hashlib import sha256
from typing import Literal

import msgspec

from onbeat.core.schedule import check_id
from onbeat.errors import InvalidSchedule, NotAllowed, RevisionConflict, in_field, quote_value
from onbeat.events import Event
from onbeat.service.service import Service
from onbeat.systems.field_names import check_fields
from onbeat.systems.workflows.catalog import Catalog
from onbeat.systems.workflows.registrar import (
    DEPLOYED,
    OPTIONAL,
    TRIES,
    Registrar,
    WorkflowDefaults,
    check_may,
)
from onbeat.systems.workflows.run_launcher import RunLauncher, check_start
from onbeat.systems.workflows.store import (
    Dag,
    DatabaseStore,
    DirectoryStore,
    WorkflowStore,
    check_dag,
    check_text,
    check_workflow,
    owned_name,
)

log = logging.getLogger("onbeat.systems")

TURN = "workflow-deployed"  # document kind: the latest deployment of a workflow
SCHEDULE_BASED = "schedule_based"
MOST_TRIGGERS = 100  # of one DAG
TRIGGER_FIELDS = {
    "id": "such as morning",
    "schedule": '{"cron_expr": "0 9 * * *", "timezone": "UTC"}',
}
NEAR = 0.8  # similarity to the name of a type; those of events are less similar
TRIGGER_SCHEDULE_FIELDS = {"cron_expr", "timezone", *OPTIONAL} - {"schedule_id"}


class Workflows:
    """The use cases of this system, for the caller of `service`."""

    def __init__(
        self,
        service: Service,
        *,
        store_for: Callable[[Service], WorkflowStore],
        run_launcher: RunLauncher,
        defaults: WorkflowDefaults,
    ) -> None:
        self._service, self._defaults, self._store_for = service, defaults, store_for
        self.store = store_for(service)
        self.registrar = Registrar(service, defaults=defaults, new_id=service.new_id)
        self.catalog = Catalog(service, self.store)
        self.run_launcher = run_launcher  # it checks the owner of a DAG

    def of(self, service: Service) -> "Workflows":
        """Return the same use cases for another caller."""
        return Workflows(
            service,
            store_for=self._store_for,
            run_launcher=self.run_launcher,
            defaults=self._defaults,
        )

    async def start(self) -> None:
        """Bring stored schedules in line with the settings."""
        if isinstance(self.store, DirectoryStore) and not self.store.exists():
            log.warning(
                "workflows_folder: %s is not a folder (the first deployment creates it)",
                self.store.folder,
            )
        await self.registrar.apply_settings()

    def on_events(self, at: int, events: Sequence[Event]) -> None:
        """Do nothing: the settings do not change."""

    async def stop(self) -> None:
        """Do nothing: only the start does work."""

    async def deploy(
        self,
        dag: Dag,
        *,
        workflow_id: str | None = None,
        version: int | None = None,
        user_id: str | None = None,
    ) -> dict[str, object]:
        """Store a DAG, and define the schedules of its `schedule_based` triggers.

        Each trigger gets the schedule `{workflow_id}/{trigger id}`; schedules of removed triggers
        are deleted. All schedules change in one transaction, after the DAG was stored for the user.
        Of two concurrent deployments one wins completely. Omitted arguments are read from the DAG.
        """
        check_dag(dag)
        arguments = {"workflow_id": workflow_id, "version": version, "user_id": user_id}
        from_dag = {"workflow_id": dag.get("workflow_id", dag.get("id"))}
        about = {
            name: value if value is not None else from_dag.get(name, dag.get(name))
            for name, value in arguments.items()
        }
        for name, value in about.items():
            if value is None:
                hint = f"{name} beside the DAG, or in it"
                raise InvalidSchedule(name, "it is missing", hint=hint)
        check_workflow(about["workflow_id"], about["version"])
        check_text("user_id", about["user_id"])
        self._check_user(str(about["user_id"]), "define")
        caller = self._service.caller
        if self.run_launcher.imports_code and not (caller.is_local or caller.may("admin")):
            problem = "on Ray a DAG names code to import"
            raise NotAllowed(problem, hint="a token with scope admin deploys it")
        if self._service.caller.only_owner is not None and not isinstance(
            self.store, DatabaseStore
        ):
            problem = "the DAGs are files without an owner"
            raise NotAllowed(problem, hint="a token without an owner, or no workflows_folder")
        fields = [about | each for each in trigger_schedules(dag, str(about["workflow_id"]))]
        for each in fields:
            with in_field(f"triggers.{str(each['schedule_id']).rpartition('/')[2]}"):
                self.registrar.read(each)  # before anything is stored
        return await self._deploy(dag, about, fields)

    async def _deploy(
        self, dag: Dag, about: Mapping[str, object], fields: list[dict[str, object]]
    ) -> dict[str, object]:
        workflow_id, user_id = str(about["workflow_id"]), str(about["user_id"])
        version = about["version"]
        assert isinstance(version, int), "it was checked"
        schedules = [self.registrar.read(each) for each in fields]
        wanted = {each.schedule_id for each in schedules}
        contents = {"version": version, "asked": fields}
        turn = DeployTurn(self._service, workflow_id, user_id, contents)
        for _ in range(TRIES):
            existing = await self.registrar.check_free(schedules)  # before anything is stored
            deployed = await self.registrar.deployed(workflow_id, user_id)
            await self._service.check_changes([*existing.values(), *deployed])
            await turn.take()
            existing = await self.registrar.check_free(schedules)
            deployed = await self.registrar.deployed(workflow_id, user_id)
            removed = [row for row in deployed if row.schedule_id not in wanted]
            await self.store.save_dag(workflow_id, version, dag, user_id=user_id)
            with suppress(RevisionConflict):
                defined = await self.registrar.put(
                    schedules, existing, source=DEPLOYED, remove=removed
                )
                if await turn.is_own():
                    ids = sorted(row.schedule_id for row in removed)
                    deployed_as = {"workflow_id": workflow_id, "version": version}
                    return {**deployed_as, "schedules": defined, "removed": ids}
        problem = f"{quote_value(workflow_id)} is being deployed concurrently"
        raise InvalidSchedule("workflow_id", problem, hint="try again")

    async def start_workflow(
        self,
        workflow_id: str,
        version: int,
        user_id: str,
        scheduled_for: str,
        idempotency_key: str,
        *,
        inputs: Mapping[str, object] | None = None,
    ) -> bool:
        """Hand a workflow to the executor now, for a user whom the caller may act for.

        No run is recorded, so the executor cannot report an outcome. A caller with an owner gets a
        key that is derived from the owner and the given key.
        """
        check_start(workflow_id, version, user_id, scheduled_for, idempotency_key, inputs=inputs)
        self._check_user(user_id, "operate")
        key = self._manual_key(idempotency_key)
        return await self.run_launcher.start(
            workflow_id, version, user_id, scheduled_for, key, inputs=inputs
        )

    def _manual_key(self, key: str) -> str:
        """Return a key that differs from those of runs and of other owners."""
        owner = self._service.caller.only_owner
        return key if owner is None else sha256(f"by hand\0{owner}\0{key}".encode()).hexdigest()

    def _check_user(self, user_id: str, scope: Literal["operate", "define"]) -> None:
        """Refuse a caller who may not act for a user, before anything is done."""
        check_may(self._service, scope)
        caller = self._service.caller
        if caller.only_owner not in (None, user_id):
            problem = f"workflows of {quote_value(user_id)} are not {caller.only_owner}'s"
            raise NotAllowed(problem, hint=f"user_id: {caller.only_owner}")


def check_deployed(deployment: object) -> None:
    """Refuse an invalid deployment, given as one object: a DAG and the fields beside it."""
    check_fields(deployment, {"dag", "workflow_id", "version", "user_id"})
    assert isinstance(deployment, Mapping), "check_fields accepted it"
    if "dag" not in deployment:
        raise InvalidSchedule("dag", "it is missing", hint='{"dag": {"nodes": [...]}}')
    check_dag(deployment["dag"])
    beside = {name: value for name, value in deployment.items() if value is not None}
    for name in ("workflow_id", "user_id"):
        check_text(name, beside.get(name, "a text"))
    check_workflow("a text", beside.get("version", 0))


class DeployTurn:
    """Decides which of several concurrent deployments wins: the last to take the turn.

    A deployment that lost the turn tries again. Identical deployments share a turn.
    """

    def __init__(self, service: Service, workflow_id: str, user_id: str, contents: object) -> None:
        self._service, self._user_id = service, service.caller.owner or user_id
        self._name = owned_name(workflow_id, self._user_id)
        self._contents = msgspec.json.decode(msgspec.json.encode(contents))

    async def take(self) -> None:
        await self._service.keep(TURN, self._name, self._contents, user_id=self._user_id)

    async def is_own(self) -> bool:
        found = await self._service.kept(TURN, self._name)
        return found is not None and found.body == self._contents


def trigger_schedules(dag: Dag, workflow_id: str) -> Iterator[dict[str, object]]:
    """Yield the fields of the schedules of a DAG's triggers, or refuse them."""
    ids: set[str] = set()
    for where, trigger in _triggers_of(dag):
        if not _is_schedule_based(where, trigger):
            continue  # such as a trigger by events
        _check_part("workflow_id", workflow_id, f"{workflow_id}/x")
        with in_field(where):
            name, schedule = trigger.get("id"), trigger.get("schedule")
            for field, example in TRIGGER_FIELDS.items():
                if trigger.get(field) is None:
                    raise InvalidSchedule(field, "it is missing", hint=example)
            check_text("id", name)
            if "/" in str(name):
                raise InvalidSchedule(
                    "id", f"{quote_value(name)} has a slash", hint="such as morning"
                )
            schedule_id = f"{workflow_id}/{name}"
            _check_part("id", str(name), schedule_id)
            if not isinstance(schedule, Mapping):
                hint = TRIGGER_FIELDS["schedule"]
                raise InvalidSchedule(
                    "schedule", f"{quote_value(schedule)} is not a schedule", hint=hint
                )
            if extra := schedule.keys() - TRIGGER_SCHEDULE_FIELDS:
                hint = f"known: {', '.join(sorted(TRIGGER_SCHEDULE_FIELDS))}"
                raise InvalidSchedule(f"schedule.{min(extra)}", "no field has this name", hint=hint)
            if name in ids:
                raise InvalidSchedule(
                    "id", f"two triggers are called {quote_value(name)}", hint="a unique id"
                )
        ids.add(str(name))
        if len(ids) > MOST_TRIGGERS:
            raise InvalidSchedule("triggers", "too many", hint=f"{MOST_TRIGGERS} at most")
        fields = {each: value for each, value in schedule.items() if value is not None}
        yield {"timezone": "UTC", **fields, "schedule_id": schedule_id}


def _is_schedule_based(where: str, trigger: Mapping[str, object]) -> bool:
    """Return whether a trigger is `schedule_based`; refuse a misspelled type."""
    kind = "type" if "type" in trigger else "kind"
    value = trigger.get(kind)
    if value == SCHEDULE_BASED or not isinstance(value, str):
        return value == SCHEDULE_BASED
    if get_close_matches(value[:64].casefold(), [SCHEDULE_BASED], cutoff=NEAR):
        problem, hint = (
            f"no type is called {quote_value(value)}",
            f"did you mean {SCHEDULE_BASED!r}?",
        )
        raise InvalidSchedule(f"{where}.{kind}", problem, hint=hint)
    return False


def _check_part(field: str, part: str, whole: str) -> None:
    """Refuse a part that does not make a valid schedule id, naming its field."""
    try:
        check_id(whole)
    except InvalidSchedule as refused:
        problem = f"{quote_value(part)} cannot be part of an id"
        raise InvalidSchedule(field, problem, hint=refused.hint) from None


def _triggers_of(dag: Dag) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the triggers of a DAG and their fields: `triggers`, and a single `trigger`."""
    listed, single = dag.get("triggers"), dag.get("trigger")
    if listed is not None and not isinstance(listed, (list, tuple)):
        problem = f"{quote_value(listed)} is not a list"
        raise InvalidSchedule("triggers", problem, hint='[{"id": ..., "type": ...}]')
    found = [(f"triggers[{n}]", each) for n, each in enumerate(listed or ())]
    found += [("trigger", single)] if single is not None else []
    for where, trigger in found:
        if not isinstance(trigger, Mapping):
            hint = '{"id": "morning", "type": "schedule_based", "schedule": {...}}'
            raise InvalidSchedule(where, f"{quote_value(trigger)} is not a trigger", hint=hint)
        yield where, trigger
