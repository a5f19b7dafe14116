"""Change one place of the product: find it by name, and edit its syntax tree.

A place is `package.module:qualified.name` of a function, a class or a constant. A pattern is Python
source that is compared with syntax trees, so that comments, docstrings and formatting do not
matter. In a pattern

- `$NAME` matches any expression, and the same one wherever it occurs. The replacement can use it.
- `...` matches any expression; in a list (of arguments, operands, elements, statements) any number
  of them. Keyword arguments may then be left out of the pattern, too.

A pattern has to match exactly once in its place, unless the edit states `everywhere`.
"""

import ast
import builtins
import copy
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

VARIABLE = re.compile(r"\$([A-Z]+)")
WORD = re.compile(r"[A-Za-z_]\w*")
PREFIX = "VARIABLE_"  # of the names that variables have in a syntax tree
NOT_COMPARED = {"ctx", "kind", "type_comment"}
Found = dict[str, ast.expr]  # what the variables of a pattern match


class MutantError(Exception):
    """The place is gone, or the pattern does not match exactly once."""


@dataclass(frozen=True)
class Edit:
    """A replacement of what a pattern matches."""

    pattern: str
    by: str
    everywhere: bool = False
    of_statements: bool = False  # the pattern is a statement, even if it could be an expression

    @cached_property
    def _statements(self) -> tuple[list[ast.stmt], list[ast.stmt]]:
        return _parsed(self.pattern), _parsed(self.by)

    def apply(self, place: ast.stmt) -> int:
        """Change a place; return how many times the pattern matched."""
        old, new = self._statements
        is_expression = _is_expression(old) and _is_expression(new) and not self.of_statements
        if not is_expression:
            return _replace_statements(place, old, lambda found, _: _filled(new, found))
        expressions = _Expressions(old[0].value, new[0].value, but=set(_docstrings(place)))
        expressions.generic_visit(place)
        return expressions.count

    def names(self) -> set[str]:
        """Return the names that the replacement needs where it is put."""
        needed: set[str] = set()
        own: set[str] = set()  # assigned by a statement before
        for statement in self._statements[1]:
            nodes = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
            read = {node.id for node in nodes if isinstance(node.ctx, ast.Load)}
            needed |= {name for name in read - own if not name.startswith(PREFIX)}
            own |= {node.id for node in nodes} - read
        return needed

    def words(self) -> set[str]:
        """Return the attributes that the replacement uses, and the words of its strings."""
        found: set[str] = set()
        for node in [node for each in self._statements[1] for node in ast.walk(each)]:
            if isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.update(WORD.findall(node.value))
        return found


@dataclass(frozen=True)
class Insertion(Edit):
    """Statements that are added before or after those that the pattern matches."""

    is_before: bool = False

    def apply(self, place: ast.stmt) -> int:
        old, new = self._statements

        def with_new(found: Found, there: list[ast.stmt]) -> list[ast.stmt]:
            added = _filled(new, found)
            return [*added, *there] if self.is_before else [*there, *added]

        return _replace_statements(place, old, with_new)


@dataclass(frozen=True)
class SqlEdit(Edit):
    """A change of a fragment of a string, whatever white space is between its words."""

    def apply(self, place: ast.stmt) -> int:
        fragment = re.compile(r"\s+".join(map(re.escape, self.pattern.split())))
        docstrings, count = set(_docstrings(place)), 0
        for node in ast.walk(place):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if node in docstrings:
                    continue
                node.value, found = fragment.subn(lambda _: self.by, node.value)
                count += found
        return count

    def names(self) -> set[str]:
        return set()

    def words(self) -> set[str]:
        return set(WORD.findall(self.by))


def replace(pattern: str, by: str, *, everywhere: bool = False) -> Edit:
    """Replace an expression, or consecutive statements."""
    return Edit(pattern, by, everywhere)


def delete(statement: str) -> Edit:
    """Delete a statement."""
    return Edit(statement, "", of_statements=True)


def insert_before(statement: str, new: str) -> Edit:
    """Insert statements before another one."""
    return Insertion(statement, new, is_before=True)


def insert_after(statement: str, new: str) -> Edit:
    """Insert statements after another one."""
    return Insertion(statement, new)


def replace_sql(fragment: str, by: str) -> Edit:
    """Replace a fragment of a statement in SQL."""
    return SqlEdit(fragment, by)


