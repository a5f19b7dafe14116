"""The runner on a Ray cluster: one `Runner` actor for each run, which calls one function, once.

It is shipped to the cluster, so that Onbeat need not be installed there: it uses only the standard
library. Its methods exchange only strings, mostly JSON.
"""

import asyncio
import contextlib
import inspect
import io
import json
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from onbeat.systems.ray.dag import NotCallable, as_json, function_of, run_dag
from onbeat.systems.ray.tracer import as_plain, with_tracer

LONGEST_TAIL = 64 * 1024  # bytes of output that are part of an outcome
LONGEST_RESULT = 64 * 1024  # bytes of a result as JSON
LONGEST_STEP = 64 * 1024  # bytes of output for each request


class Runner:
    """One run, named by the run's key. It calls its function once, even if requested repeatedly.

    It keeps the outcome until it is ended by a node, as the node that started it may be gone.
    """

    def __init__(self, about: str) -> None:
        self._about: dict[str, object] = json.loads(about)
        self._spec: dict[str, Any] = {}
        self._began: float | None = None
        self._ended: float | None = None
        self._outcome: asyncio.Future[str] | None = None
        self._to_cancel: Callable[[], None] | None = None
        self._output = ""

    def __repr__(self) -> str:
        names = ("schedule_key", "user", "triggered_by")
        return f"Runner({', '.join(f'{name}={self._about.get(name)}' for name in names)})"

    async def run(self, spec: str) -> str:
        """Call the function, unless it was called before; return the outcome as JSON."""
        if self._outcome is None:
            loop = asyncio.get_running_loop()
            self._outcome = loop.create_future()
            self._spec, self._began = json.loads(spec), time.monotonic()
            self._output = _capture_output()
            thread = threading.Thread(target=self._work, args=(loop,), daemon=True)
            thread.start()
        return await asyncio.shield(self._outcome)

    async def state(self) -> str:
        """Return what this runs, where, for how long, and whether it has ended, as JSON."""
        is_over = self._ended is not None
        now = time.monotonic()
        ran = 0.0 if self._began is None else (self._ended or now) - self._began
        timing = {"is_over": is_over, "ran": ran, "over_for": now - (self._ended or now)}
        return json.dumps(self._about | {"pid": os.getpid(), "actor": _actor_id()} | timing)

    async def note(self, text: str) -> None:
        """Append the tracer output of a task that this run has started."""
        os.write(1, text.encode(errors="replace"))

    async def output(self, offset: int) -> tuple[int, str]:
        """Return output from this byte on, up to a limit, and the offset of its end."""
        try:
            with open(self._output, "rb") as file:  # noqa: ASYNC230, PTH123 - a small local file
                file.seek(offset)
                found = file.read(LONGEST_STEP)
        except OSError:  # not started, or the file was deleted
            return offset, ""
        whole = found[: found.rfind(b"\n") + 1] or found  # does not cut a character
        return offset + len(whole), whole.decode(errors="replace")

    async def cancel(self) -> None:
        """Cancel the function; only an async function can be canceled."""
        if self._to_cancel is not None:
            self._to_cancel()

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            outcome = self._call()
            outcome["tail"] = _tail_of(self._output, str(outcome.pop("trace", "")))
        except BaseException as broken:  # noqa: BLE001 - the run must have an outcome
            outcome = {"error": f"the outcome could not be determined: {_error_text(broken)}"}
            outcome |= {"is_set_up": True, "tail": ""}
        self._ended = time.monotonic()
        outcome |= {"attempt": self._about["attempt"], "actor": _actor_id()}
        text = json.dumps(outcome)  # ASCII, so that lone surrogates are allowed
        future = self._outcome
        assert future is not None, "`run` has set it"

        def settle() -> None:
            future.set_result(text)

        loop.call_soon_threadsafe(settle)

    def _call(self) -> dict[str, object]:
        try:
            spec = self._spec
            found = run_dag(spec["dag"], spec["meta"]) if "dag" in spec else self._call_function()
            return {"result": json.loads(as_json(as_plain(found), LONGEST_RESULT))}
        except BaseException as broken:  # noqa: BLE001 - a target may raise anything
            return {
                "error": _error_text(broken),
                "is_set_up": not isinstance(broken, NotCallable),
                "trace": _trace(broken),
            }

    def _call_function(self) -> object:
        function, arguments = function_of(self._spec["python"]), dict(self._spec["inputs"])
        with contextlib.suppress(ValueError):  # some builtins have no signature
            parameters = inspect.signature(function).parameters
            arguments = with_tracer(parameters, arguments)
            if "run" in parameters and "run" not in arguments:
                arguments["run"] = SimpleNamespace(
                    **self._about | {"triggered_by": self._about["cause"]}
                )
            try:
                inspect.signature(function).bind(**arguments)
            except TypeError as unfit:
                raise NotCallable(f"{self._spec['python']}: {unfit}") from None
        if not inspect.iscoroutinefunction(function):
            return function(**arguments)
        return asyncio.run(self._call_async(function, arguments))

    async def _call_async(
        self, function: Callable[..., object], arguments: dict[str, object]
    ) -> object:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "this runs in a task"

        def cancel() -> None:
            loop.call_soon_threadsafe(task.cancel)

        self._to_cancel = cancel
        return await function(**arguments)  # type: ignore[misc]


def _actor_id() -> str:
    """Return Ray's unique id of this actor."""
    import ray  # noqa: PLC0415 - installed wherever this runs

    return str(ray.get_runtime_context().get_actor_id() or "")


def _capture_output() -> str:
    """Redirect the output of this process and its children to a file; return its path."""
    handle, path = tempfile.mkstemp(prefix="onbeat-run-", suffix=".log")
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
    text = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False), line_buffering=True)
    sys.stdout = sys.stderr = text
    return path


def _tail_of(path: str, more: str) -> str:
    printed = b""
    with contextlib.suppress(Exception):  # the function may have replaced it
        sys.stdout.flush()
    with contextlib.suppress(OSError), open(path, "rb") as file:  # noqa: PTH123 - as above
        file.seek(max(0, os.fstat(file.fileno()).st_size - LONGEST_TAIL))
        printed = file.read()
    return (printed + more.encode(errors="replace"))[-LONGEST_TAIL:].decode(errors="replace")


def _trace(broken: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(broken))
    except Exception:  # noqa: BLE001 - formatting may run the exception's code
        return ""


def _error_text(broken: BaseException) -> str:
    try:
        text = f"{type(broken).__name__}: {broken}"
    except Exception:  # noqa: BLE001 - formatting may run the exception's code
        text = type(broken).__name__
    return text.encode(errors="replace")[:LONGEST_TAIL].decode(errors="replace")
