"""What a process has of workflows: the launcher of DAGs, and their schedules."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from onbeat.core.runs.run import Failed, Outcome
from onbeat.ports.http import HttpResponse
from onbeat.ports.launcher import Launcher
from onbeat.ports.system import Groups, Part, Peer, PeerCheck, PeerContext, SourceFile
from onbeat.service.process import CheckUrl, Process
from onbeat.service.service import Service
from onbeat.systems.base import cluster_of, peer_answers
from onbeat.systems.workflows.executors import (
    ON_RAY,
    CallableExecutor,
    Executor,
    HttpExecutor,
    RayExecutor,
)
from onbeat.systems.workflows.launcher import WorkflowLauncher
from onbeat.systems.workflows.registrar import WorkflowDefaults
from onbeat.systems.workflows.run_launcher import RunLauncher
from onbeat.systems.workflows.settings import WorkflowsSettings
from onbeat.systems.workflows.store import (
    Dag,
    DatabaseStore,
    WorkflowStore,
    configured_store,
    problems_in,
)
from onbeat.systems.workflows.system import Workflows

REFUSED = (401, 403)
NO_CLUSTER = "workflows_executor is ray, but ray_address is not set"


def make(process: Process) -> Part:
    """Return the launcher of DAGs, and the use cases of workflows."""
    settings = process.settings.of(WorkflowsSettings)
    executor = _executor(process, settings)
    dags = configured_store(settings, DatabaseStore(process.store))
    launcher = WorkflowLauncher(
        RunLauncher(dags, executor, clock=process.store.clock), report_timeout=settings.timeout
    )
    workflows = _workflows(process.service, settings, executor)
    # A node without an executor may lack the settings of those that have one.
    background = [] if executor is None else [workflows]
    return Part(launchers={"workflow": launcher}, background=background, surface=workflows)


def checkers(_check_url: CheckUrl) -> Mapping[str, Launcher]:
    """Return a launcher that only checks targets."""
    return {"workflow": WorkflowLauncher(None)}


def peers(context: PeerContext) -> Sequence[Peer]:
    """Return the executor of the settings. A Ray cluster is a peer of its own."""
    settings = context.settings.of(WorkflowsSettings)
    if settings.executor == ON_RAY:
        is_set = bool(context.settings.value("ray_address"))
        return [] if is_set else [Peer("ray", _refuse_ray)]
    return [Peer("executor", partial(_check_executor, context))] if settings.executor else []


def _executor(process: Process, settings: WorkflowsSettings) -> Executor | None:
    """Return what runs DAGs: a function of this program, or else what the settings name."""
    if process.execute is not None:
        return CallableExecutor(process.execute, in_thread=process.call_in_thread)
    if not settings.executor:
        return None
    if settings.executor == ON_RAY:
        cluster = cluster_of(process)
        return RayExecutor(_refuse_dag if cluster is None else cluster.run_dag)
    has_url = bool(process.settings.public_url or process.address)
    return HttpExecutor(
        settings.executor,
        process.requests.ask,
        token=settings.token,
        feedback=settings.feedback,
        callback=process.callback() if has_url else None,
    )


def _workflows(
    service: Service, settings: WorkflowsSettings, executor: Executor | None
) -> Workflows:
    def store_for(caller: Service) -> WorkflowStore:
        return configured_store(settings, DatabaseStore(caller, owner=caller.caller.owner))

    if isinstance(executor, HttpExecutor):  # a manual start has no run to report to
        executor = executor.without_callback()
    return Workflows(
        service,
        store_for=store_for,
        run_launcher=RunLauncher(store_for(service), executor, clock=service.clock),
        defaults=WorkflowDefaults(
            settings.overlap_policy,
            settings.catchup_policy,
            settings.jitter_ms,
            feedback=settings.feedback,
            timeout=settings.timeout,
        ),
    )


async def _refuse_dag(_key: str, _dag: Dag, _meta: Mapping[str, object]) -> Outcome:
    return Failed(NO_CLUSTER, "launch_failed", retryable=False)


async def _refuse_ray() -> PeerCheck:
    return PeerCheck("ray", "fail", NO_CLUSTER, 'ray_address = "10.0.0.7:6379", or "auto"')


async def _check_executor(context: PeerContext) -> PeerCheck:
    settings = context.settings.of(WorkflowsSettings)
    url, headers = settings.executor, dict[str, str]()
    if settings.token:
        headers["Authorization"] = f"Bearer {settings.token}"
    answer = await context.ask(
        "OPTIONS", f"{url}/execute", headers=headers, timeout=context.request_timeout, trusted=True
    )
    if isinstance(answer, HttpResponse) and answer.status in REFUSED and headers:
        hint = "correct the token that workflows_token refers to"
        return PeerCheck("executor", "fail", f"{url} refuses the token: {answer.error}", hint)
    return peer_answers("executor", url, answer, "start it, or correct workflows_executor")


def source_files(settings: Groups) -> Iterator[SourceFile]:
    """Yield the folder of DAGs of the settings."""
    if path := settings.of(WorkflowsSettings).folder:
        folder = Path(path).expanduser()
        yield SourceFile(str(folder), partial(problems_in, folder))