@dataclass(frozen=True)
class Mutant:
    """A defect: this place of the product is changed in this way."""

    name: str
    place: str
    edit: Edit
    is_out_of_reach: bool = False  # of the simulator: the contract suite has to find it

    def file(self, source: Path) -> Path:
        """Return the file of its module."""
        module = self.place.partition(":")[0]
        path = source.joinpath(*module.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if not file.is_file():
            raise MutantError(f"{self.name}: there is no module {module} in {source}")
        return file

    def find(self, module: ast.Module) -> tuple[list[ast.stmt], int]:
        """Return the statements among which the place is, and its index."""
        body, found = [module], [0]
        for name in self.place.partition(":")[2].split("."):
            body = getattr(body[found[0]], "body", [])
            found = [n for n, statement in enumerate(body) if name in _defined(statement)]
            if len(found) != 1:
                raise MutantError(
                    f"{self.name}: {self.place}: {name} is defined {len(found)} times"
                )
        return body, found[0]

    def changed(self, place: ast.stmt) -> ast.stmt:
        """Return the place with the defect."""
        place = copy.deepcopy(place)
        count = self.edit.apply(place)
        if count == 0 or (count > 1 and not self.edit.everywhere):
            raise MutantError(
                f"{self.name}: {self.place}: the pattern matches {count} times: {self.edit.pattern}"
            )
        return place


def plant(mutant: Mutant, source: Path) -> None:
    """Put a defect into a copy of the source."""
    file = mutant.file(source)
    module = ast.parse(file.read_text())
    body, n = mutant.find(module)
    body[n] = mutant.changed(body[n])
    file.write_text(ast.unparse(module))


def known_names(module: ast.Module, place: ast.stmt) -> set[str]:
    """Return the names that code in a place of a module can use."""
    known = {*dir(builtins), *_names(place)}
    for statement in module.body:
        known |= _defined(statement)
        if isinstance(statement, ast.Import | ast.ImportFrom):
            known |= {alias.asname or alias.name for alias in statement.names}
    return known


def _parsed(source: str) -> list[ast.stmt]:
    return ast.parse(VARIABLE.sub(rf"{PREFIX}\1", textwrap.dedent(source))).body


def _is_expression(statements: list[ast.stmt]) -> bool:
    return len(statements) == 1 and isinstance(statements[0], ast.Expr)


def _variable(node: object) -> str | None:
    """Return the name of a variable of a pattern, if this is one."""
    if isinstance(node, ast.Expr):
        node = node.value
    return node.id if isinstance(node, ast.Name) and node.id.startswith(PREFIX) else None


def _is_ellipsis(node: object) -> bool:
    if isinstance(node, ast.Expr):
        node = node.value
    return isinstance(node, ast.Constant) and node.value is ...


def _match(pattern: object, node: object, found: Found) -> Found | None:
    """Return what the variables match, in addition to `found`; None if it does not match."""
    if isinstance(pattern, list):
        return _match_lists(pattern, node, found) if isinstance(node, list) else None
    if not isinstance(pattern, ast.AST):
        return found if type(pattern) is type(node) and pattern == node else None
    if isinstance(node, ast.expr):
        if _is_ellipsis(pattern):
            return found
        name = _variable(pattern)
        if name is not None and name in found:
            return found if ast.unparse(found[name]) == ast.unparse(node) else None
        if name is not None:
            return found | {name: node}
    if type(pattern) is not type(node):
        return None
    fields = [field for field in pattern._fields if field not in NOT_COMPARED]
    if isinstance(pattern, ast.Call) and any(map(_is_ellipsis, pattern.args)):
        fields.remove("keywords")
        given = {keyword.arg: keyword for keyword in node.keywords}
        for keyword in pattern.keywords:
            matched = _match(keyword, given.get(keyword.arg), found)
            if matched is None:
                return None
            found = matched
    for field in fields:
        matched = _match(getattr(pattern, field, None), getattr(node, field, None), found)
        if matched is None:
            return None
        found = matched
    return found


def _match_lists(patterns: list, nodes: list, found: Found) -> Found | None:
    if not patterns:
        return None if nodes else found
    first, *rest = patterns
    if _is_ellipsis(first):
        options = (_match_lists(rest, nodes[n:], found) for n in range(len(nodes) + 1))
        return next((each for each in options if each is not None), None)
    matched = _match(first, nodes[0], found) if nodes else None
    return None if matched is None else _match_lists(rest, nodes[1:], matched)


class _Filling(ast.NodeTransformer):
    """Puts what variables have matched in their place."""

    def __init__(self, found: Found) -> None:
        self._found = found

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return copy.deepcopy(self._found[node.id]) if node.id.startswith(PREFIX) else node


def _filled(new: list[ast.stmt], found: Found) -> list[ast.stmt]:
    return [_Filling(found).visit(copy.deepcopy(statement)) for statement in new]


class _Expressions(ast.NodeTransformer):
    """Replaces the expressions that match a pattern, and counts them."""

    def __init__(self, pattern: ast.expr, by: ast.expr, but: set[ast.Constant]) -> None:
        self._pattern, self._by, self._but, self.count = pattern, by, but, 0

    def visit(self, node: ast.AST) -> ast.AST:
        if node in self._but:
            return node
        found = _match(self._pattern, node, {}) if isinstance(node, ast.expr) else None
        if found is None:
            return self.generic_visit(node)
        self.count += 1
        return _Filling(found).visit(copy.deepcopy(self._by))


def _replace_statements(
    place: ast.stmt,
    pattern: list[ast.stmt],
    by: Callable[[Found, list[ast.stmt]], list[ast.stmt]],
) -> int:
    """Replace consecutive statements that match a pattern; return how many times."""
    count, length = 0, len(pattern)
    for block in list(_blocks(place)):
        n = 0
        while n + length <= len(block):
            there = block[n : n + length]
            found = _match_lists(pattern, there, {})
            if found is None:
                n += 1
                continue
            new = by(found, there) or ([] if len(block) > length else [ast.Pass()])
            block[n : n + length] = new
            count, n = count + 1, n + len(new)
    return count


def _blocks(place: ast.stmt) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(place):
        for _, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                yield value


def _docstrings(place: ast.stmt) -> Iterator[ast.Constant]:
    for block in _blocks(place):
        first = block[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            yield first.value


def _defined(statement: ast.stmt) -> set[str]:
    """Return the names that a statement of a module or a class defines."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    targets = [statement.target] if isinstance(statement, ast.AnnAssign) else targets
    return {name for target in targets for name in _names(target)}


def _names(within: ast.AST) -> set[str]:
    """Return the names that occur in code, those of parameters included."""
    nodes = list(ast.walk(within))
    parameters = {node.arg for node in nodes if isinstance(node, ast.arg)}
    return parameters | {node.id for node in nodes if isinstance(node, ast.Name)}
