"""The steps from an empty database to today's tables: numbered, forward only, never changed."""

from importlib.resources import files


def read_migrations(package: str) -> tuple[str, ...]:
    """Return the scripts of a package, the first step first."""
    steps = sorted(files(package).iterdir(), key=lambda step: step.name)
    return tuple(step.read_text() for step in steps if step.name.endswith(".sql"))
