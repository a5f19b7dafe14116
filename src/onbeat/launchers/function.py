"""Python functions, in this process: `run: {python: "reports:build", inputs: {limit: 100}}`.

A function is called with its inputs by name and, if it has a parameter called `run`, with the
attempt. Plain functions run in threads, async ones in the event loop. What it returns is kept.
"""

import asyncio
import importlib
import inspect
import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

from onbeat.core.codec import check_names
from onbeat.core.runs import Failed, Outcome, Succeeded
from onbeat.core.schedules import Target
from onbeat.errors import InvalidSchedule, shown
from onbeat.ports import Attempt

Function = Callable[..., object]


class FunctionLauncher:
    """Calls functions that were registered under a name, or that can be imported."""

    def __init__(self, *, concurrency: int = 64) -> None:
        self._registered: dict[str, Function] = {}
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="onbeat-run")

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
        module, _, path = name.partition(":") if isinstance(name, str) else ("", "", "")
        parts = (module.split(".") if module else [""]) + (path.split(".") if path else [])
        if not all(part.replace("-", "_").isidentifier() for part in parts):
            hint = "module:function, or the name of a registered one"
            raise InvalidSchedule("python", f"{shown(name)} names no function", hint=hint)
        function = self._registered.get(str(name))
        if function is not None:
            _check_names(function, frozenset(target.inputs or ()))

    async def launch(self, attempt: Attempt) -> tuple[Outcome, str]:
        name = str(attempt.target.fields["python"])
        try:
            function = self._find(name)
            given = dict(attempt.inputs)
            _check_names(function, frozenset(given))
        except Exception as broken:  # noqa: BLE001 - importing runs whatever the module says
            return Failed(f"{name}: {broken}", "launch_failed", retryable=False), _trace(broken)
        if "run" in _parameters(function):
            given["run"] = attempt
        try:
            if attempt.timeout is None:
                return Succeeded(await self._call(function, given)), ""
            async with asyncio.timeout(attempt.timeout / 1000) as limit:
                return Succeeded(await self._call(function, given)), ""
        except TimeoutError as broken:
            if attempt.timeout is None or not limit.expired():  # the function's own
                return Failed(f"TimeoutError: {broken}"), _trace(broken)
            return Failed(f"still running after {attempt.timeout / 1000:g} s", "timeout"), ""
        except Exception as broken:  # noqa: BLE001 - what a target may raise is its own business
            return Failed(f"{type(broken).__name__}: {broken}"), _trace(broken)

    async def recover(self) -> int:
        return 0  # a function ends with its process

    async def close(self) -> None:
        # A thread cannot be ended from outside: the process does not wait for one that hangs.
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _call(self, function: Function, given: Mapping[str, object]) -> object:
        if _is_async(function):
            return await function(**given)  # type: ignore[misc]  # it was just asked
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, lambda: function(**given))
        return await found if inspect.isawaitable(found) else found

    def _find(self, name: str) -> Function:
        if name in self._registered:
            return self._registered[name]
        module, _, path = name.partition(":")
        found: object = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
        if not callable(found):
            raise TypeError(f"{name} is no function")
        return found


@lru_cache(maxsize=1024)
def _check_names(function: Function, given: frozenset[str]) -> None:
    """Refuse inputs that the function does not take, or that leave out what it needs."""
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


@lru_cache(maxsize=1024)
def _parameters(function: Function) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except ValueError:  # some builtins tell nothing
        return {}


@lru_cache(maxsize=1024)
def _is_async(function: Function) -> bool:
    return inspect.iscoroutinefunction(function)


def _trace(broken: BaseException) -> str:
    return "".join(traceback.format_exception(broken))
