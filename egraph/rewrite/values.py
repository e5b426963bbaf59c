"""The values that the rule language computes with, and the interface of an interpretation of its numbers.

Integers are Python's: unbounded. Numbers are IEEE doubles, with infinities and NaN. All other values consist of these, of texts that
are compared and never split, and of tensors. In a proof, integers and numbers may be unknowns: its interpretation states what is known
of them, and the evaluator is the same.
"""

from __future__ import annotations

import math
import operator as python
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import GeneratorType
from typing import Any, Literal, Protocol, TypeAlias

from egraph.errors import RuleError
from egraph.rewrite import syntax
from egraph.rewrite.refusals import Mismatch
from egraph.rewrite.terms import Attributes, BoundType, Equation, Tensor
from egraph.tensor import TensorType

Value: TypeAlias = Any
Kind: TypeAlias = Literal[
    "none", "truth", "integer", "number", "text", "reason", "tuple", "list", "range", "set", "table", "stream", "tensor", "equation",
    "attributes", "type", "function", "module", "other",
]  # fmt: skip


@dataclass(frozen=True)
class Reason:
    """Text built from values: the reason of a refusal, which decides nothing."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, eq=False)
class Distinct:
    """A set: distinct values, in an order that rules cannot observe."""

    values: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class TableValue:
    """Values by key."""

    entries: tuple[tuple[Value, Value], ...]


@dataclass(frozen=True, eq=False)
class Namespace:
    """An imported module, restricted to the names that belong to the language."""

    name: str
    members: Mapping[str, Value]


@dataclass(frozen=True, eq=False)
class Native:
    """A function that the language provides; ``evaluating``: whether its first argument is the evaluator."""

    name: str
    function: Callable[..., Value]
    evaluating: bool = False
    refuses: bool = False
    """Whether its only effect is to refuse the match if its first argument is false."""
    every: bool | None = None
    """True for ``all``, which is true if every element is; False for ``any``, which is false if every element is; None otherwise."""


@dataclass(frozen=True, eq=False)
class Refusal:
    """The value of a name in a rule file whose definition is not part of the language."""

    error: RuleError
    name: str = ""


class Names(Protocol):
    """The scope in which a function finds the names that it does not bind."""

    def find(self, name: str) -> Value:
        """Return a value; raise ``KeyError`` if there is none."""


@dataclass(eq=False)
class Closure:
    """A function of the language with its enclosing scope.

    A function that makes rules may set ``name`` and ``text``.
    """

    syntax: syntax.Function
    around: Names
    path: str
    defaults: Mapping[str, Value] = field(default_factory=dict)
    name: str = ""
    text: str = ""


class Interpretation(Protocol):
    """An interpretation of integers and numbers."""

    def kind(self, value: Value) -> Kind:
        """Return the kind of a value."""

    def arithmetic(self, operator: syntax.ArithmeticOperator, left: Value, right: Value) -> Value:
        """Return the result of an operator on integers and numbers."""

    def compare(self, operator: syntax.Comparison, left: Value, right: Value, required: bool | None = None) -> bool:
        """Return whether a comparison of two integers, two numbers, or one of each holds.

        ``required``: the answer without which the match is refused, so that nothing needs to be known about the other case.
        """

    def negative(self, value: Value) -> Value:
        """Return -value."""

    def truth(self, value: Value, required: bool | None = None) -> bool:
        """Return whether an integer or a number is not zero; ``required`` as for ``compare``."""

    def whole(self, value: Value) -> int:
        """Return a value that counts something as a plain integer."""

    def number(self, name: str, function: Callable[..., float], values: tuple[Value, ...]) -> Value:
        """Return the value of a function of numbers."""


KINDS: Mapping[type, Kind] = {
    type(None): "none", bool: "truth", int: "integer", float: "number", str: "text", Reason: "reason", tuple: "tuple", list: "list",
    range: "range", Distinct: "set", TableValue: "table", TensorType: "type", Closure: "function", Native: "function",
    Namespace: "module", GeneratorType: "stream", enumerate: "stream", zip: "stream", map: "stream", reversed: "stream",
}  # fmt: skip

_COMPARISONS: Mapping[str, Callable[[Value, Value], bool]] = {
    "==": python.eq, "!=": python.ne, "<": python.lt, "<=": python.le, ">": python.gt, ">=": python.ge,
}  # fmt: skip
_ARITHMETIC: Mapping[str, Callable[[Value, Value], Value]] = {
    "+": python.add, "-": python.sub, "*": python.mul, "/": python.truediv, "//": python.floordiv, "%": python.mod, "**": python.pow,
}  # fmt: skip
LARGEST_POWER = 64
"""The largest exponent. Exponents are whole numbers from the rule's text; larger powers are not sizes."""
MOST_BITS = 4096
"""The most bits of an integer; larger products are not sizes and take long to compute."""
SMALLEST = 2.0**-1022
"""The smallest normal double; a computed number nearer to zero has lost digits."""


class Plain:
    """Python's integers, and doubles: the interpretation at a match."""

    def kind(self, value: Value) -> Kind:
        kind = KINDS.get(type(value))
        if kind is None:
            kind = kind_of_object(value)
        return kind

    def arithmetic(self, operator: syntax.ArithmeticOperator, left: Value, right: Value) -> Value:
        result = _ARITHMETIC[operator](left, right)
        if type(result) is float:
            check_finite(operator, left, right, result)
        elif result.bit_length() > MOST_BITS:
            raise Mismatch("an integer grows beyond all sizes")
        return result

    def compare(self, operator: syntax.Comparison, left: Value, right: Value, required: bool | None = None) -> bool:
        return _COMPARISONS[operator](left, right)

    def negative(self, value: Value) -> Value:
        return -value

    def truth(self, value: Value, required: bool | None = None) -> bool:
        return bool(value != 0)

    def whole(self, value: Value) -> int:
        return int(value)

    def number(self, name: str, function: Callable[..., float], values: tuple[Value, ...]) -> Value:
        return function(*values)


PLAIN = Plain()


def changeable(value: Value) -> bool:
    """Return whether a value, or one inside it, can change: a list, or an iterator."""
    match value:
        case tuple():
            return any(map(changeable, value))
        case TableValue(entries):
            return any(changeable(each) for entry in entries for each in entry)
        case Distinct(values):
            return any(map(changeable, values))
    return isinstance(value, list | Iterator)


def check_finite(operator: str, left: float, right: float, result: float) -> None:
    """Refuse a match if finite numbers give a result that no double holds, because the result is then far from what the proof says."""
    if not (math.isfinite(left) and math.isfinite(right)):
        return
    vanished = abs(result) < SMALLEST and operator in ("*", "/") and left != 0
    if not math.isfinite(result) or (vanished and not (operator == "*" and right == 0)):
        raise Mismatch(f"{left} {operator} {right} is no number that a double can hold")


def kind_of_object(value: Value) -> Kind:
    """Return the kind of a value whose class may have subclasses."""
    if isinstance(value, Refusal):
        raise value.error
    known = type(value)
    if known not in _CLASSES:
        _CLASSES[known] = _kind_of_class(known)
    return _CLASSES[known] or ("function" if callable(value) else "other")


_CLASSES: dict[type, Kind | None] = {}
"""The kind of all values of a class, cached; None if the class does not decide it."""


def _kind_of_class(kind: type) -> Kind | None:
    if issubclass(kind, Tensor):
        return "tensor"
    if issubclass(kind, Attributes):
        return "attributes"
    if issubclass(kind, BoundType):
        return "type"
    if issubclass(kind, Equation):
        return "equation"
    return "stream" if issubclass(kind, Iterator) else None
