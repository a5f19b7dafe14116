"""What a process has of flows: the launcher on a panel, and the timer that reads its exposes."""

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from onbeat.ports.launcher import Launcher
from onbeat.ports.system import Groups, Part, Peer, PeerCheck, PeerContext, SourceFile
from onbeat.service.process import CheckUrl, Process
from onbeat.systems.base import Cluster, cluster_of
from onbeat.systems.flows.config import TIMER_NAME, TIMER_NAMESPACE
from onbeat.systems.flows.expose_files import Exposes
from onbeat.systems.flows.exposes import read_exposes
from onbeat.systems.flows.launcher import FlowLauncher
from onbeat.systems.flows.panel import Panel, PanelAway, PanelRefuses
from onbeat.systems.flows.settings import FlowsSettings
from onbeat.systems.flows.system import FlowTimer
from onbeat.systems.flows.timer_log import TimerLog


def make(process: Process) -> Part:
    """Return the launcher of flows, and the timer if the settings name exposes."""
    settings = process.settings.of(FlowsSettings)
    launcher = FlowLauncher()
    if settings.panel:
        panel = Panel(
            process.requests.ask, settings.panel, user=settings.user, password=settings.password
        )
        launcher = FlowLauncher(panel, process.store, interval=settings.interval)
    if not settings.exposes:
        return Part(launchers={"flow": launcher}, listeners=[launcher.on_events])
    cluster = cluster_of(process)
    timer = _timer(process, settings, launcher, cluster)
    if cluster is not None:
        cluster.on_begun = timer.on_begun
    return Part(
        launchers={"flow": launcher},
        listeners=[launcher.on_events],
        background=[timer],
        surface=timer,
    )


def checkers(_check_url: CheckUrl) -> Mapping[str, Launcher]:
    """Return a launcher that only checks targets."""
    return {"flow": FlowLauncher()}


def peers(context: PeerContext) -> Sequence[Peer]:
    """Return the panel of the settings."""
    settings = context.settings.of(FlowsSettings)
    return [Peer("panel", partial(_check_panel, context, settings))] if settings.panel else ()


def _timer(
    process: Process, settings: FlowsSettings, launcher: FlowLauncher, cluster: Cluster | None
) -> FlowTimer:
    path = Path(settings.log_file).expanduser() if settings.log_file else None
    return FlowTimer(
        process.service,
        Exposes(Path(settings.exposes).expanduser()),
        user=settings.user,
        interval=settings.interval,
        pid=os.getpid(),
        timer_log=TimerLog(path, file_level=settings.log_file_level, std_level=settings.std_level),
        panel=settings.panel,
        look_at_panel=launcher.look if settings.panel else None,
        mirrors=[] if cluster is None else [_ClusterMirror(cluster)],
    )


class _ClusterMirror:
    """Shows the flow timer on the Ray cluster, as an actor."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def update(self, meta: Mapping[str, object]) -> None:
        await self._cluster.mirror(TIMER_NAME, TIMER_NAMESPACE, meta)


async def _check_panel(context: PeerContext, settings: FlowsSettings) -> PeerCheck:
    """Log in to the panel."""
    panel = Panel(context.ask, settings.panel, user=settings.user, password=settings.password)
    try:
        await panel.check()
    except PanelAway as away:
        hint = "start the panel, or correct flows_panel"
        return PeerCheck("panel", "fail", f"{panel.url} does not answer: {away}", hint)
    except PanelRefuses as refused:
        hint = f"correct the password of {panel.user!r} that flows_password refers to"
        return PeerCheck("panel", "fail", f"{refused}", hint)
    return PeerCheck("panel", "ok", f"{panel.url} accepts the login of {panel.user!r}")


def source_files(settings: Groups) -> Iterator[SourceFile]:
    """Yield the exposes of the settings."""
    path = settings.of(FlowsSettings).exposes
    if path:
        exposes = Exposes(Path(path).expanduser())
        yield SourceFile(str(exposes.path), partial(_problems_of, exposes))


def _problems_of(exposes: Exposes) -> list[str]:
    found = read_exposes(exposes.read(), exposes.parse)
    return [f"{key}: {problem}" for key, problem in found.invalid.items()]
