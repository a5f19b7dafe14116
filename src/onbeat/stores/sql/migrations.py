"""Migrations from an empty database to the current tables: numbered, forward only, immutable."""

from importlib.resources import files


def read_migrations(package: str) -> tuple[str, ...]:
    """Return the migration scripts of a package in order."""
    steps = sorted(files(package).iterdir(), key=lambda step: step.name)
    return tuple(step.read_text() for step in steps if step.name.endswith(".sql"))
