"""Laws: the equation between two tensors that a rule's function states.

A hand-written law (``Written``) is a function of the rule language, read from its text and evaluated. A law that this project makes
from other data, such as a corpus of published rules, is a Python generator (``Stated``).
"""

from __future__ import annotations

import ast
import hashlib
import linecache
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import import_module
from types import CellType, FunctionType, ModuleType
from typing import Any, Protocol, TypeAlias
from uuid import uuid4
from weakref import WeakKeyDictionary

from egraph.errors import RuleError
from egraph.rewrite import syntax
from egraph.rewrite.evaluator import Evaluator
from egraph.rewrite.library import BUILTINS, MODULES, OPERATORS, TERMS
from egraph.rewrite.parts import Overlay, mentioned, pieces, reachable
from egraph.rewrite.reader import read_function
from egraph.rewrite.terms import Equation, Tensor
from egraph.rewrite.values import PLAIN, Closure, Interpretation, Namespace, Native, Refusal, Value

SHAPE = "a rule must return an Equation, or yield its left and then its right side"
Sides: TypeAlias = tuple[Tensor, Tensor]
OnLeft: TypeAlias = Callable[[Tensor], None]


class Law(Protocol):
    """The equation of a rule; hashable because it is a key of memos."""

    def __hash__(self) -> int: ...

    def sides(self, arguments: Mapping[str, Value], numbers: Interpretation = PLAIN, on_left: OnLeft | None = None) -> Sides:
        """Return both sides for variables; ``on_left`` is called with the left one before the rest is evaluated."""

    def left(self, arguments: Mapping[str, Value], numbers: Interpretation = PLAIN) -> Tensor:
        """Return the left side alone; nothing after it is evaluated."""

    def several(self, arguments: Mapping[str, Value], numbers: Interpretation = PLAIN) -> Sequence[Tensor]:
        """Return the right sides of a merge."""

    def parts(self) -> Iterator[tuple[str, object]]:
        """Yield everything that determines the law: functions with their syntax, and values, by name."""


class _LeftIsKnown(Exception):
    """The left side is complete; evaluation stops."""


@dataclass(frozen=True, eq=False)
class Written:
    """A function of the language; ``lists``: the number of variables ``x1, x2, ...`` of each parameter that takes several."""

    closure: Closure
    lists: Mapping[str, int] = field(default_factory=dict)
    is_member: bool = False
    """Whether the function returns the one tensor that a member of a merge computes."""

    def sides(self, arguments: Mapping[str, Value], numbers: Interpretation = PLAIN, on_left: OnLeft | None = None) -> Sides:
        yielded: list[Tensor] = []

        def take(side: Value) -> None:
            if not isinstance(side, Tensor) or len(yielded) == 2:
                raise RuleError(SHAPE, where=self._where)
            yielded.append(side)
            if len(yielded) == 1 and on_left is not None:
                on_left(side)

        result = Evaluator(numbers).run(self.closure, self._given(arguments), take)
        if isinstance(result, Equation) and not yielded:
            return result.left, result.right
        if len(yielded) != 2 or result is not None:
            raise RuleError(SHAPE, where=self._where)
        return yielded[0], yielded[1]

    def left(self, arguments: Mapping[str, Value], numbers: Interpretation = PLAIN) -> Tensor:
        yielded: list[Tensor] = []

        def take(side: Value) -> None:
            yielded.append(side)
            raise _LeftIsKnown

        try:
            result = Evaluator(numbers).run(self.closure, self._given(arguments), take)
        except _LeftIsKnown:
            result = yielded[0]
        side = result.left if isinstance(result, Equation) else result
        if not isinstance(side, Tensor) or not (yielded or self.is_member or isinstance(result, Equation)):
            raise RuleError(SHAPE, where=self._where)
        return side

    def several(self, arguments: Mapping[str, Value], numbers: Interpretation = PLAIN) -> Sequence[Tensor]:
        run = Evaluator(numbers)
        members = run.call(self.closure, [], self._given(arguments))
        if run.kind(members) not in ("list", "tuple") or not all(isinstance(each, Tensor) for each in members):
            raise RuleError("a merge must return a list of tensors", where=self._where)
        return tuple(members)

    @property
    def _where(self) -> str:
        return f"{self.closure.path}:{self.closure.syntax.line}"

    def _given(self, arguments: Mapping[str, Value]) -> dict[str, Value]:
        if not self.lists:
            return dict(arguments)
        names = [each.name for each in self.closure.syntax.parameters]
        listed = {name: [arguments[f"{name}{i + 1}"] for i in range(count)] for name, count in self.lists.items()}
        return {name: listed[name] if name in listed else arguments[name] for name in names}

    def parts(self) -> Iterator[tuple[str, object]]:
        yield from (("lists", item) for item in sorted(self.lists.items()))
        yield from reachable(self.closure)

    def requiring(self, text: str) -> Written:
        """Return the law with one more guard, checked first; ``text`` is a condition of the language and also its reason."""
        tree = ast.parse(f"def guard():\n    require({text}, {text!r})").body[0]
        assert isinstance(tree, ast.FunctionDef)
        guard = read_function(tree, "a guard").body
        around = Overlay({"require": TERMS["require"], "all": BUILTINS["all"]}, self.closure.around)
        return replace(self, closure=replace(self.closure, syntax=replace(self.closure.syntax, body=(*guard, *self.closure.syntax.body)),
                                             around=around))


