"""Help: verbs in sections, `-h` everywhere, and examples that parse."""

import shlex

import click
import pytest

from onbeat.cli.command import ALIASES, main, sections, verbs
from tests.cli.test_verbs import onbeat


def commands(group=main, before=()):
    """Yield every verb and every group of verbs, with its words."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        yield (*before, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*before, name))


COMMANDS = dict(commands())


def test_help_groups_the_verbs():
    text = onbeat("--help").stdout
    places = [text.index(f"\n{title}:\n") for title in sections()]
    assert list(sections()) == ["Run", "Define", "Look", "Operate", "Systems"]
    assert places == sorted(places)
    assert len(verbs()) == sum(map(len, sections().values()))
    assert not ALIASES.keys() & verbs().keys()


def test_help_fits_100_columns():
    assert max(map(len, onbeat("--help", "-h").stdout.splitlines())) <= 100


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_short_option_h_prints_the_help(words):
    assert onbeat(*words, "-h").stdout == onbeat(*words, "--help").stdout


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_ends_with_examples_of_the_verb_that_parse(words):
    _, _, examples = onbeat(*words, "-h").stdout.partition("\nExamples:\n")
    lines = [line.strip() for line in examples.splitlines()]
    assert lines
    for line in lines:
        assert f"onbeat {' '.join(words)}" in line
        if line.startswith("onbeat "):
            parse(shlex.split(line.partition(" > ")[0])[1:])


def parse(words):
    """Parse a command as click does, without running it."""
    command, context = main, main.make_context("onbeat", list(words))
    while isinstance(command, click.Group):
        words = [*context._protected_args, *context.args]
        if not words:
            return
        _, command, rest = command.resolve_command(context, words)
        context = command.make_context(command.name, rest, parent=context)


def test_help_of_a_field_alias_names_its_system():
    assert "spelling of the services system" in onbeat("timers", "-h").stdout
    assert "spelling of the flows system" in onbeat("timer", "-h").stdout
