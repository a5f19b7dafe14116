"""Functions that examples/onbeat.yaml runs."""

from pathlib import Path


def count_files(folder):
    """Count the files in a folder. The result is stored with the run."""
    return {"folder": folder, "files": sum(path.is_file() for path in Path(folder).rglob("*"))}


async def now_and_then(run):
    """Fail at the first attempt of every other run."""
    if run.iteration % 2 and run.attempt == 1:
        raise RuntimeError("not this time")
    return f"attempt {run.attempt} of run {run.iteration}"
