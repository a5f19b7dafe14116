"""What a process has of reminders."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from onbeat.ports.system import NO_PART, Groups, Part, Peer, PeerCheck, PeerContext, SourceFile
from onbeat.service.process import Process
from onbeat_toys.reminders.settings import RemindersSettings
from onbeat_toys.reminders.system import Reminders, read


def make(process: Process) -> Part:
    """Return the reminders of the file, if the settings name one."""
    file = process.settings.of(RemindersSettings).file
    if not file:
        return NO_PART
    reminders = Reminders(process.service, Path(file))
    return Part(background=[reminders], surface=reminders)


def source_files(settings: Groups) -> Iterator[SourceFile]:
    """Yield the file of reminders."""
    if file := settings.of(RemindersSettings).file:
        yield SourceFile(file, partial(_problems_of, Path(file)))


def peers(context: PeerContext) -> Sequence[Peer]:
    """Return the bell tower, if reminders ring one."""
    settings = context.settings
    if not settings.of(RemindersSettings).file or not settings.value("bell_tower"):
        return ()
    return [Peer("bell tower", partial(_check_tower, Path(str(settings.value("bell_tower")))))]


def _problems_of(file: Path) -> list[str]:
    return [f"line {line}: {problem}" for line, problem in read(file).refused.items()]


async def _check_tower(tower: Path) -> PeerCheck:
    if tower.parent.is_dir():
        return PeerCheck("bell tower", "ok", f"{tower} can be rung")
    hint = "correct bell_tower"
    return PeerCheck("bell tower", "fail", f"{tower.parent} is not a folder", hint)
