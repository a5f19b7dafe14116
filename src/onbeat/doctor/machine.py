"""Checks of the machine: Python, SQLite, zone data, settings, disk, file modes, certificate."""

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
from onbeat.host.extras import install_command, upgrade_command
from onbeat.host.regular_files import read_regular

OLDEST_PYTHON = (3, 11)
# These versions can damage a database when the WAL is reset: https://sqlite.org/wal.html
DAMAGING_SQLITE = ((3, 7, 0), (3, 51, 2))
OLD_ZONE_DATA = 2  # years
LOW_DISK, FULL_DISK = 500 * 2**20, 50 * 2**20  # bytes
EXPIRES_SOON = 21 * 86_400_000  # milliseconds
OTHERS, GROUP = 0o007, 0o070  # permission bits
PASSWORD = re.compile(r"://[^/\s:@]*:[^/\s@]+@|password|secret|token", re.IGNORECASE)


def python(facts: InstallationFacts) -> Finding:
    """Check the version of Python."""
    version = ".".join(map(str, facts.python[:3]))
    if facts.python[:2] < OLDEST_PYTHON:
        return fail("python", f"Python {version} is too old", "install Python 3.11 or newer")
    return ok("python", f"Python {version}")


def sqlite(facts: InstallationFacts) -> Finding:
    """Check the version of the SQLite library."""
    version, shown = tuple(map(int, facts.sqlite.split("."))), f"SQLite {facts.sqlite}"
    first, last = DAMAGING_SQLITE
    if first <= version[:3] <= last:
        hint = f"{upgrade_command('apsw')}: 3.51.3 or newer"
        return fail("sqlite", f"{shown} can damage a database when its WAL is reset", hint)
    return ok("sqlite", shown)


def zone_data(facts: InstallationFacts) -> Finding:
    """Check the zone data of this program, of the due rows and of the nodes."""
    year = datetime.fromtimestamp(facts.now / 1000, UTC).year
    store, version = facts.store, f"time zone data {facts.zone_data}"
    if store is not None and store.tz > facts.zone_data:
        problem = f"{version} is older than {store.tz} of the due ticks: nothing is planned here"
        return fail("zones", problem, upgrade_command("tzdata"))
    others = {row.tz for row in store.overview.nodes} - {facts.zone_data} if store else set()
    if others:
        hint = "install the same version of the package tzdata on every node"
        return warn("zones", f"{version}, but nodes have {names(sorted(others))}", hint)
    progress = store.overview.following if store else None
    if progress is not None:
        done = f"{version}: {progress.done} of {progress.total} schedules follow it so far"
        if any(row.alive_until > facts.now for row in store.overview.nodes):  # type: ignore[union-attr]
            return ok("zones", f"{done}; the update is running")
        return warn("zones", f"{done}; no node is up to update the rest", "onbeat up")
    if year - int(facts.zone_data[:4]) >= OLD_ZONE_DATA:
        return warn("zones", f"{version} is old", upgrade_command("tzdata"))
    return ok("zones", version)


def settings(facts: InstallationFacts) -> Finding:
    """Check whether the settings are valid."""
    if isinstance(facts.settings, InvalidSettings):
        refused = facts.settings
        return fail("settings", f"{refused.field}: {refused.problem}", refused.hint)
    return ok("settings", f"read from {facts.settings_file or 'the environment and defaults'}")


def disk(facts: InstallationFacts) -> Finding | None:
    """Check the free space on the disk of the database."""
    path = facts.usable_settings.database_path
    if facts.settings_are_invalid or path is None or not path.parent.is_dir():
        return None
    free = shutil.disk_usage(path.parent).free
    left, hint = f"{size(free)} left for {path}", "free disk space, or lower the setting `keep`"
    if free < FULL_DISK:
        return fail("disk", left, hint)
    return warn("disk", left, hint) if free < LOW_DISK else ok("disk", left)


def output(facts: InstallationFacts) -> Finding | None:
    """Check the folder for the output of runs."""
    folder = facts.usable_settings.output_folder
    if facts.settings_are_invalid or folder is None or not folder.exists():
        return None
    if not folder.is_dir():
        hint = "set `output` to a folder, or move that file away"
        return fail("output", f"{folder} is not a folder", hint)
    return ok("output", f"in {folder}")


def file_modes(facts: InstallationFacts) -> Finding | None:
    """Check whether other users can read the database, keys, tokens or passwords."""
    if facts.settings_are_invalid:
        return None
    values = facts.usable_settings
    keys = [values.token_path, *map(_optional_path, (values.tls_key, values.jwt_key))]
    exposed = [
        *_accessible([values.database_path], OTHERS),
        *_accessible(keys, OTHERS | GROUP),
    ]
    if facts.settings_file is not None and _has_password(facts.settings_file):
        exposed += _accessible([facts.settings_file], OTHERS)
    if exposed:
        return warn(
            "files", f"other users may read {names(exposed)}", f"chmod 600 {' '.join(exposed)}"
        )
    return ok("files", "only this user may read the database and its keys")


def secrets(facts: InstallationFacts) -> Finding | None:
    """Check the folder of secrets."""
    folder = _optional_path(facts.usable_settings.secrets)
    if folder is None:
        return None
    if not folder.is_dir():
        problem = f"{folder} is not a folder"
        return fail("secrets", problem, "create it, or set `secrets` to another folder")
    exposed = [*_accessible([folder, *sorted(folder.iterdir())], OTHERS | GROUP)]
    if exposed:
        hint = f"chmod -R go= {folder}"
        return warn("secrets", f"other users may read {names(exposed)}", hint)
    return ok("secrets", f"only this user may read {folder}")


def certificate(facts: InstallationFacts) -> Finding | None:
    """Check the expiry date of the TLS certificate."""
    path = _optional_path(facts.usable_settings.tls_cert)
    if path is None:
        return None
    try:
        expires = expires_at(read_regular(path).decode())
    except ModuleNotFoundError:
        problem = f"{path} was not checked: that needs the extra `server`"
        return warn("tls", problem, install_command("server"))
    except (OSError, ValueError) as error:
        hint = "set `tls_cert` to a certificate in PEM, with its chain"
        return fail("tls", f"{path} cannot be read: {error}", hint)
    left, hint = expires - facts.now, f"renew {path}, then restart the node"
    if left <= 0:
        return fail("tls", f"{path} expired {length(-left)} ago", hint)
    valid = f"{path} expires in {length(left)}"
    return warn("tls", valid, hint) if left < EXPIRES_SOON else ok("tls", valid)


def _optional_path(path: str) -> Path | None:
    return Path(path) if path else None


def _accessible(paths: list[Path | None], bits: int) -> Iterator[str]:
    """Yield the files and folders whose mode has one of these bits."""
    for path in paths:
        if path is not None and path.exists() and stat.S_IMODE(path.stat().st_mode) & bits:
            yield str(path)


def _has_password(path: Path) -> bool:
    try:
        return PASSWORD.search(read_regular(path).decode(errors="replace")) is not None
    except OSError:
        return False


CHECKS: tuple[Check, ...] = (
    python, sqlite, zone_data, settings, disk, output, file_modes, secrets, certificate,
)  # fmt: skip
