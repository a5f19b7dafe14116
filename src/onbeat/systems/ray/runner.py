"""What runs on a Ray cluster: one `Runner` for each run, which calls one function, once.

It is sent to the cluster as it stands here, so that nothing of Onbeat has to be installed there: it
uses the standard library alone. Only texts cross the border, and those are JSON.
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

LONGEST_TAIL = 64 * 1024  # bytes of output that come back with an outcome
LONGEST_RESULT = 64 * 1024  # bytes of it as JSON
LONGEST_STEP = 64 * 1024  # bytes of output that are told at once


class Runner:
    """One run, under the run's key. However often it is asked to, it calls its function once.

    It keeps what came of that until it is ended from outside: whoever has started it may be gone.
    """

    def __init__(self, about: str) -> None:
        self._about: dict[str, object] = json.loads(about)
        self._asked: dict[str, Any] = {}  # as JSON says it
        self._began: float | None = None
        self._ended: float | None = None
        self._outcome: asyncio.Future[str] | None = None
        self._to_cancel: Callable[[], None] | None = None
        self._output = ""

    def __repr__(self) -> str:
        names = ("schedule_key", "user", "triggered_by")
        return f"Runner({', '.join(f'{name}={self._about.get(name)}' for name in names)})"

    async def run(self, asked: str) -> str:
        """Call what is asked for, unless that has begun; return what came of it, as JSON."""
        if self._outcome is None:
            loop = asyncio.get_running_loop()
            self._outcome = loop.create_future()
            self._asked, self._began = json.loads(asked), time.monotonic()
            self._output = _capture_output()
            thread = threading.Thread(target=self._work, args=(loop,), daemon=True)
            thread.start()
        return await asyncio.shield(self._outcome)

    async def state(self) -> str:
        """Return what this is, where it runs, since when, and whether it is over, as JSON."""
        is_over = self._ended is not None
        now = time.monotonic()
        ran = 0.0 if self._began is None else (self._ended or now) - self._began
        stands = {"is_over": is_over, "ran": ran, "over_for": now - (self._ended or now)}
        return json.dumps(self._about | {"pid": os.getpid(), "actor": _actor_id()} | stands)

    async def note(self, text: str) -> None:
        """Add what a task that this run has started says by its tracer, to the output."""
        os.write(1, text.encode(errors="replace"))

    async def output(self, offset: int) -> tuple[int, str]:
        """Return what was printed from this byte on, some at a time, and where that ends."""
        try:
            with open(self._output, "rb") as file:  # noqa: ASYNC230, PTH123 - a small local file
                file.seek(offset)
                found = file.read(LONGEST_STEP)
        except OSError:  # it has not begun; or somebody has tidied up
            return offset, ""
        whole = found[: found.rfind(b"\n") + 1] or found  # so that no character is cut
        return offset + len(whole), whole.decode(errors="replace")

    async def cancel(self) -> None:
        """Ask what is called to end: an async function hears of it, a plain one cannot."""
        if self._to_cancel is not None:
            self._to_cancel()

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            told = self._call()
            told["tail"] = _tail_of(self._output, str(told.pop("trace", "")))
        except BaseException as broken:  # noqa: BLE001 - whatever it is, the run has an end
            told = {"error": f"it could not be told what came of it: {_told(broken)}"}
            told |= {"is_set_up": True, "tail": ""}
        self._ended = time.monotonic()
        told |= {"attempt": self._about["attempt"], "actor": _actor_id()}
        text = json.dumps(told)  # in ASCII, so that half a character comes through
        outcome = self._outcome
        assert outcome is not None, "it was asked for"

        def settle() -> None:
            outcome.set_result(text)

        loop.call_soon_threadsafe(settle)

    def _call(self) -> dict[str, object]:
        try:
            asked = self._asked
            found = run_dag(asked["dag"], asked["meta"]) if "dag" in asked else self._called()
            return {"result": json.loads(as_json(as_plain(found), LONGEST_RESULT))}
        except BaseException as broken:  # noqa: BLE001 - what a target may raise is its own business
            return {
                "error": _told(broken),
                "is_set_up": not isinstance(broken, NotCallable),
                "trace": _trace(broken),
            }

    def _called(self) -> object:
        function, given = function_of(self._asked["python"]), dict(self._asked["inputs"])
        with contextlib.suppress(ValueError):  # some builtins tell nothing of their parameters
            parameters = inspect.signature(function).parameters
            given = with_tracer(parameters, given)
            if "run" in parameters and "run" not in given:
                given["run"] = SimpleNamespace(
                    **self._about | {"triggered_by": self._about["cause"]}
                )
            try:
                inspect.signature(function).bind(**given)
            except TypeError as unfit:
                raise NotCallable(f"{self._asked['python']}: {unfit}") from None
        if not inspect.iscoroutinefunction(function):
            return function(**given)
        return asyncio.run(self._awaited(function, given))

    async def _awaited(self, function: Callable[..., object], given: dict[str, object]) -> object:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "this is one"

        def cancel() -> None:
            loop.call_soon_threadsafe(task.cancel)

        self._to_cancel = cancel
        return await function(**given)  # type: ignore[misc]


def _actor_id() -> str:
    """Return what Ray calls this actor, and no other before or after it."""
    import ray  # noqa: PLC0415 - it is there wherever this runs

    return str(ray.get_runtime_context().get_actor_id() or "")


def _capture_output() -> str:
    """Have all that this process prints, and what it starts prints, go to a file; return it."""
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
    with contextlib.suppress(Exception):  # what it has put in the place of its output is its own
        sys.stdout.flush()
    with contextlib.suppress(OSError), open(path, "rb") as file:  # noqa: PTH123 - as above
        file.seek(max(0, os.fstat(file.fileno()).st_size - LONGEST_TAIL))
        printed = file.read()
    return (printed + more.encode(errors="replace"))[-LONGEST_TAIL:].decode(errors="replace")


def _trace(broken: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(broken))
    except Exception:  # noqa: BLE001 - it asks the exception for its text
        return ""


def _told(broken: BaseException) -> str:
    try:
        text = f"{type(broken).__name__}: {broken}"
    except Exception:  # noqa: BLE001 - its own text may fail in any way
        text = type(broken).__name__
    return text.encode(errors="replace")[:LONGEST_TAIL].decode(errors="replace")