@dataclass(frozen=True, eq=False)
class Stated:
    """A law that a Python generator of this project yields; ``said``: the text that identifies it."""

    function: Callable[..., Iterator[Tensor]]
    said: str = field(default_factory=lambda: uuid4().hex)

    def sides(self, arguments: Mapping[str, Value], numbers: Interpretation = PLAIN, on_left: OnLeft | None = None) -> Sides:
        steps = self.function(**arguments)
        left = next(steps)
        if on_left is not None:
            on_left(left)
        return left, next(steps)

    def left(self, arguments: Mapping[str, Value], numbers: Interpretation = PLAIN) -> Tensor:
        return next(self.function(**arguments))

    def several(self, arguments: Mapping[str, Value], numbers: Interpretation = PLAIN) -> Sequence[Tensor]:
        return tuple(self.function(**arguments))

    def parts(self) -> Iterator[tuple[str, object]]:
        yield "said", self.said


# Names


class PythonNames:
    """The scope of a function that Python has loaded, as values of the language; each name is read once."""

    def __init__(self, function: FunctionType) -> None:
        self.function = function
        self._cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        self._globals = function.__globals__
        self._values: dict[str, Value] = {}
        self.path = function.__code__.co_filename

    def find(self, name: str) -> Value:
        if name not in self._values:
            self._values[name] = value_of(self._raw(name), name, self.path)
        return self._values[name]

    def _raw(self, name: str) -> Any:
        if name in self._cells:
            return _content(self._cells[name])
        if name in self._globals:
            return self._globals[name]
        return BUILTINS[name]


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        raise KeyError from None


_CLOSURES: WeakKeyDictionary[FunctionType, Closure] = WeakKeyDictionary()


def closure_of(function: Callable[..., Any]) -> Closure:
    """Return a function that Python has loaded as one of the language; raise ``RuleError`` if its text is not part of the language."""
    if not isinstance(function, FunctionType):
        raise RuleError(f"{function!r} is no function of a rule", fix="define it with def, in a file")
    closure = _CLOSURES.get(function)
    if closure is None:
        names = PythonNames(function)
        node = _definition(function)
        read = read_function(node, names.path)
        if isinstance(node, ast.Lambda):  # its attributes and annotations were set from outside
            annotations = function.__annotations__
            annotated = (_annotated(annotations.get(each.name)) or each.annotation for each in read.parameters)
            parameters = tuple(replace(each, annotation=kind) for each, kind in zip(read.parameters, annotated, strict=True))
            read = replace(read, parameters=parameters)
        plain = [each.name for each in read.parameters if not each.named and not each.kind]
        values = dict(zip(reversed(plain), reversed(function.__defaults__ or ()), strict=False)) | (function.__kwdefaults__ or {})
        defaults = {name: value_of(value, name, names.path) for name, value in values.items()}
        closure = _CLOSURES[function] = Closure(read, names, names.path, defaults, function.__name__, (function.__doc__ or "").strip())
        for name in names._cells:  # a variable of an enclosing loop has its current value, not its last one
            if name in mentioned(read):
                try:
                    names.find(name)
                except KeyError:  # not assigned yet: it is the function itself, or one that follows
                    continue
    return closure


def _annotated(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")


@lru_cache(maxsize=256)
def _parsed(text: str) -> tuple[ast.FunctionDef | ast.Lambda, ...]:
    return tuple(node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.Lambda))


