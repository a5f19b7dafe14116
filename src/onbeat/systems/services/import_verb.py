"""`onbeat import`: convert the definitions of another program."""

import sys
from pathlib import Path

import click
import msgspec

from onbeat.app.settings import Settings
from onbeat.cli.exit_codes import INVALID_DEFINITION
from onbeat.cli.runtime import JSON, with_settings, write_json
from onbeat.cli.verbs import VerbGroup
from onbeat.errors import InvalidFile, InvalidSettings, Mistake
from onbeat.host.atomic_files import replace_file
from onbeat.host.regular_files import read_regular
from onbeat.sources.write_yaml import write_fields
from onbeat.systems.services.import_elisp import import_elisp, import_state
from onbeat.systems.services.lisp import LONGEST

HEAD = "# Services and timers, as onbeat import elisp read them from %s.\n"
STATE = "timer-state.json"
FILE_MODE = 0o644


@click.group(
    name="import", cls=VerbGroup, examples=["onbeat import elisp init.el -o services.yaml"]
)
def import_() -> None:
    """Convert the definitions of another program."""


@import_.command(examples=["onbeat import elisp init.el -o services.yaml --state timer-state.eld"])
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--state",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The .eld file with the state of its timers.",
)
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The file to write. [default: stdout]",
)
@click.option("--force", is_flag=True, help="Replace existing files.")
@JSON
@with_settings()
def elisp(
    settings: Settings,  # noqa: ARG001 - errors are reported as those of any verb
    path: Path,
    state: Path | None,
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Convert a configuration in Emacs Lisp into a services file, and keep the state of its timers.

    What cannot be converted is reported with its line and left out; the exit code is then 4.
    """
    found = import_elisp(_read(path), str(path))
    left_out = [(str(path), each) for each in found.left_out]
    kept: bytes | None = None
    if state is not None:
        if output is None and not as_json:
            hint = f"--output services.yaml; the state is {STATE} beside it"
            raise InvalidSettings("--state", "it requires --output", hint=hint)
        kept, of_state = import_state(_read(state), str(state))
        left_out += [(str(state), each) for each in of_state]
    text = write_fields(found.fields, HEAD % path.name)
    if output is not None:
        _write(output, text.encode(), kept, force=force)
    if as_json:
        state_fields = None if kept is None else msgspec.json.decode(kept)
        reported = [_fields(name, each) for name, each in left_out]
        write_json({"services": found.fields, "state": state_fields, "left_out": reported})
    else:
        if output is None:
            click.echo(text, nl=False)
        for name, each in left_out:
            place = name if each.line is None else f"{name}:{each.line}"
            click.echo(f"{place}: {each}", err=True)
    if left_out:
        sys.exit(INVALID_DEFINITION)


def _write(output: Path, text: bytes, kept: bytes | None, *, force: bool) -> None:
    """Write the file and the state beside it: both, or none if one exists."""
    files = {output: text} | ({} if kept is None else {output.parent / STATE: kept})
    for path in files:
        if path.exists() and not force:
            raise InvalidSettings("output", f"{path} already exists", hint="--force replaces it")
    for path, content in files.items():
        replace_file(path, content, mode=FILE_MODE if path == output else None)
        click.echo(f"wrote {path}", err=True)


def _read(path: Path) -> str:
    """Return the text of a regular file of limited size."""
    try:
        return read_regular(path, most=4 * LONGEST).decode()
    except UnicodeDecodeError:
        raise InvalidFile(str(path), [Mistake(None, "", "it is not UTF-8")]) from None
    except OSError as broken:
        problem = f"it cannot be read: {broken.strerror}"
        raise InvalidFile(str(path), [Mistake(None, "", problem)]) from None


def _fields(path: str, mistake: Mistake) -> dict[str, object]:
    return {
        "file": path,
        "line": mistake.line,
        "about": mistake.field,
        "problem": mistake.problem,
        "hint": mistake.hint,
    }
