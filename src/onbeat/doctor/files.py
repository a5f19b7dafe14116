"""Checks of the files that definitions come from: of schedules, and of systems."""

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

FILE = Path("onbeat.yaml")  # which `onbeat up` applies, if it is there
LARGEST = 1024 * 1024  # bytes of a DAG
MOST = 10_000  # files of a folder that are read


def source_files(seen: InstallationFacts) -> Finding | None:
    """Judge whether the files of definitions can be read, and what is wrong in them."""
    if seen.is_refused:
        return None
    read, wrong = 0, list[str]()
    for label, problems in _sources(seen.known):
        read += 1
        wrong += [f"{label}: {each}" for each in problems]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        return warn(
            "source files", f"{wrong[0]}{more}", "correct it; other definitions are not affected"
        )
    return ok("source files", f"nothing is wrong in them: {read}") if read else None


def _sources(settings: Settings) -> Iterator[tuple[str, list[str]]]:
    """Yield what is wrong with each source that is in use."""
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
    except InvalidFile as refused:
        yield from (str(each) for each in refused.mistakes)
    except InvalidSchedule as refused:
        yield str(refused)
    except OSError as broken:
        yield broken.strerror or str(broken)


def _definitions() -> Iterable[str]:
    read_file(FILE, check_target)
    return ()


def _services(settings: Settings) -> Iterable[str]:
    return [f"{name}: {why}" for name, why in wrong_timers(settings).items()]


def _dags(folder: Path) -> Iterable[str]:
    for n, path in enumerate(sorted(folder.glob("*.json")) if folder.is_dir() else ()):
        if n == MOST:
            return
        try:
            if not path.is_file() or path.stat().st_size > LARGEST:
                yield f"{path.name} is not a file of 1 MiB at most"
            else:
                check_dag(msgspec.json.decode(path.read_bytes()))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as broken:
            yield f"{path.name} is not JSON: {broken}"
        except InvalidSchedule as refused:
            yield f"{path.name}: {refused}"
        except OSError as broken:
            yield f"{path.name} cannot be read: {broken.strerror}"


def _flows(exposes: Exposes) -> Iterable[str]:
    found = read_exposes(exposes.read(), exposes.parse)
    return [f"{key}: {why}" for key, why in found.invalid.items()]


CHECKS: tuple[Check, ...] = (source_files,)
