"""Python functions, in this process: `run: {python: "reports:build", inputs: {limit: 100}}`.

A function is called with its inputs by name and, if it has a parameter called `run`, with the
attempt. Plain functions run in threads, async ones in the event loop. What it returns is kept.
"""

import asyncio
import importlib
import inspect
import traceback
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import lru_cache, partial
from typing import NamedTuple

from onbeat.core.runs.run import Failed, Outcome, Succeeded
from onbeat.core.schedule import ID
from onbeat.core.target import Target, read_inputs
from onbeat.core.triggers.codec import check_names
from onbeat.errors import InvalidSchedule, shown
from onbeat.launchers.python.threads import CallThreads
from onbeat.ports.store import Attempt

Function = Callable[..., object]


class FunctionLauncher:
    """Calls functions that were registered under a name, or that can be imported."""

    def __init__(self, *, concurrency: int = 64) -> None:
        self._registered: dict[str, Function] = {}
        self._imported_modules: set[str] = set()
        self._threads = CallThreads(concurrency)

    def register(self, name: str, function: Function) -> None:
        """Offer a function under a name."""
        if self._registered.get(name, function) is not function:
            problem = f"two functions are called {name!r}"
            raise InvalidSchedule("python", problem, hint="give one another name")
        self._registered[name] = function

    def offers(self) -> Iterable[str]:
        return ["python", *(f"python:{name}" for name in self._registered)]

    def check(self, target: Target) -> None:
        check_names(target.fields, {"python", "inputs"})
        name = target.fields["python"]
        module, colon, path = name.partition(":") if isinstance(name, str) else ("", "", "")
        importable = all(part.isidentifier() for part in (*module.split("."), *path.split(".")))
        if not (importable if colon else ID.fullmatch(module)):
            hint = "module:function, or the name of a registered one"
            raise InvalidSchedule("python", f"{shown(name)} names no function", hint=hint)
        function = self._registered.get(str(name))
        if function is not None:
            _way_to_call(function, tuple(target.inputs))

    def can_cancel(self, target: Target) -> bool:
        """An async function can be ended, a plain one cannot; of others nobody knows."""
        function = self._registered.get(str(target.fields["python"]))
        return function is None or inspect.iscoroutinefunction(function)

    async def launch(self, attempt: Attempt) -> tuple[Outcome, str]:
        name = str(attempt.target.fields["python"])
        try:
            function = self._registered.get(name) or await self._imported(name)
            given = read_inputs(attempt.inputs_text)
            way = _way_to_call(function, tuple(given))
        except (Exception, SystemExit) as broken:  # noqa: BLE001 - importing runs what a module says
            return Failed(f"{name}: {broken}", "launch_failed", retryable=False), _trace(broken)
        if way.takes_run:
            given["run"] = attempt
        try:
            call: Callable[..., Awaitable[object]] = (
                function if way.is_async else partial(self._call_in_thread, function)  # type: ignore[assignment]
            )
            if attempt.timeout is None:
                return Succeeded(await call(**given)), ""
            async with asyncio.timeout(attempt.timeout / 1000) as limit:
                return Succeeded(await call(**given)), ""
        except TimeoutError as broken:
            if attempt.timeout is None or not limit.expired():  # the function's own
                return Failed(f"TimeoutError: {broken}"), _trace(broken)
            return Failed(f"still running after {attempt.timeout / 1000:g} s", "timeout"), ""
        except asyncio.CancelledError as broken:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return Failed(f"CancelledError: {broken}"), _trace(broken)  # the function's own
        except BaseException as broken:  # noqa: BLE001 - what a target may raise is its own business
            return Failed(f"{type(broken).__name__}: {broken}"), _trace(broken)

    def kill(self, run_ids: Collection[int]) -> None:
        """Nothing more can be done: a plain function in a thread ends when it returns."""

    async def recover(self) -> int:
        return 0  # a function ends with its process

    async def close(self) -> None:
        """Leave threads to themselves: they cannot be ended from outside, nor waited for."""

    async def _call_in_thread(self, function: Function, /, **given: object) -> object:
        found = await self._threads.call(partial(function, **given))
        return await found if inspect.isawaitable(found) else found

    async def _imported(self, name: str) -> Function:
        module, _, path = name.partition(":")
        if module not in self._imported_modules:  # it may take long, and everything else goes on
            await self._threads.call(partial(importlib.import_module, module))
            self._imported_modules.add(module)
        found: object = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
        if not callable(found):
            raise TypeError(f"{name} is no function")
        return found


class _Way(NamedTuple):
    takes_run: bool  # the attempt, by this name
    is_async: bool


@lru_cache(maxsize=1024)
def _way_to_call(function: Function, given: tuple[str, ...]) -> _Way:
    """Return how to call a function, or refuse inputs that it cannot be called with."""
    parameters = _parameters(function)
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name in sorted(given):
        if name not in parameters and not takes_all:
            known = ", ".join(p for p in parameters if p != "run") or "none"
            raise InvalidSchedule(f"inputs.{name}", "the function has none", hint=f"known: {known}")
    for name, parameter in parameters.items():
        needed = parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        )
        if needed and name not in given and name != "run":
            raise InvalidSchedule(f"inputs.{name}", "the function needs it", hint=f"{name}: ...")
    return _Way("run" in parameters, inspect.iscoroutinefunction(function))


def _parameters(function: Function) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except ValueError:  # some builtins tell nothing
        return {}


def _trace(broken: BaseException) -> str:
    return "".join(traceback.format_exception(broken))