def _definition(function: FunctionType) -> ast.FunctionDef | ast.Lambda:
    """Return a function's text as a Python syntax tree."""
    code = function.__code__
    text = "".join(linecache.getlines(code.co_filename, function.__globals__))
    lambdas: list[ast.Lambda] = []
    for node in _parsed(text):
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
        if first == code.co_firstlineno:
            if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
                return node
            if isinstance(node, ast.Lambda):
                lambdas.append(node)
    if code.co_name == "<lambda>" and lambdas:
        positions = set(code.co_positions())
        fit = [sum(isinstance(part, ast.expr) and _place(part) in positions for part in ast.walk(each.body)) for each in lambdas]
        if len(lambdas) == 1 or fit.count(max(fit)) == 1:
            return lambdas[fit.index(max(fit))]
    raise RuleError(f"the text of {function.__qualname__} cannot be read", where=code.co_filename, fix="define it with def, in a file")


def _place(node: ast.expr) -> tuple[int, int | None, int, int | None]:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


@lru_cache(maxsize=1)
def _natives() -> Mapping[int, tuple[object, Value]]:
    """Return the language's functions by the ``id`` of the Python objects that stand for them, each with that object."""
    natives: dict[int, tuple[object, Value]] = {}
    for module, members in MODULES.items():
        home = import_module(module)
        for name, value in members.items():
            function = getattr(home, name, None)
            if isinstance(value, Native):
                natives[id(function)] = function, value
    terms = import_module("egraph.rewrite.terms")
    for name, value in TERMS.items():
        if isinstance(value, Native):
            function = getattr(terms, name)
            natives[id(function)] = function, value
    for home_name, names in (("builtins", BUILTINS),):
        home = import_module(home_name)
        natives |= {id(getattr(home, name)): (getattr(home, name), value) for name, value in names.items()}
    return natives


def value_of(value: Any, name: str, path: str) -> Value:
    """Return a Python value as one of the language; raise ``RuleError`` if the language has none, as for values that can change."""
    match value:
        case None | bool() | int() | float() | str() | Refusal() | Closure() | Native():
            return value
        case tuple():
            return tuple(value_of(each, name, path) for each in value)
    native = _natives().get(id(value))
    if native is not None:
        return native[1]
    if isinstance(value, FunctionType):
        if value.__module__ == "egraph.rule_operators":
            return OPERATORS[value.__name__]
        return closure_of(value)
    if isinstance(value, ModuleType) and value.__name__ in MODULES:
        return Namespace(value.__name__, MODULES[value.__name__])
    description = f"{name} is a {type(value).__name__}"
    why = "a rule reads what never changes: numbers, texts, tuples of these, and functions"
    raise RuleError(f"{description}: {why}", where=path, fix="write a tuple, or make the value in the rule's function")


# What a law says


def digest(law: Law, blank: str | None = None) -> str:
    """Return a hash that is equal for equal laws, and for laws that differ only in a text that is ``blank`` for each of them."""
    hashed = hashlib.sha256()
    for name, value in law.parts():
        hashed.update(f"{name} {'blank' if blank is not None and value == blank else _said(value)}\n".encode())
    return hashed.hexdigest()


def _said(value: object) -> str:
    match value:
        case Closure():
            return repr(replace(value.syntax, text="", makers=()))
        case Native(name):
            return f"the language's {name}"
    return f"{type(value).__name__} {value!r}"


def texts(law: Law) -> Iterator[str]:
    """Yield every text that a law mentions; operators are named by texts."""
    for _, value in law.parts():
        if isinstance(value, Closure):
            yield from (each.value for each in pieces(value.syntax) if isinstance(each, syntax.Literal) and isinstance(each.value, str))
        elif isinstance(value, str):
            yield value
        elif isinstance(value, tuple):
            yield from (each for each in value if isinstance(each, str))


def natives(law: Law) -> frozenset[str]:
    """Return the names of the language's own functions that a law uses."""
    return frozenset(value.name for _, value in law.parts() if isinstance(value, Native))


@lru_cache(maxsize=1 << 10)
def fields_of(law: Law) -> frozenset[str]:
    """Return every name that a law reads after a dot."""
    functions = (value.syntax for _, value in law.parts() if isinstance(value, Closure))
    return frozenset(each.name for function in functions for each in pieces(function) if isinstance(each, syntax.Field))
