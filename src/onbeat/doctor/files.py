"""Checks of the files that define schedules, services, flows and workflows."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from onbeat.app.launchers import check_target
from onbeat.app.settings import Settings
from onbeat.app.systems import wrong_timers
from onbeat.doctor.findings import Check, Finding, InstallationFacts, ok, warn
from onbeat.errors import InvalidFile, InvalidSchedule
from onbeat.sources.exposes import Exposes
from onbeat.sources.yaml import read_file
from onbeat.systems.flows.exposes import read_exposes
from onbeat.systems.workflows.store import check_dag

FILE = Path("onbeat.yaml")  # `onbeat up` applies it if it exists
LARGEST_DAG = 1024 * 1024  # bytes
MOST_DAGS = 10_000


def source_files(facts: InstallationFacts) -> Finding | None:
    """Check whether the files of definitions are valid."""
    if facts.settings_are_invalid:
        return None
    read, mistakes = 0, list[str]()
    for label, problems in _sources(facts.usable_settings):
        read += 1
        mistakes += [f"{label}: {each}" for each in problems]
    if mistakes:
        more = f" (and {len(mistakes) - 1} more)" if len(mistakes) > 1 else ""
        hint = "correct the file; the other definitions are not affected"
        return warn("source files", f"{mistakes[0]}{more}", hint)
    return ok("source files", f"{read} checked, no mistakes") if read else None


def _sources(settings: Settings) -> Iterator[tuple[str, list[str]]]:
    """Yield the problems of each source that is in use."""
    if FILE.is_file():
        yield str(FILE), list(_problems(_definitions))
    if settings.services_file:
        yield settings.services_file, list(_problems(lambda: _services(settings)))
    if settings.workflows_folder:
        folder = Path(settings.workflows_folder).expanduser()
        yield str(folder), list(_problems(lambda: _dags(folder)))
    if settings.flows_exposes:
        exposes = Exposes(Path(settings.flows_exposes).expanduser())
        yield str(exposes.path), list(_problems(lambda: _flows(exposes)))


def _problems(read: Callable[[], Iterable[str]]) -> Iterator[str]:
    try:
        yield from read()
    except InvalidFile as error:
        yield from (str(each) for each in error.mistakes)
    except InvalidSchedule as error:
        yield str(error)
    except OSError as error:
        yield error.strerror or str(error)


def _definitions() -> Iterable[str]:
    read_file(FILE, check_target)
    return ()


def _services(settings: Settings) -> Iterable[str]:
    return [f"{name}: {problem}" for name, problem in wrong_timers(settings).items()]


def _dags(folder: Path) -> Iterable[str]:
    for n, path in enumerate(sorted(folder.glob("*.json")) if folder.is_dir() else ()):
        if n == MOST_DAGS:
            return
        try:
            if not path.is_file() or path.stat().st_size > LARGEST_DAG:
                yield f"{path.name} is not a regular file of at most 1 MiB"
            else:
                check_dag(msgspec.json.decode(path.read_bytes()))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            yield f"{path.name} is not JSON: {error}"
        except InvalidSchedule as error:
            yield f"{path.name}: {error}"
        except OSError as error:
            yield f"{path.name} cannot be read: {error.strerror}"


def _flows(exposes: Exposes) -> Iterable[str]:
    found = read_exposes(exposes.read(), exposes.parse)
    return [f"{key}: {problem}" for key, problem in found.invalid.items()]


CHECKS: tuple[Check, ...] = (source_files,)
