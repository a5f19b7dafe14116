"""What a process has of a Ray cluster: the launcher, and the clean-up of its runners."""

from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from onbeat.host.connections import connect, reason_of
from onbeat.host.extras import install_command
from onbeat.host.output_files import output_path
from onbeat.ports.launcher import Launcher
from onbeat.ports.system import Part, Peer, PeerCheck, PeerContext
from onbeat.service.process import CheckUrl, Process
from onbeat.systems.base import PeriodicCleanup
from onbeat.systems.ray.launcher import RayLauncher
from onbeat.systems.ray.link import NO_RAY, GatewayEnded, Link
from onbeat.systems.ray.settings import RaySettings

ANSWERS_WITHIN = 20.0  # seconds: a process that has Ray in it is started to ask


def make(process: Process) -> Part:
    """Return the launcher for the cluster of the settings; without one it only checks."""
    settings = process.settings.of(RaySettings)
    if not settings.address:
        launcher = RayLauncher(None)
        return Part(launchers={"ray": launcher}, surface=launcher)
    folder = settings.working_dir
    link = Link(
        settings.address,
        f"onbeat-{process.store_id}",  # a namespace: other schedulers have other run names
        environment=process.environment,
        working_dir=str(Path(folder).expanduser().absolute()) if folder else "",
        lease=settings.lease / 1000,
    )
    launcher = RayLauncher(
        link, records=process.store, path_of=partial(output_path, process.output)
    )
    return Part(
        launchers={"ray": launcher},
        background=[PeriodicCleanup("runners", launcher.tidy)],
        listeners=[launcher.on_events],
        surface=launcher,
    )


def checkers(_check_url: CheckUrl) -> Mapping[str, Launcher]:
    """Return a launcher that only checks targets."""
    return {"ray": RayLauncher(None)}


def peers(context: PeerContext) -> Sequence[Peer]:
    """Return the cluster of the settings."""
    settings = context.settings.of(RaySettings)
    if not settings.address:
        return ()
    return [Peer("ray", partial(_check_cluster, context, settings), longest=ANSWERS_WITHIN)]


async def _check_cluster(context: PeerContext, settings: RaySettings) -> PeerCheck:
    """Check whether there is a cluster at the address. At a start it is only connected to."""
    address, folder = settings.address, settings.working_dir
    if find_spec("ray") is None:
        return PeerCheck("ray", "fail", NO_RAY, install_command("ray"))
    hint = "ray start --head starts one; ray_address names it"
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        try:
            await connect(host.strip("[]"), int(port))
        except OSError as broken:
            return PeerCheck("ray", "fail", f"no cluster at {address}: {reason_of(broken)}", hint)
        if context.is_start:
            return PeerCheck("ray", "ok", f"{address} accepts connections")
    elif context.is_start:
        return PeerCheck("ray", "ok", f"ray is installed; the first run connects to {address}")
    lease = ANSWERS_WITHIN * 3
    link = Link(address, "onbeat-doctor", environment=context.environment, lease=lease)
    try:
        await link.cluster()
    except GatewayEnded as cut:
        return PeerCheck("ray", "fail", str(cut), hint)
    finally:
        await link.close()
    code = f", code from {folder}" if folder else ""
    return PeerCheck("ray", "ok", f"cluster at {address}{code}")
