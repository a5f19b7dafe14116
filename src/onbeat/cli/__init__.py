"""The command `onbeat`: one module for each group of verbs, imported when a verb is called."""

from onbeat.cli.command import main

__all__ = ["main"]
