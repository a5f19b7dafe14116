"""The files of the output of runs: one for each attempt."""

from contextlib import suppress
from pathlib import Path


def output_path(output: Path, run_id: int, attempt: int) -> Path:
    """Return the output file of an attempt."""
    return output / f"{run_id // 1000:06}" / f"{run_id}-{attempt}.log"


def delete_old_output(output: Path, before: int) -> int:
    """Delete output files last written before an instant in ms; return how many were deleted."""
    removed = 0
    for folder in output.glob("[0-9]*"):
        for file in folder.glob("*.log"):
            with suppress(OSError):  # it may be in use, or already deleted
                if file.stat().st_mtime * 1000 < before:
                    file.unlink()
                    removed += 1
        with suppress(OSError):  # it is not empty
            folder.rmdir()
    return removed
