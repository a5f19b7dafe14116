"""The workflows of a process: the registrar, the run launcher, and deploying a DAG."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from hashlib import sha256
from typing import Literal

import msgspec

from onbeat.core.schedule import check_id
from onbeat.errors import ChangedSince, InvalidSchedule, NotAllowed, naming, shown
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

TURN = "workflow-deployed"  # documents that say what was deployed last
SCHEDULE_BASED = "schedule_based"
MOST_TRIGGERS = 100  # of one DAG
OF_A_TRIGGER_ITSELF = {
    "id": "such as morning",
    "schedule": '{"cron_expr": "0 9 * * *", "timezone": "UTC"}',
}
NEAR = 0.8  # to the name of a type: those of events are further away
OF_A_TRIGGER = {"cron_expr", "timezone", *OPTIONAL} - {"schedule_id"}


class Workflows:
    """What this system offers, for whoever `service` is for."""

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
        self.run_launcher = run_launcher  # it looks itself whose a DAG is

    def of(self, service: Service) -> "Workflows":
        """Return the same as this caller may have it."""
        return Workflows(
            service,
            store_for=self._store_for,
            run_launcher=self.run_launcher,
            defaults=self._defaults,
        )

    async def begin(self) -> None:
        """Have the schedules that are there be as the settings say by now."""
        if isinstance(self.store, DirectoryStore) and not self.store.is_there():
            log.warning("workflows_folder: %s is no folder (deploying makes it)", self.store.folder)
        await self.registrar.hold_to_settings()

    def heard(self, at: int, events: Sequence[Event]) -> None:
        """Hear nothing: the settings stay as they are."""

    async def end(self) -> None:
        """End nothing: it is at work only as it begins."""

    async def deploy(
        self,
        dag: Dag,
        *,
        workflow_id: str | None = None,
        version: int | None = None,
        user_id: str | None = None,
    ) -> dict[str, object]:
        """Keep a DAG, and have the schedules that its `schedule_based` triggers ask for.

        Each trigger has a schedule of its own, `{workflow_id}/{id of the trigger}`; those that this
        has made for triggers that are no more are taken away. The schedules change all at once, or
        not at all; before that, the DAG is there, and it is the user's. Of two at the same time one
        is there in the end, whole. What is not said here may stand in the DAG.
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
        caller = self._service.caller
        if self.run_launcher.imports_code and not (caller.is_local or caller.may("admin")):
            problem = "on Ray a DAG names code to import"
            raise NotAllowed(problem, hint="a token with scope admin deploys it")
        if self._service.caller.only_of is not None and not isinstance(self.store, DatabaseStore):
            problem = "the DAGs are files, and nobody's in particular"
            raise NotAllowed(problem, hint="a token without an owner, or no workflows_folder")
        asked = [known | fields for fields in schedules_of(dag, str(known["workflow_id"]))]
        for each in asked:
            with naming(f"triggers.{str(each['schedule_id']).rpartition('/')[2]}"):
                self.registrar.read(each)  # before anything is kept
        return await self._deploy(dag, known, asked)

    async def _deploy(
        self, dag: Dag, known: Mapping[str, object], asked: list[dict[str, object]]
    ) -> dict[str, object]:
        workflow_id, user_id = str(known["workflow_id"]), str(known["user_id"])
        version = known["version"]
        assert isinstance(version, int), "it was checked"
        schedules = [self.registrar.read(each) for each in asked]
        wanted = {each.schedule_id for each in schedules}
        turn = DeployTurn(self._service, workflow_id, user_id, {"version": version, "asked": asked})
        for _ in range(TRIES):
            there = await self.registrar.check_free(schedules)  # before anything is kept
            deployed = await self.registrar.deployed(workflow_id, user_id)
            await self._service.check_changes([*there.values(), *deployed])
            await turn.take()
            there = await self.registrar.check_free(schedules)
            deployed = await self.registrar.deployed(workflow_id, user_id)
            gone = [row for row in deployed if row.schedule_id not in wanted]
            await self.store.save_dag(workflow_id, version, dag, user_id=user_id)
            with suppress(ChangedSince):
                made = await self.registrar.put(schedules, there, source=DEPLOYED, remove=gone)
                if await turn.is_own():
                    removed = sorted(row.schedule_id for row in gone)
                    about = {"workflow_id": workflow_id, "version": version}
                    return {**about, "schedules": made, "removed": removed}
        problem = f"others deploy {shown(workflow_id)} at the same time"
        raise InvalidSchedule("workflow_id", problem, hint="once more")

    async def start(
        self,
        workflow_id: str,
        version: int,
        user_id: str,
        scheduled_for: str,
        idempotency_key: str,
        *,
        inputs: Mapping[str, object] | None = None,
    ) -> bool:
        """Hand a workflow over at once, for a user whom the caller may speak for.

        No run is recorded, so that the executor has nobody to tell of its end. Of a caller who has
        an owner it sees a key that is made of both.
        """
        check_start(workflow_id, version, user_id, scheduled_for, idempotency_key, inputs=inputs)
        self._check_may_speak_for(user_id, "operate")
        key = self._key_by_hand(idempotency_key)
        return await self.run_launcher.start(
            workflow_id, version, user_id, scheduled_for, key, inputs=inputs
        )

    def _key_by_hand(self, key: str) -> str:
        """Return a key that is no other owner's, and of no run: executors run each key once."""
        owner = self._service.caller.only_of
        return key if owner is None else sha256(f"by hand\0{owner}\0{key}".encode()).hexdigest()

    def _check_may_speak_for(self, user_id: str, scope: Literal["operate", "define"]) -> None:
        """Refuse whoever may not do this for a user, before anything is done."""
        check_may(self._service, scope)
        caller = self._service.caller
        if caller.only_of not in (None, user_id):
            problem = f"workflows of {shown(user_id)} are not {caller.only_of}'s"
            raise NotAllowed(problem, hint=f"user_id: {caller.only_of}")


