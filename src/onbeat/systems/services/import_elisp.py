"""Translate services and timers from an Emacs Lisp configuration to the fields of a services file.

Only data is translated. What Emacs would compute is omitted, and reported with its line.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

from onbeat.errors import InvalidFile, InvalidSchedule, Mistake, quote_value
from onbeat.systems.services.field_aliases import OLD_NAMES, PREFIXES
from onbeat.systems.services.lisp import LispNode, read_lisp
from onbeat.systems.services.state import TimerHistory, write_state
from onbeat.systems.services.timers import TIMER_FIELDS, Services, Timers

NEWEST_STATE = 2  # the version of a state file
LATEST = 253_402_300_799  # seconds: the year 9999
NAMES = tuple(prefix.replace("_", "-") for prefix in PREFIXES)  # prefixes of variables
SETTERS = ("setq", "setopt", "setq-default")
BODIES = ("progn", "with-eval-after-load", "eval-and-compile")
SECTIONS = (":init", ":config", ":preface")  # of use-package: forms
QUOTED = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)
SERVICE_KEYS = {
    ":id", ":type", ":enabled", ":disabled", ":oneshot-timeout", ":working-directory",
    ":environment", ":command", ":argv",
}  # fmt: skip
HISTORY_FIELDS = {
    ":last-run-at": "last_run_at",
    ":last-success-at": "last_success_at",
    ":last-failure-at": "last_failure_at",
    ":last-missed-at": "last_missed_at",
}


class _NotDataError(Exception):
    """A value that is not data: it is omitted, and reported with its line."""

    def __init__(self, node: LispNode, problem: str) -> None:
        self.line, self.problem = node.line, problem
        super().__init__(problem)


@dataclass(slots=True)
class Imported:
    """The fields of a services file, and what was not translated."""

    fields: dict[str, object] = field(default_factory=dict)
    left_out: list[Mistake] = field(default_factory=list)


def import_elisp(text: str, path: str) -> Imported:
    """Return the services and timers of a configuration; refuse an unreadable one."""
    forms = read_lisp(text, path)
    found = _Translation()
    for form in forms:
        found.form(form)
    return found.result()


def import_state(text: str, path: str) -> tuple[bytes, list[Mistake]]:
    """Return the state file of an `.eld` file, and what was not translated."""
    forms = read_lisp(text, path)
    pairs = {pair.head: pair for form in forms[:1] for pair in form.items}
    version, timers = pairs.get("version"), pairs.get("timers")
    if version is None or version.tail is None or timers is None:
        hint = "((version . 1) (timers ...))"
        raise InvalidFile(path, [Mistake(1, "", "it contains no timers", hint)])
    if version.tail.kind != "number" or not 1 <= float(version.tail.value) <= NEWEST_STATE:
        problem = f"version {version.tail.value} is not known"
        raise InvalidFile(path, [Mistake(version.line, "", problem, f"1 to {NEWEST_STATE}")])
    histories: dict[str, TimerHistory] = {}
    left_out: list[Mistake] = []
    for entry in timers.items[1:]:
        if entry.kind != "list" or not entry.items or entry.items[0].kind != "string":
            left_out.append(Mistake(entry.line, "", "not the state of a timer"))
            continue
        name = str(entry.items[0].value)
        histories[name] = TimerHistory(**dict(_history(name, entry, left_out)))  # type: ignore[arg-type]  # checked
    return write_state(histories), left_out


def _history(name: str, entry: LispNode, left_out: list[Mistake]) -> Iterator[tuple[str, object]]:
    try:
        pairs = _plist(entry, entry.items[1:])
    except _NotDataError as refused:
        left_out.append(Mistake(refused.line, name, refused.problem))
        return
    for key, node in pairs.items():
        if node.is_symbol("nil"):
            continue
        value = node.value
        if key in HISTORY_FIELDS and node.kind == "number" and 0 <= float(value) <= LATEST:
            yield HISTORY_FIELDS[key], round(float(value) * 1000)
        elif key == ":last-exit" and isinstance(value, int) and abs(value) < 2**31:
            yield "last_exit", value
        elif key == ":last-miss-reason" and node.kind == "symbol":
            yield "last_miss_reason", str(value)
        else:
            left_out.append(Mistake(node.line, name, f"{key} is not translated"))


class _Translation:
    """The result so far, form by form. If something is set twice, the last value is used."""

    def __init__(self) -> None:
        self._fields: dict[str, object] = {}
        self._services: dict[str, dict[str, object]] = {}
        self._timers: list[tuple[int, dict[str, object]]] = []
        self._left_out: list[Mistake] = []
        self._timeout: object = None  # default of oneshot services
        self._without_timeout: set[str] = set()
        self._variables: Mapping[str, Callable[[LispNode], None]] = {
            "programs": self._read_programs,
            "timers": self._read_timers,
            "mode": lambda node: self._set("enabled", _flag(node)),
            "timer-subsystem-mode": lambda node: self._set("timers_enabled", _flag(node)),
            "timer-retry-intervals": lambda node: self._set("retry", _numbers(node)),
            "timer-catch-up-limit": lambda node: self._set("catchup_window", _seconds(node)),
            "oneshot-timeout": self._read_timeout,
            "timer-state-file": self._read_state_file,
        }

    def form(self, node: LispNode) -> None:
        """Translate a form, if it is about services or timers."""
        head, items = node.head, node.items
        if head in SETTERS:
            if len(items) % 2 == 0:
                self._leave_out(node, f"{head} has a variable without a value")
            for name, value in zip(items[1::2], items[2::2], strict=False):
                self._assign(name, value)
        elif head == "customize-set-variable" and len(items) > 2:
            self._assign(_unquoted(items[1]), items[2])
        elif head == "custom-set-variables":
            for each in map(_unquoted, items[1:]):
                if len(each.items) > 1:
                    self._assign(each.items[0], each.items[1])
        elif head in BODIES:
            for each in items[1:]:
                self.form(each)
        elif head == "use-package":
            self._read_package(node)
        elif (variable := _variable(head)) in ("mode", "timer-subsystem-mode"):
            self._try(node, lambda: self._switch(variable, node))
        elif node.kind == "list" and ":id" in (head, *_keys(items)) and ":command" in _keys(items):
            self._try(node, lambda: self._read_service(node, items))  # a unit file
        elif any(map(_variable, node.symbols())) and head not in ("require", "provide"):
            self._leave_out(node, f"({head or '...'} ...) is code and is not translated")

    def result(self) -> Imported:
        """Return the result, without the timers that would be invalid."""
        whole: dict[str, object] = dict(self._fields)
        for name in self._without_timeout & self._services.keys():
            if self._timeout is not None:
                self._services[name]["timeout"] = self._timeout
        whole["services"] = self._services
        whole["timers"] = [fields for _, fields in self._timers]
        try:
            found = Services(whole).timers()
        except InvalidSchedule as refused:
            self._left_out.append(Mistake(None, refused.field, refused.problem, refused.hint))
        else:
            whole["timers"] = list(self._valid_timers(found))
        if self._timers and "timers_enabled" not in whole:
            hint = "write timers_enabled: true into the new file"
            problem = "the old file does not enable timers, so they stay off"
            self._left_out.append(Mistake(None, "timers_enabled", problem, hint))
        self._left_out.sort(key=lambda each: each.line or 0)
        return Imported(whole, self._left_out)

    def _valid_timers(self, found: Timers) -> Iterator[dict[str, object]]:
        """Yield the valid timers, and report the others."""
        seen: set[str] = set()
        for place, (line, fields) in enumerate(self._timers):
            own = fields.get("id")
            name = own if isinstance(own, str) and own else f"timers[{place}]"
            if name in found.valid and name not in seen:
                yield fields
            else:
                reason = "duplicate timer ID" if name in seen else found.invalid[name]
                self._left_out.append(Mistake(line, f"timer {quote_value(name)}", reason))
            seen.add(name)

    # -- variables

    def _read_package(self, node: LispNode) -> None:
        section = ""
        for each in node.items[2:]:
            if each.kind == "symbol" and str(each.value).startswith(":"):
                section = str(each.value)
            elif section == ":custom" and len(each.items) > 1:
                self._assign(each.items[0], each.items[1])
            elif section in SECTIONS:
                self.form(each)
            elif any(map(_variable, each.symbols())) and section:
                self._leave_out(each, f"{section} of use-package is not translated")

    def _assign(self, name: LispNode, value: LispNode) -> None:
        variable = _variable(str(name.value)) if name.kind == "symbol" else ""
        read = self._variables.get(variable)
        if read is not None:
            self._try(name, lambda: read(value))
        elif variable:
            self._leave_out(name, f"{name.value} has no equivalent")

    def _try(self, node: LispNode, work: Callable[[], None]) -> None:
        try:
            work()
        except _NotDataError as refused:
            about = str(node.value) if node.kind == "symbol" else ""
            self._left_out.append(Mistake(refused.line, about, refused.problem))

    def _set(self, name: str, value: object) -> None:
        self._fields[name] = value

    def _switch(self, variable: str, node: LispNode) -> None:
        """Read the call of a mode: on without an argument, off if that is not positive."""
        argument = node.items[1] if len(node.items) > 1 else None
        if argument is not None and argument.kind == "list":
            raise _NotDataError(argument, "it is computed by Emacs")
        if argument is not None and _unquoted(argument).is_symbol("toggle"):
            raise _NotDataError(argument, "the result of toggling is unknown")
        is_off = argument is not None and argument.kind == "number" and float(argument.value) < 1
        self._set(OLD_NAMES[variable.replace("-", "_")], not is_off)

    def _read_timeout(self, node: LispNode) -> None:
        self._timeout = None if node.is_symbol("nil") else _seconds(node)

    def _read_state_file(self, node: LispNode) -> None:
        if node.is_symbol("nil"):
            self._set("state_file", None)
            return
        hint = "import it with --state"
        self._left_out.append(
            Mistake(node.line, "timer-state-file", "not used: Onbeat has its own state file", hint)
        )

    def _leave_out(self, node: LispNode, problem: str) -> None:
        self._left_out.append(Mistake(node.line, "", problem))

    # -- services

    def _read_programs(self, node: LispNode) -> None:
        self._services = {}
        for each in _list(node):
            self._try(each, lambda each=each: self._read_program(each))  # type: ignore[misc]

    def _read_program(self, node: LispNode) -> None:
        if node.kind == "string":
            raise _NotDataError(
                node, f"{quote_value(node.value)} is a simple service; only oneshots are translated"
            )
        if node.kind != "list" or not node.items:
            raise _NotDataError(node, "not a service")
        command, *rest = node.items
        if command.kind == "string":
            line = LispNode(command.line, "symbol", ":command")
            self._read_service(node, (line, command, *rest))
        else:
            self._read_service(node, node.items)

    def _read_service(self, node: LispNode, items: Sequence[LispNode]) -> None:
        fields = _plist(node, items)
        command = fields.get(":command")
        argv = _texts(fields[":argv"]) if ":argv" in fields else []
        if command is not None:
            argv = split_command(_text(command), command)
        if not argv:
            raise _NotDataError(node, "a service without a command")
        name = _text(fields[":id"]) if ":id" in fields else argv[0].rpartition("/")[2]
        kind = fields.get(":type")
        if kind is None or not kind.is_symbol("oneshot"):
            name_of_kind = "simple" if kind is None else kind.value
            raise _NotDataError(
                node, f"service {quote_value(name)} is {name_of_kind}; timers start oneshots only"
            )
        if name in self._services:
            raise _NotDataError(
                node, f"service {quote_value(name)} appears twice; the first one is used"
            )
        found: dict[str, object] = {"argv": argv}
        if not _is_nil(fields.get(":working-directory")):
            found["cwd"] = _text(fields[":working-directory"])
        if not _is_nil(fields.get(":environment")):
            found["env"] = _environment(fields[":environment"])
        timeout = fields.get(":oneshot-timeout")
        if timeout is None:
            self._without_timeout.add(name)
        elif not timeout.is_symbol("nil"):
            found["timeout"] = _seconds(timeout)
        is_off = (":disabled" in fields and _flag(fields[":disabled"])) or (
            ":enabled" in fields and not _flag(fields[":enabled"])
        )
        if is_off:
            found["enabled"] = False
        self._services[name] = found
        for key in fields.keys() - SERVICE_KEYS:
            line = fields[key].line
            self._left_out.append(
                Mistake(line, f"service {quote_value(name)}", f"{key} is not translated")
            )

    # -- timers

    def _read_timers(self, node: LispNode) -> None:
        self._timers = []
        for each in _list(node):
            self._try(each, lambda each=each: self._read_timer(each))  # type: ignore[misc]

    def _read_timer(self, node: LispNode) -> None:
        fields = _plist(node, node.items)
        found: dict[str, object] = {}
        for key, value in fields.items():
            name = key.removeprefix(":").replace("-", "_")
            if name not in TIMER_FIELDS:
                raise _NotDataError(value, f"unknown keyword {key}, the timer is ignored")
            if name in ("enabled", "persistent"):
                found[name] = _flag(value)
            elif not value.is_symbol("nil"):
                found[name] = _calendar(value) if name == "on_calendar" else _scalar(value)
        self._timers.append((node.line, found))


def split_command(text: str, node: LispNode) -> list[str]:
    """Return the words of a command as Emacs splits them: at spaces, except within `"..."`.

    No shell is involved: single quotes, variables and pipes have no special meaning.
    """
    found: list[str] = []
    at = 0
    while (begin := text.find('"', at)) >= 0:
        found += text[at:begin].split()
        quoted = QUOTED.match(text, begin)
        if quoted is None:
            raise _NotDataError(node, f"{quote_value(text)} has an unclosed quote")
        try:
            (word,) = read_lisp(quoted[0], "")
        except InvalidFile as refused:
            raise _NotDataError(node, refused.mistakes[0].problem) from None
        found.append(str(word.value))
        at = quoted.end()
    return found + text[at:].split()


def _variable(name: str) -> str:
    """Return the name of a variable without the prefix of its system, or an empty string."""
    for prefix in NAMES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return ""


def _keys(items: Sequence[LispNode]) -> list[str]:
    return [str(each.value) for each in items if each.kind == "symbol"]


def _unquoted(node: LispNode) -> LispNode:
    """Return the node without its quote, if it has one."""
    is_quote = node.head in ("quote", "backquote", "function") and len(node.items) == 2
    return node.items[1] if is_quote else node


def _list(node: LispNode) -> Sequence[LispNode]:
    """Return the items of a literal list: quoted, or `(list ...)`."""
    if node.is_symbol("nil"):
        return ()
    if node.head in ("quote", "backquote"):
        found = _unquoted(node)
        if found.is_symbol("nil"):
            return ()
        if found.kind == "list" and found.tail is None:
            return found.items
    elif node.head == "list":
        return [_evaluated(_unquoted(each)) for each in node.items[1:]]
    raise _NotDataError(node, "not a quoted list; it is computed by Emacs")


def _evaluated(node: LispNode) -> LispNode:
    """Return the list of a `(list ...)` call, or the node itself."""
    if node.head != "list":
        return node
    return LispNode(
        node.line, "list", items=tuple(_evaluated(_unquoted(each)) for each in node.items[1:])
    )


def _plist(node: LispNode, items: Sequence[LispNode]) -> dict[str, LispNode]:
    """Return the values of a property list, by keyword."""
    if node.kind != "list" or node.tail is not None:
        raise _NotDataError(node, "not a property list")
    found: dict[str, LispNode] = {}
    for key, value in zip(items[::2], items[1::2], strict=False):
        if key.kind != "symbol" or not str(key.value).startswith(":"):
            raise _NotDataError(key, f"{_format(key)} is not a keyword")
        if str(key.value) in found:
            raise _NotDataError(key, f"{key.value} appears twice")
        found[str(key.value)] = _unquoted(value)
    if len(items) % 2:
        raise _NotDataError(items[-1], f"{quote_value(items[-1].value)} has no value")
    return found


def _is_nil(node: LispNode | None) -> bool:
    return node is None or node.is_symbol("nil")


def _flag(node: LispNode) -> bool:
    if node.is_symbol("t"):
        return True
    if node.is_symbol("nil"):
        return False
    raise _NotDataError(node, f"{_format(node)} is neither t nor nil")


def _text(node: LispNode) -> str:
    if node.kind != "string":
        raise _NotDataError(node, f"{_format(node)} is not a string; it is computed by Emacs")
    return str(node.value)


def _texts(node: LispNode) -> list[str]:
    if node.kind != "list" or node.tail is not None:
        raise _NotDataError(node, f"{_format(node)} is not a list of strings")
    return [_text(each) for each in node.items]


def _seconds(node: LispNode) -> str:
    if node.kind == "number" and isfinite(float(node.value)) and float(node.value) >= 0:
        return (
            f"{round(float(node.value) * 1000)}ms"
            if node.value != int(node.value)
            else (f"{int(node.value)}s")
        )
    raise _NotDataError(node, f"{_format(node)} is not a number of seconds")


def _numbers(node: LispNode) -> list[str]:
    return [_seconds(each) for each in _list(node)]


def _scalar(node: LispNode) -> object:
    if node.kind in ("string", "number"):
        return node.value
    if node.is_symbol("t"):
        return True
    if node.is_symbol("*"):
        return "*"
    if node.kind == "symbol" and not str(node.value).startswith(":"):
        return str(node.value)
    raise _NotDataError(node, f"{_format(node)} is not translated")


def _calendar(node: LispNode) -> object:
    """Return a calendar, or a list of them."""
    if node.kind == "list" and node.items and node.items[0].kind == "list":
        return [_calendar(each) for each in node.items]
    if node.kind != "list":
        raise _NotDataError(node, f"{_format(node)} is not a calendar")
    found: dict[str, object] = {}
    for key, value in _plist(node, node.items).items():
        several = value.kind == "list" and value.tail is None
        name = key.removeprefix(":").replace("-", "_")
        found[name] = [_scalar(each) for each in value.items] if several else _scalar(value)
    return found


def _environment(node: LispNode) -> dict[str, str]:
    """Return the variables of pairs `("NAME" . "value")`."""
    found: dict[str, str] = {}
    for pair in node.items:
        if pair.kind != "list" or len(pair.items) != 1 or pair.tail is None:
            raise _NotDataError(pair, f'{_format(pair)} is not a pair ("NAME" . "value")')
        found[_text(pair.items[0])] = _text(pair.tail)
    return found


def _format(node: LispNode) -> str:
    if node.kind == "list":
        return f"({node.head} ...)" if node.head else "(...)"
    return quote_value(node.value) if node.kind == "string" else str(node.value)
