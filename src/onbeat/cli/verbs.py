"""Commands and groups whose help ends with examples."""

from collections.abc import Sequence
from typing import Any

import click


def _write_examples(formatter: click.HelpFormatter, examples: Sequence[str]) -> None:
    if examples:
        with formatter.section("Examples"):
            for each in examples:
                formatter.write(f"{'':{formatter.current_indent}}{each}\n")


class Verb(click.Command):
    """A command with examples: `@click.command(cls=Verb, examples=[...])`."""

    def __init__(
        self,
        name: str | None,
        *,
        examples: Sequence[str] = (),
        **attributes: Any,  # noqa: ANN401 - as click has them
    ) -> None:
        super().__init__(name, **attributes)
        self.examples = tuple(examples)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        _write_examples(formatter, self.examples)


class VerbGroup(click.Group):
    """A group of verbs with examples."""

    command_class = Verb

    def __init__(
        self,
        name: str | None = None,
        *,
        examples: Sequence[str] = (),
        **attributes: Any,  # noqa: ANN401 - as click has them
    ) -> None:
        super().__init__(name, **attributes)
        self.examples = tuple(examples)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        _write_examples(formatter, self.examples)


class ListingGroup(VerbGroup):
    """A group that does something itself if no verb of it is named.

    Its own options hold for its verbs as well, unless they are given again.
    """

    def __init__(self, name: str | None = None, **attributes: Any) -> None:  # noqa: ANN401 - as click has them
        super().__init__(name, **attributes, invoke_without_command=True)


def hand_down_options(group: click.Group) -> bool:
    """Return whether a verb of this group was named; if so, hand it the options of the group."""
    context = click.get_current_context()
    if context.invoked_subcommand is None:
        return False
    context.default_map = dict.fromkeys(group.commands, context.params)
    return True
