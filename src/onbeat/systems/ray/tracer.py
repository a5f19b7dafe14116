"""The tracer of Kodosumi's entry points, `async def run(inputs, tracer)`, that run on Ray.

What is given to it goes to the output of the run, each message after a word for its kind: so
`onbeat logs` shows it, live and afterwards. Like the runner, it is sent to the cluster as it
stands, and uses the standard library alone.
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
    "this run is on a Ray cluster, without a panel (leave entry_point out: the panel runs it)"
)


class Tracer:
    """Writes what a flow says to the output of its run.

    Each method is async, and has a twin for plain functions: `debug` and `debug_sync`. A flow may
    pass it to tasks of Ray: what these say comes to the same output.
    """

    def __init__(self, runner: Any = None) -> None:  # noqa: ANN401 - an actor of Ray
        self._runner = runner  # None: this is the process of the run

    def __reduce__(self) -> tuple[object, ...]:
        """Return how another process makes it, which reaches the run through its actor."""
        import ray  # noqa: PLC0415 - it is there wherever this runs

        return Tracer, (self._runner or ray.get_runtime_context().current_actor,)

    async def debug(self, *message: str) -> None:
        """Say something for those who look for a mistake."""
        self.debug_sync(*message)

    def debug_sync(self, *message: str) -> None:
        """Say something for those who look for a mistake."""
        self._say("debug", "\n".join(map(str, message)))

    async def result(self, *message: object) -> None:
        """Give results of the work so far."""
        self.result_sync(*message)

    def result_sync(self, *message: object) -> None:
        """Give results of the work so far."""
        for each in message:
            self._say("result", _text(each))

    async def action(self, *message: object) -> None:
        """Say what is done."""
        self.action_sync(*message)

    def action_sync(self, *message: object) -> None:
        """Say what is done."""
        for each in message:
            self._say("action", _text(each))

    async def markdown(self, *message: str) -> None:
        """Give a result as Markdown: paragraphs."""
        self.markdown_sync(*message)

    def markdown_sync(self, *message: str) -> None:
        """Give a result as Markdown: paragraphs."""
        self._say("markdown", "\n\n".join(map(str, message)))

    async def html(self, *message: str) -> None:
        """Give a result as HTML."""
        self.html_sync(*message)

    def html_sync(self, *message: str) -> None:
        """Give a result as HTML."""
        self._say("html", "\n".join(map(str, message)))

    async def text(self, *message: str) -> None:
        """Give a result as plain text."""
        self.text_sync(*message)

    def text_sync(self, *message: str) -> None:
        """Give a result as plain text."""
        self._say("text", "\n".join(map(str, message)))

    async def warning(self, *message: str, exc_info: bool = False) -> None:
        """Warn; with the traceback of the exception that is being handled, if wanted."""
        self.warning_sync(*message, exc_info=exc_info)

    def warning_sync(self, *message: str, exc_info: bool = False) -> None:
        """Warn; with the traceback of the exception that is being handled, if wanted."""
        more = [traceback.format_exc().rstrip()] if exc_info else []
        self._say("warning", "\n".join([*map(str, message), *more]))

    async def lock(self, name: str, *_: object, **__: object) -> object:
        """Refuse to wait for a person: they answer on the panel."""
        raise NotCallable(f"tracer.lock({name!r}) waits for an answer on the panel: {NO_PANEL}")

    async def fs(self) -> object:
        """Refuse to give the files of the panel."""
        return self.fs_sync()

    def fs_sync(self) -> object:
        """Refuse to give the files of the panel."""
        raise NotCallable(f"tracer.fs() has the files that the panel keeps: {NO_PANEL}")

    def _say(self, kind: str, text: str) -> None:
        line = f"{kind}: {text}\n"
        if self._runner is not None:
            import ray  # noqa: PLC0415 - as above

            ray.get(self._runner.note.remote(line))  # before the task ends, and with it the run
            return
        sys.stdout.write(line)
        with contextlib.suppress(Exception):  # what a flow has put in its place is its own
            sys.stdout.flush()


def with_tracer(
    parameters: Mapping[str, inspect.Parameter], given: dict[str, object]
) -> dict[str, object]:
    """Return what a function is called with, if it is one of Kodosumi's: `(inputs, tracer)`.

    One that has a parameter `tracer` gets a tracer, and a parameter `inputs` gets all inputs as one
    dict. Every other function gets its inputs by name, as before.
    """
    if "tracer" not in parameters or ("tracer" in given and "inputs" not in parameters):
        return given
    named: dict[str, object] = {"inputs": given} if "inputs" in parameters else dict(given)
    return named | {"tracer": Tracer()}


def as_plain(found: object) -> object:
    """Return a result as JSON can say it: a model of Kodosumi is `{"Markdown": {"body": ...}}`."""
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
