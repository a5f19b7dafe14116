"""What a process has of services: the timers of their file."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from onbeat.errors import InvalidSettings
from onbeat.host.local_zone import zone_of_machine
from onbeat.ports.system import NO_PART, Groups, Part, SourceFile
from onbeat.service.process import Process
from onbeat.service.service import Service
from onbeat.sources.plain_files import FieldsFile
from onbeat.systems.services.settings import ServicesSettings
from onbeat.systems.services.system import TimerSystem, invalid_timers, is_open


def make(process: Process) -> Part:
    """Return the timers of the services file, if the settings name one."""
    timers = timers_of(process.settings.of(ServicesSettings), process.service)
    return NO_PART if timers is None else Part(background=[timers], surface=timers)


def timers_of(settings: ServicesSettings, service: Service) -> TimerSystem | None:
    """Return the timers of the services file, or None if the settings name none."""
    if not settings.file:
        return None
    return TimerSystem(service, _services_file(settings), timezone=zone_of_machine())


def are_timers_on(settings: ServicesSettings) -> bool:
    """Return whether the services file has its gate open. Nothing else in it is read."""
    if not settings.file:
        hint = 'services_file = "services.yaml" in onbeat.toml, or ONBEAT_SERVICES_FILE'
        raise InvalidSettings("services_file", "no services file is set", hint=hint)
    return is_open(_services_file(settings), timezone=zone_of_machine())


def _services_file(settings: ServicesSettings) -> FieldsFile:
    return FieldsFile(Path(settings.file).expanduser())


def source_files(settings: Groups) -> Iterator[SourceFile]:
    """Yield the services file of the settings."""
    own = settings.of(ServicesSettings)
    if own.file:
        yield SourceFile(own.file, partial(_problems_of, own))


def _problems_of(settings: ServicesSettings) -> list[str]:
    found = invalid_timers(_services_file(settings), timezone=zone_of_machine())
    return [f"{name}: {problem}" for name, problem in found.items()]
