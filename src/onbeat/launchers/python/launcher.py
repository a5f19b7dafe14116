"""Call Python functions in this process: `run: {python: "reports:build", inputs: {limit: 100}}`.

A function gets its inputs by name and, if it has a parameter called `run`, the attempt. Plain
functions run in threads, async functions in the event loop. The return value is stored.
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
from onbeat.errors import InvalidSchedule, quote_value
from onbeat.launchers.python.threads import CallThreads
from onbeat.ports.store import Attempt

Function = Callable[..., object]

FIELDS = frozenset({"python", "inputs"})


class FunctionLauncher:
    """Calls functions that are registered under a name, or that can be imported."""

    def __init__(self, *, concurrency: int = 64) -> None:
        self._registered: dict[str, Function] = {}
        self._imported_modules: set[str] = set()
        self._threads = CallThreads(concurrency)

    def register(self, name: str, function: Function) -> None:
        """Offer a function under a name."""
        if self._registered.get(name, function) is not function:
            problem = f"another function is registered as {name!r}"
            raise InvalidSchedule("python", problem, hint="another name for one of them")
        self._registered[name] = function

    def offers(self) -> Iterable[str]:
        return ["python", *(f"python:{name}" for name in self._registered)]

    def check(self, target: Target) -> None:
        function = self._registered.get(_read_name(target))
        if function is not None:
            _signature(function, tuple(target.inputs))

    def can_cancel(self, target: Target) -> bool:
        """Return whether it is async; True for a function that is not imported yet."""
        function = self._registered.get(str(target.fields["python"]))
        return function is None or inspect.iscoroutinefunction(function)

    async def launch(self, attempt: Attempt) -> tuple[Outcome, str]:
        try:
            name = _read_name(attempt.target)
        except InvalidSchedule as refused:  # defined by another version
            return Failed(str(refused), "invalid_target", retryable=False), ""
        try:
            function = self._registered.get(name) or await self._imported(name)
            arguments = read_inputs(attempt.inputs_text)
            signature = _signature(function, tuple(arguments))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - an import runs the module
            problem = f"{name}: {_text(error)}"
            return Failed(problem, "launch_failed", retryable=False), _trace(error)
        if signature.takes_run:
            arguments["run"] = attempt
        try:
            call: Callable[..., Awaitable[object]] = (
                function if signature.is_async else partial(self._call_in_thread, function)  # type: ignore[assignment]
            )
            if attempt.timeout is None:
                return Succeeded(await call(**arguments)), ""
            async with asyncio.timeout(attempt.timeout / 1000) as limit:
                return Succeeded(await call(**arguments)), ""
        except TimeoutError as error:
            if attempt.timeout is None or not limit.expired():  # raised by the function
                return Failed(f"TimeoutError: {_text(error)}"), _trace(error)
            return Failed(f"still running after {attempt.timeout / 1000:g} s", "timeout"), ""
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return Failed(f"CancelledError: {_text(error)}"), _trace(
                error
            )  # raised by the function
        except BaseException as error:  # noqa: BLE001 - a function may raise anything
            return Failed(f"{type(error).__name__}: {_text(error)}"), _trace(error)

    def kill(self, run_ids: Collection[int]) -> None:
        """Do nothing: a plain function in a thread ends only when it returns."""

    async def recover(self) -> int:
        return 0  # a function ends with its process

    async def close(self) -> None:
        """Do nothing: a thread cannot be stopped, and a daemon thread is not waited for."""

    async def _call_in_thread(self, function: Function, /, **arguments: object) -> object:
        result = await self._threads.call(partial(function, **arguments))
        return await result if inspect.isawaitable(result) else result

    async def _imported(self, name: str) -> Function:
        module, _, path = name.partition(":")
        if module not in self._imported_modules:  # in a thread: an import may take long
            await self._threads.call(partial(importlib.import_module, module))
            self._imported_modules.add(module)
        function: object = importlib.import_module(module)
        for part in path.split("."):
            function = getattr(function, part)
        if not callable(function):
            raise TypeError(f"{name} is not a function")
        return function


def _read_name(target: Target) -> str:
    """Return the name of a target's function, or refuse the target."""
    check_names(target.fields, FIELDS)
    name = target.fields["python"]
    if not (isinstance(name, str) and _is_name(name)):
        hint = "module:function, or the name of a registered function"
        raise InvalidSchedule("python", f"{quote_value(name)} is not a function name", hint=hint)
    return name


@lru_cache(maxsize=1024)
def _is_name(text: str) -> bool:
    """Return whether a text can be the name of a function."""
    module, colon, path = text.partition(":")
    importable = all(part.isidentifier() for part in (*module.split("."), *path.split(".")))
    return importable if colon else ID.fullmatch(module) is not None


class _Signature(NamedTuple):
    takes_run: bool  # a parameter `run` for the attempt
    is_async: bool


@lru_cache(maxsize=1024)
def _signature(function: Function, inputs: tuple[str, ...]) -> _Signature:
    """Return how to call a function, or refuse inputs that do not match its parameters."""
    parameters = _parameters(function)
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name in sorted(inputs):
        if name not in parameters and not takes_all:
            known = ", ".join(p for p in parameters if p != "run") or "none"
            problem = "the function has no such parameter"
            raise InvalidSchedule(f"inputs.{name}", problem, hint=f"known: {known}")
    for name, parameter in parameters.items():
        required = parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        )
        if required and name not in inputs and name != "run":
            problem = "the function requires it"
            raise InvalidSchedule(f"inputs.{name}", problem, hint=f"{name}: ...")
    return _Signature("run" in parameters, inspect.iscoroutinefunction(function))


def _parameters(function: Function) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except ValueError:  # some builtins have no signature
        return {}


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001 - `__str__` of an exception may fail
        return f"without a text: its __str__ raised {type(broken).__name__}"


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))