def check_deployed(given: object) -> None:
    """Refuse what can be seen to be wrong in a DAG and what is said beside it, as one object."""
    check_fields(given, {"dag", "workflow_id", "version", "user_id"})
    assert isinstance(given, Mapping), "it was checked"
    if "dag" not in given:
        raise InvalidSchedule("dag", "it is missing", hint='{"dag": {"nodes": [...]}}')
    check_dag(given["dag"])
    beside = {name: value for name, value in given.items() if value is not None}
    for name in ("workflow_id", "user_id"):
        check_text(name, beside.get(name, "a text"))
    check_workflow("a text", beside.get("version", 0))


class DeployTurn:
    """Whose deploying of a workflow counts: of whoever took the turn last, and then looked.

    One who finds at the end that another took it looks again. What is the same takes nothing.
    """

    def __init__(self, service: Service, workflow_id: str, user_id: str, asked: object) -> None:
        self._service, self._user_id = service, service.caller.owner or user_id
        self._name = owned_name(workflow_id, self._user_id)
        self._asked = msgspec.json.decode(msgspec.json.encode(asked))

    async def take(self) -> None:
        await self._service.keep(TURN, self._name, self._asked, user_id=self._user_id)

    async def is_own(self) -> bool:
        found = await self._service.kept(TURN, self._name)
        return found is not None and found.body == self._asked


def schedules_of(dag: Dag, workflow_id: str) -> Iterator[dict[str, object]]:
    """Yield the fields of the schedules that the triggers of a DAG ask for, or refuse them."""
    ids: set[str] = set()
    for where, trigger in _triggers_of(dag):
        if not _is_schedule_based(where, trigger):
            continue  # those of events are somebody else's
        _check_part("workflow_id", workflow_id, f"{workflow_id}/x")
        with naming(where):
            name, schedule = trigger.get("id"), trigger.get("schedule")
            for field, example in OF_A_TRIGGER_ITSELF.items():
                if trigger.get(field) is None:
                    raise InvalidSchedule(field, "it is missing", hint=example)
            check_text("id", name)
            if "/" in str(name):
                raise InvalidSchedule("id", f"{shown(name)} has a slash", hint="such as morning")
            schedule_id = f"{workflow_id}/{name}"
            _check_part("id", str(name), schedule_id)
            if not isinstance(schedule, Mapping):
                hint = OF_A_TRIGGER_ITSELF["schedule"]
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
        yield {"timezone": "UTC", **asked, "schedule_id": schedule_id}


def _is_schedule_based(where: str, trigger: Mapping[str, object]) -> bool:
    """Return whether a trigger is of the type that is meant here; refuse what only nearly is."""
    kind = "type" if "type" in trigger else "kind"
    given = trigger.get(kind)
    if given == SCHEDULE_BASED or not isinstance(given, str):
        return given == SCHEDULE_BASED
    if get_close_matches(given[:64].casefold(), [SCHEDULE_BASED], cutoff=NEAR):
        problem, hint = f"no type is called {shown(given)}", f"did you mean {SCHEDULE_BASED!r}?"
        raise InvalidSchedule(f"{where}.{kind}", problem, hint=hint)
    return False


def _check_part(field: str, part: str, whole: str) -> None:
    """Refuse what would make no id of a schedule, by the field that it was given in."""
    try:
        check_id(whole)
    except InvalidSchedule as refused:
        problem = f"{shown(part)} cannot be a part of an id"
        raise InvalidSchedule(field, problem, hint=refused.hint) from None


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
