"""Checks of the files that define schedules, or what systems make schedules of."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from onbeat.app.parts import check_target
from onbeat.app.settings import Settings
from onbeat.doctor.findings import Check, Finding, InstallationFacts, ok, warn
from onbeat.errors import InvalidFile, InvalidSchedule
from onbeat.host.plugs import guard, load_function, plugs
from onbeat.ports.system import Groups, SourceFile
from onbeat.sources.yaml import read_file

FILE = Path("onbeat.yaml")  # `onbeat up` applies it if it exists

SourceFilesOfPlug = Callable[[Groups], Iterable[SourceFile]]


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
    for plug in plugs():
        if plug.source_files:
            found: list[tuple[str, list[str]]] = []
            with guard(plug, "source_files"):
                files: SourceFilesOfPlug = load_function(plug.source_files)
                found += ((file.name, list(_problems(file.problems))) for file in files(settings))
            yield from found


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


CHECKS: tuple[Check, ...] = (source_files,)
