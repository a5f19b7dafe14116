"""The tracer for Kodosumi's entry points, `async def run(inputs, tracer)`, that run on Ray.

Messages go to the output of the run, each prefixed by its kind, so that `onbeat logs` shows them.
Like the runner, this module is shipped to the cluster, so it uses only the standard library.
"""

import contextlib
import inspect
import json
import sys
import traceback
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from onbeat.systems.ray.dag import NotCallable

NO_PANEL = (
    "this run is on a Ray cluster, without a panel (remove entry_point to run it on the panel)"
)


class Tracer:
    """Writes the messages of a flow to the output of its run.

    Each method is async and has a variant for plain functions: `debug` and `debug_sync`. A flow may
    pass its tracer to Ray tasks: their messages go to the same output.
    """

    def __init__(self, runner: Any = None) -> None:  # noqa: ANN401 - an actor of Ray
        self._runner = runner  # None: this is the process of the run

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle it for another process, which reaches the run through its actor."""
        import ray  # noqa: PLC0415 - installed wherever this runs

        return Tracer, (self._runner or ray.get_runtime_context().current_actor,)

    async def debug(self, *message: str) -> None:
        """Write a debug message."""
        self.debug_sync(*message)

    def debug_sync(self, *message: str) -> None:
        """Write a debug message."""
        self._write("debug", "\n".join(map(str, message)))

    async def result(self, *message: object) -> None:
        """Write intermediate results."""
        self.result_sync(*message)

    def result_sync(self, *message: object) -> None:
        """Write intermediate results."""
        for each in message:
            self._write("result", _text(each))

    async def action(self, *message: object) -> None:
        """Write the actions that are taken."""
        self.action_sync(*message)

    def action_sync(self, *message: object) -> None:
        """Write the actions that are taken."""
        for each in message:
            self._write("action", _text(each))

    async def markdown(self, *message: str) -> None:
        """Write a result as Markdown paragraphs."""
        self.markdown_sync(*message)

    def markdown_sync(self, *message: str) -> None:
        """Write a result as Markdown paragraphs."""
        self._write("markdown", "\n\n".join(map(str, message)))

    async def html(self, *message: str) -> None:
        """Write a result as HTML."""
        self.html_sync(*message)

    def html_sync(self, *message: str) -> None:
        """Write a result as HTML."""
        self._write("html", "\n".join(map(str, message)))

    async def text(self, *message: str) -> None:
        """Write a result as plain text."""
        self.text_sync(*message)

    def text_sync(self, *message: str) -> None:
        """Write a result as plain text."""
        self._write("text", "\n".join(map(str, message)))

    async def warning(self, *message: str, exc_info: bool = False) -> None:
        """Write a warning, optionally with the traceback of the current exception."""
        self.warning_sync(*message, exc_info=exc_info)

    def warning_sync(self, *message: str, exc_info: bool = False) -> None:
        """Write a warning, optionally with the traceback of the current exception."""
        more = [traceback.format_exc().rstrip()] if exc_info else []
        self._write("warning", "\n".join([*map(str, message), *more]))

    async def lock(self, name: str, *_: object, **__: object) -> object:
        """Refuse to wait for a person, which needs the panel."""
        raise NotCallable(f"tracer.lock({name!r}) waits for an answer on the panel: {NO_PANEL}")

    async def fs(self) -> object:
        """Refuse to open the files of the panel."""
        return self.fs_sync()

    def fs_sync(self) -> object:
        """Refuse to open the files of the panel."""
        raise NotCallable(f"tracer.fs() needs the files of the panel: {NO_PANEL}")

    def _write(self, kind: str, text: str) -> None:
        line = f"{kind}: {text}\n"
        if self._runner is not None:
            import ray  # noqa: PLC0415 - as above

            ray.get(self._runner.note.remote(line))  # wait: the run may end with the task
            return
        sys.stdout.write(line)
        with contextlib.suppress(Exception):  # the flow may have replaced it
            sys.stdout.flush()


def with_tracer(
    parameters: Mapping[str, inspect.Parameter], arguments: dict[str, object]
) -> dict[str, object]:
    """Return the arguments of a function, with a tracer for Kodosumi's `(inputs, tracer)`.

    A parameter `tracer` gets a tracer, and then a parameter `inputs` gets all inputs as one dict.
    Other functions get their inputs by name.
    """
    if "tracer" not in parameters or ("tracer" in arguments and "inputs" not in parameters):
        return arguments
    named: dict[str, object] = {"inputs": arguments} if "inputs" in parameters else dict(arguments)
    return named | {"tracer": Tracer()}


def as_plain(found: object) -> object:
    """Return a result as JSON values: a model of Kodosumi is `{"Markdown": {"body": ...}}`."""
    dump = getattr(found, "model_dump", None)
    if callable(dump) and not isinstance(found, type):
        return {type(found).__name__: dump()}
    return [as_plain(each) for each in found] if isinstance(found, (list, tuple)) else found


def _text(message: object) -> str:
    plain = as_plain(message)
    if isinstance(plain, str):
        return plain
    if not isinstance(plain, (dict, list, tuple, int, float, bool, type(None))):
        plain = getattr(plain, "__dict__", MappingProxyType({})) or str(plain)
    return json.dumps(plain, default=str, ensure_ascii=False)
