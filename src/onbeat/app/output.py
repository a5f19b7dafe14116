"""Where the output of runs is kept: one file for each attempt."""

import os
import tempfile
from pathlib import Path

from onbeat.app.settings import Settings
from onbeat.errors import InvalidSettings
from onbeat.host.output_files import output_path


def output_folder(settings: Settings, store_id: str) -> Path:
    """Return the folder of the settings, or a temporary one for a store in memory."""
    return settings.output_folder or Path(tempfile.gettempdir()) / f"onbeat-{store_id}"


def output_file(settings: Settings, run_id: int, attempt: int) -> Path | None:
    """Return the path of an attempt's output, whether or not the file exists."""
    folder = settings.output_folder
    return None if folder is None else output_path(folder, run_id, attempt)


def make_writable(folder: Path) -> None:
    """Create the output folder, or refuse one that cannot be written to."""
    hint = "a folder for the output of runs"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as broken:
        problem = f"{folder} cannot be made: {broken.strerror}"
        raise InvalidSettings("output", problem, hint=hint) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidSettings("output", f"{folder} cannot be written to", hint=hint)
