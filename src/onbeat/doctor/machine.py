"""Checks of the machine: the interpreter, SQLite, zone data, settings, disk and files."""

import re
import shutil
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from onbeat.doctor.certificates import expires_at
from onbeat.doctor.findings import (
    Check,
    Finding,
    InstallationFacts,
    fail,
    length,
    names,
    ok,
    size,
    warn,
)
from onbeat.errors import InvalidSettings
from onbeat.files.extras import upgrade_command
from onbeat.files.regular import read_regular

OLDEST_PYTHON = (3, 11)
# A WAL file that is reset at the wrong moment damages the database: https://sqlite.org/wal.html
DAMAGING = ((3, 7, 0), (3, 51, 2))
OLD_ZONES = 2  # years
LITTLE, TOO_LITTLE = 500 * 2**20, 50 * 2**20  # bytes on the disk
EXPIRES_SOON = 21 * 86_400_000
ANYBODY, GROUP = 0o007, 0o070
PASSWORD = re.compile(r"://[^/\s:@]*:[^/\s@]+@|password|secret|token", re.IGNORECASE)


def python(seen: InstallationFacts) -> Finding:
    """Judge the interpreter."""
    told = ".".join(map(str, seen.python[:3]))
    if seen.python[:2] < OLDEST_PYTHON:
        return fail("python", f"Python {told}", "Python 3.11 or newer")
    return ok("python", f"Python {told}")


def sqlite(seen: InstallationFacts) -> Finding:
    """Judge the SQLite library."""
    version, told = tuple(map(int, seen.sqlite.split("."))), f"SQLite {seen.sqlite}"
    first, last = DAMAGING
    if first <= version[:3] <= last:
        hint = f"{upgrade_command('apsw')}: 3.51.3 or newer"
        return fail("sqlite", f"{told} can damage a database when its WAL is reset", hint)
    return ok("sqlite", told)


def zone_data(seen: InstallationFacts) -> Finding:
    """Judge the zone data of this program, and that of the due rows and of the nodes."""
    year = datetime.fromtimestamp(seen.now / 1000, UTC).year
    standing, told = seen.looked.standing, f"time zone data {seen.tz}"
    if standing is not None and standing.tz > seen.tz:
        problem = f"{told}, and due ticks were computed with {standing.tz}: nothing is planned here"
        return fail("zones", problem, upgrade_command("tzdata"))
    others = {row.tz for row in standing.overview.nodes} - {seen.tz} if standing else set()
    if others:
        hint = "the same package tzdata on every node"
        return warn("zones", f"{told}, and nodes have {names(sorted(others))}", hint)
    following = standing.overview.following if standing else None
    if following is not None:
        done = f"{following.done} of {following.total} schedules follow it"
        if any(row.alive_until > seen.now for row in standing.overview.nodes):  # type: ignore[union-attr]
            return ok("zones", f"{told}: {done} so far, and the rest is under way")
        return warn("zones", f"{told}: {done} so far", "onbeat up follows it for the rest")
    if year - int(seen.tz[:4]) >= OLD_ZONES:
        return warn("zones", f"{told} is old", upgrade_command("tzdata"))
    return ok("zones", told)


def settings(seen: InstallationFacts) -> Finding:
    """Judge the settings."""
    if isinstance(seen.settings, InvalidSettings):
        refused = seen.settings
        return fail("settings", f"{refused.field}: {refused.problem}", refused.hint)
    return ok("settings", f"read from {seen.settings_file or 'the environment and defaults'}")


def disk(seen: InstallationFacts) -> Finding | None:
    """Judge the room that is left where the database is."""
    path = seen.known.database_path
    if seen.is_refused or path is None or not path.parent.is_dir():
        return None
    free = shutil.disk_usage(path.parent).free
    told, hint = f"{size(free)} left for {path}", "make room, or `keep` less"
    if free < TOO_LITTLE:
        return fail("disk", told, hint)
    return warn("disk", told, hint) if free < LITTLE else ok("disk", told)


def output(seen: InstallationFacts) -> Finding | None:
    """Judge the folder that output goes to."""
    folder = seen.known.output_folder
    if seen.is_refused or folder is None or not folder.exists():
        return None
    if not folder.is_dir():
        return fail("output", f"{folder} is no folder", "a folder for what runs print")
    return ok("output", f"in {folder}")


def file_modes(seen: InstallationFacts) -> Finding | None:
    """Judge who else may read what is not for everybody."""
    if seen.is_refused:
        return None
    given = seen.known
    open_ones = [
        *_open_to([given.database_path], ANYBODY),
        *_open_to(
            [given.token_path, *map(_named, (given.tls_key, given.jwt_key))], ANYBODY | GROUP
        ),
    ]
    if seen.settings_file is not None and _has_password(seen.settings_file):
        open_ones += _open_to([seen.settings_file], ANYBODY)
    if open_ones:
        return warn("files", f"others may read {names(open_ones)}", f"chmod 600 {open_ones[0]}")
    return ok("files", "nobody else may read the database and its keys")


def secrets(seen: InstallationFacts) -> Finding | None:
    """Judge the folder of secrets."""
    folder = _named(seen.known.secrets)
    if folder is None:
        return None
    if not folder.is_dir():
        return fail("secrets", f"{folder} is no folder", "the setting `secrets` names one")
    open_ones = [*_open_to([folder, *sorted(folder.iterdir())], ANYBODY | GROUP)]
    if open_ones:
        hint = f"chmod -R go= {folder}"
        return warn("secrets", f"others may read {names(open_ones)}", hint)
    return ok("secrets", f"only for this user: {folder}")


def certificate(seen: InstallationFacts) -> Finding | None:
    """Judge how long the certificate is good for."""
    path = _named(seen.known.tls_cert)
    if path is None:
        return None
    try:
        until = expires_at(read_regular(path).decode())
    except (OSError, ValueError) as broken:
        return fail(
            "tls", f"{path} cannot be read: {broken}", "a certificate in PEM, with its chain"
        )
    left, hint = until - seen.now, "renew it, and start the node again"
    if left <= 0:
        return fail("tls", f"{path} ran out {length(-left)} ago", hint)
    told = f"{path} is good for {length(left)}"
    return warn("tls", told, hint) if left < EXPIRES_SOON else ok("tls", told)


def _named(path: str) -> Path | None:
    return Path(path) if path else None


def _open_to(paths: list[Path | None], mode: int) -> Iterator[str]:
    """Yield those files and folders that others have rights to."""
    for path in paths:
        if path is not None and path.exists() and stat.S_IMODE(path.stat().st_mode) & mode:
            yield str(path)


def _has_password(path: Path) -> bool:
    try:
        return PASSWORD.search(read_regular(path).decode(errors="replace")) is not None
    except OSError:
        return False


CHECKS: tuple[Check, ...] = (
    python, sqlite, zone_data, settings, disk, output, file_modes, secrets, certificate,
)  # fmt: skip
