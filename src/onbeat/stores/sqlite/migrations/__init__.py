"""The steps from an empty file to today's tables: numbered, forward only, never changed later."""

from importlib.resources import files

MIGRATIONS = tuple(
    step.read_text()
    for step in sorted(files(__name__).iterdir(), key=lambda step: step.name)
    if step.name.endswith(".sql")
)
