"""The workflows of a process: the registrar, the run launcher, and deploying a DAG."""

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from onbeat.errors import InvalidSchedule, NotAllowed, naming, shown
from onbeat.service import Service
from onbeat.systems.workflows.registrar import OPTIONAL, Defaults, Registrar, check_may
from onbeat.systems.workflows.run_launcher import RunLauncher, check_start
from onbeat.systems.workflows.store import (
    Dag,
    DatabaseStore,
    WorkflowStore,
    check_dag,
    check_text,
    check_workflow,
)

SCHEDULE_BASED = "schedule_based"
MOST_TRIGGERS = 100  # of one DAG
OF_A_TRIGGER = {"cron_expr", "timezone", *OPTIONAL} - {"schedule_id"}


class Workflows:
    """What this system offers, for whoever `service` is for."""

    def __init__(
        self,
        service: Service,
        *,
        store_for: Callable[[Service], WorkflowStore],
        launcher_for: Callable[[WorkflowStore], RunLauncher],
        defaults: Defaults,
    ) -> None:
        self._service, self._defaults = service, defaults
        self._store_for, self._launcher_for = store_for, launcher_for
        self.store = store_for(service)
        self.registrar = Registrar(service, defaults=defaults, new_id=service.new_id)
        self.run_launcher = launcher_for(self.store)

    def of(self, service: Service) -> "Workflows":
        """Return the same as this caller may have it."""
        return Workflows(
            service,
            store_for=self._store_for,
            launcher_for=self._launcher_for,
            defaults=self._defaults,
        )

    async def deploy(
        self,
        dag: Dag,
        *,
        workflow_id: str | None = None,
        version: int | None = None,
        user_id: str | None = None,
    ) -> dict[str, object]:
        """Keep a DAG, and have the schedules that its `schedule_based` triggers ask for.

        Each trigger has a schedule of its own, `{workflow_id}/{id of the trigger}`; those of
        triggers that it has no more are taken away. The schedules change all at once, or not at
        all; before that, the DAG is there. What is not said here may stand in the DAG.
        """
        check_dag(dag)
        given = {"workflow_id": workflow_id, "version": version, "user_id": user_id}
        of_dag = {"workflow_id": dag.get("workflow_id", dag.get("id"))}
        known = {
            name: value if value is not None else of_dag.get(name, dag.get(name))
            for name, value in given.items()
        }
        for name, value in known.items():
            if value is None:
                hint = f"{name} beside the DAG, or in it"
                raise InvalidSchedule(name, "it is missing", hint=hint)
        check_workflow(known["workflow_id"], known["version"])
        check_text("user_id", known["user_id"])
        self._check_may_speak_for(str(known["user_id"]), "define")
        if self._service.caller.only_of is not None and not isinstance(self.store, DatabaseStore):
            problem = "the DAGs are files, and nobody's in particular"
            raise NotAllowed(problem, hint="a token without an owner, or no workflows_folder")
        asked = [known | fields for fields in schedules_of(dag, str(known["workflow_id"]))]
        for each in asked:
            with naming(f"triggers.{str(each['schedule_id']).rpartition('/')[2]}"):
                self.registrar.read(each)  # before anything is kept
        return await self._deploy(dag, str(known["workflow_id"]), known["version"], asked)

    async def _deploy(
        self, dag: Dag, workflow_id: str, version: object, asked: list[dict[str, object]]
    ) -> dict[str, object]:
        assert isinstance(version, int), "it was checked"
        wanted = {each["schedule_id"] for each in asked}
        removed = [
            each for each in await self.registrar.deployed(workflow_id) if each not in wanted
        ]
        await self.store.save_dag(workflow_id, version, dag)
        made = await self.registrar.upsert_all(asked, remove=removed)
        return {
            "workflow_id": workflow_id,
            "version": version,
            "schedules": made,
            "removed": sorted(removed),
        }

    async def start(
        self,
        workflow_id: str,
        version: int,
        user_id: str,
        scheduled_for: str,
        idempotency_key: str,
    ) -> bool:
        """Hand a workflow over at once, for a user whom the caller may speak for."""
        check_start(workflow_id, version, user_id, scheduled_for, idempotency_key)
        self._check_may_speak_for(user_id, "operate")
        return await self.run_launcher.start(
            workflow_id, version, user_id, scheduled_for, idempotency_key
        )

    def _check_may_speak_for(self, user_id: str, scope: Literal["operate", "define"]) -> None:
        """Refuse whoever may not do this for a user, before anything is done."""
        check_may(self._service, scope)
        caller = self._service.caller
        if caller.only_of not in (None, user_id):
            problem = f"workflows of {shown(user_id)} are not {caller.only_of}'s"
            raise NotAllowed(problem, hint=f"user_id: {caller.only_of}")


def schedules_of(dag: Dag, workflow_id: str) -> Iterator[dict[str, object]]:
    """Yield the fields of the schedules that the triggers of a DAG ask for, or refuse them."""
    ids: set[str] = set()
    for where, trigger in _triggers_of(dag):
        if trigger.get("type", trigger.get("kind")) != SCHEDULE_BASED:
            continue  # those of events are somebody else's
        with naming(where):
            name, schedule = trigger.get("id"), trigger.get("schedule")
            check_text("id", name)
            if "/" in str(name):
                raise InvalidSchedule("id", f"{shown(name)} has a slash", hint="such as morning")
            if not isinstance(schedule, Mapping):
                hint = '{"cron_expr": "0 9 * * *", "timezone": "UTC"}'
                raise InvalidSchedule("schedule", f"{shown(schedule)} is none", hint=hint)
            if extra := schedule.keys() - OF_A_TRIGGER:
                hint = f"known: {', '.join(sorted(OF_A_TRIGGER))}"
                raise InvalidSchedule(f"schedule.{min(extra)}", "no field has this name", hint=hint)
            if name in ids:
                raise InvalidSchedule("id", f"two triggers are called {shown(name)}", hint="once")
        ids.add(str(name))
        if len(ids) > MOST_TRIGGERS:
            raise InvalidSchedule("triggers", "too many", hint=f"{MOST_TRIGGERS} at most")
        asked = {each: value for each, value in schedule.items() if value is not None}
        yield {"timezone": "UTC", **asked, "schedule_id": f"{workflow_id}/{name}"}


def _triggers_of(dag: Dag) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the triggers of a DAG and where they are: of the list, and a single one."""
    listed, single = dag.get("triggers"), dag.get("trigger")
    if listed is not None and not isinstance(listed, (list, tuple)):
        problem = f"{shown(listed)} is no list"
        raise InvalidSchedule("triggers", problem, hint='[{"id": ..., "type": ...}]')
    found = [(f"triggers[{n}]", each) for n, each in enumerate(listed or ())]
    found += [("trigger", single)] if single is not None else []
    for where, trigger in found:
        if not isinstance(trigger, Mapping):
            hint = '{"id": "morning", "type": "schedule_based", "schedule": {...}}'
            raise InvalidSchedule(where, f"{shown(trigger)} is no trigger", hint=hint)
        yield where, trigger
