"""Numbers that are known only by name: float attributes and constants of one number, which are doubles.

Results computed from them are rounded, so only conclusions that rounding cannot change are drawn. The evaluator of the rule language
uses ``OnPath``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, TypeAlias

from egraph.rewrite.syntax import ArithmeticOperator, Comparison
from egraph.rewrite.terms import differs
from egraph.rewrite.values import KINDS, PLAIN, Kind
from egraph.tensor.expr.index import Index, index
from egraph.tensor.expr.scope import Compare, IndexNumber, Number, Scalar
from egraph.tensor.expr.scope import apply as call
from verify.paths import Path
from verify.symbolic import ONE, NotWhole, SymbolicInteger, index_of

Relation: TypeAlias = Literal["<", "<=", "==", "!="]
"""The comparisons of indices."""
Key: TypeAlias = "str | float | tuple[Key, ...]"
"""The computation of a number; equal computations give equal doubles."""
FINITE, SPECIAL = "finite", {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
KINDS_OF_NUMBERS, KINDS_OF_ATTRIBUTES = (FINITE, "inf", "-inf", "nan"), (FINITE, "inf", "-inf")
MOST_ROUNDINGS = 8
"""Most successive operations whose rounding errors are bounded together; a result of more operations may be any number."""


class SymbolicNumber(NotWhole):
    """A finite double of a path.

    ``value / below`` is a quotient of polynomials in named numbers. A name or a literal equals it exactly (``roundings`` 0). A computed
    number differs from it by at most ``roundings`` relative errors of 2^-53, and has its sign.
    """

    __slots__ = ("below", "key", "path", "roundings", "value")

    def __init__(self, path: Path, value: Index, below: Index = ONE, roundings: int = 0, key: Key = "") -> None:
        self.path, self.value, self.below = path, path.canonical(value), path.canonical(below)
        self.roundings, self.key = roundings, key or str(value)

    @property
    def ideal(self) -> tuple[Index, Index]:
        return self.path.canonical(self.value), self.path.canonical(self.below)

    def __repr__(self) -> str:
        return str(self.value) if self.below.constant == 1 else f"({self.value})/({self.below})"

    __str__ = __repr__

    def __format__(self, _: str) -> str:
        return repr(self)

    def __lt__(self, other: Any) -> bool:
        return OnPath(self.path).compare("<", self, other)

    def __le__(self, other: Any) -> bool:
        return OnPath(self.path).compare("<=", self, other)

    def __gt__(self, other: Any) -> bool:
        return OnPath(self.path).compare(">", self, other)

    def __ge__(self, other: Any) -> bool:
        return OnPath(self.path).compare(">=", self, other)

    __hash__ = None  # type: ignore[assignment]  # never looked up

    def __eq__(self, other: object) -> bool:
        raise TypeError("numbers of a proof are compared by the evaluator")

    def differs_from(self, target: Any) -> bool:
        """Return whether this is not certainly the wanted number.

        A rule that needs one number asks for it and is run again with that number.
        """
        target = _settled(target)
        if not _finite(target):
            return True
        (above, below), (target_above, target_below) = self.ideal, _ideal(target)
        return self.path.bounds.zero(self.path.canonical(above * target_below - target_above * below)) is not True

    def scalar(self) -> Scalar:
        """Return the number as a scalar for the meanings of operators."""
        above, below = self.ideal
        if above.constant is not None and below.constant:
            return Number(Fraction(above.constant, below.constant))
        return _scalar(above) if below.constant == 1 else call("div", _scalar(above), _scalar(below))


@dataclass(frozen=True, eq=False)
class Unsettled(NotWhole):
    """A float attribute that may be infinite. Whether it is becomes a choice only when it matters. No attribute is NaN."""

    path: Path
    label: str

    def settled(self) -> SymbolicNumber | float:
        """Return the number after choosing its kind."""
        kind = self.path.choose(kind_of(self.label), KINDS_OF_ATTRIBUTES)
        return SPECIAL[kind] if kind != FINITE else SymbolicNumber(self.path, self.path.real(self.label))

    @property
    def is_settled(self) -> bool:
        return kind_of(self.label) in self.path.choices

    def __format__(self, _: str) -> str:
        return self.label

    def differs_from(self, target: Any) -> bool:
        value = self.settled()
        return value.differs_from(target) if isinstance(value, SymbolicNumber) else differs(value, target)


def kind_of(label: str) -> str:
    """Return the name of the choice whether a number is finite, infinite or, for constants, NaN."""
    return f"kind of {label}"


def _finite(value: Any) -> bool:
    return isinstance(value, SymbolicNumber) or (isinstance(value, int | float) and math.isfinite(value))


def _ideal(value: Any) -> tuple[Index, Index]:
    """Return a finite number as a quotient of two polynomials."""
    if isinstance(value, SymbolicNumber):
        return value.ideal
    exact = Fraction(value)
    return index(exact.numerator), index(exact.denominator)


def _roundings(value: Any) -> int:
    return value.roundings if isinstance(value, SymbolicNumber) else 0


def _key(value: Any) -> Key:
    return value.key if isinstance(value, SymbolicNumber) else float(value)


def _scalar(value: Index) -> Scalar:
    return Number(Fraction(value.constant)) if value.constant is not None else IndexNumber(value)


class OnPath:
    """Integers and numbers on a path of a proof: unknowns that the path's decisions constrain."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def kind(self, value: Any) -> Kind:
        kind = KINDS.get(type(value))
        if kind is not None:
            return kind
        if isinstance(value, SymbolicInteger):
            return "integer"
        return "number" if isinstance(value, SymbolicNumber | Unsettled) else PLAIN.kind(value)

    def whole(self, value: Any) -> int:
        if not isinstance(value, SymbolicInteger | int):
            raise TypeError(f"{value} counts nothing")
        return int(value)

    def truth(self, value: Any, required: bool | None = None) -> bool:
        return self.compare("!=", value, 0, required)

    def negative(self, value: Any) -> Any:
        settled = _settled(value)
        if not isinstance(settled, SymbolicNumber):
            return -settled
        return SymbolicNumber(self.path, -settled.value, settled.below, settled.roundings, ("-", settled.key))

    def number(self, name: str, function: Callable[..., float], values: tuple[Any, ...]) -> Any:
        given = tuple(map(_settled, values))
        if all(isinstance(each, int | float) for each in given):
            return PLAIN.number(name, function, given)
        if name in ("sqrt", "log") and self.compare("<" if name == "sqrt" else "<=", given[0], 0):
            raise ValueError("math domain error")
        return self._any(name, *given)

    def arithmetic(self, operator: ArithmeticOperator, left: Any, right: Any) -> Any:
        left, right = _settled(left), _settled(right)
        if isinstance(left, int | float) and isinstance(right, int | float):
            return PLAIN.arithmetic(operator, left, right)
        if any(isinstance(each, SymbolicInteger) for each in (left, right)):
            return self._of_integers(operator, left, right)
        if operator == "/" and self.compare("==", right, 0):
            raise ZeroDivisionError("division by zero")
        if not (_finite(left) and _finite(right)):
            return self._with_special(operator, left, right)
        return self._rounded(operator, left, right)

    def _of_integers(self, operator: ArithmeticOperator, left: Any, right: Any) -> Any:
        if isinstance(left, float | SymbolicNumber) or isinstance(right, float | SymbolicNumber) or operator == "/":
            raise self.path.leaving("a size that is computed with as a number that need not be whole")
        match operator:
            case "+":
                return left + right
            case "-":
                return left - right
            case "*":
                return left * right
            case "//":
                return left // right
            case "%":
                return left % right
            case "**" if isinstance(right, int) and right >= 0:
                return math.prod([left] * right)
        raise self.path.leaving(f"{operator} of sizes")

    def _with_special(self, operator: ArithmeticOperator, left: Any, right: Any) -> float:
        """Return the result for an infinity or NaN and a finite number; it depends only on the sign of the finite one."""
        signed = [float(_sign(self, each)) if isinstance(each, SymbolicNumber) else float(each) for each in (left, right)]
        result = PLAIN.arithmetic(operator, *signed)
        if operator in ("//", "%", "**"):
            raise self.path.leaving(f"{operator} of an infinite number")
        return float(result)

    def _rounded(self, operator: ArithmeticOperator, left: Any, right: Any) -> Any:
        (a, b), (c, d) = _ideal(left), _ideal(right)
        errors, key = _roundings(left) + _roundings(right), (operator, _key(left), _key(right))
        match operator:
            case "+" | "-" if c.constant == 0:
                return left
            case "+" if a.constant == 0:
                return right
            case "+" | "-" if errors == 0:
                return SymbolicNumber(self.path, a * d + c * b if operator == "+" else a * d - c * b, b * d, 1, key)
            case "*" if errors < MOST_ROUNDINGS:
                return SymbolicNumber(self.path, a * c, b * d, errors + (not _keeps(left, right)), key)
            case "/" if errors < MOST_ROUNDINGS:
                return SymbolicNumber(self.path, a * d, b * c, errors + 1, key)
        return self._any(operator, left, right)

    def _any(self, name: str, *values: Any) -> SymbolicNumber:
        """Return an unknown number for a result: the same one for the same computation."""
        return SymbolicNumber(self.path, self.path.computed((name, *map(_key, values))))

    def compare(self, operator: Comparison, left: Any, right: Any, required: bool | None = None) -> bool:
        left, right = _settled(left), _settled(right)
        if isinstance(left, int | float) and isinstance(right, int | float):
            return PLAIN.compare(operator, left, right)
        if any(isinstance(each, SymbolicInteger) for each in (left, right)):
            return _compared_integers(self.path, operator, left, right, required)
        left, relation, right = _ascending(operator, left, right)
        if not (_finite(left) and _finite(right)):
            first, second = (0.0 if isinstance(each, SymbolicNumber) else each for each in (left, right))
            return PLAIN.compare(relation, first, second)
        (a, b), (c, d) = _ideal(left), _ideal(right)
        errors, zero = (_roundings(left), _roundings(right)), index(0)
        if errors != (0, 0) and not (a.constant == 0 or c.constant == 0):
            return self._compared_rounded(relation, left, right)
        difference, scale = c * b - a * d, b * d
        if relation not in ("==", "!=") and self.path.ask(Compare(scale, "<", zero)):
            difference = -difference
        return self.path.ask(Compare(zero, relation, difference), required)

    def _compared_rounded(self, operator: Relation, left: Any, right: Any) -> bool:
        """Compare rounded numbers; either outcome is possible. If only one was rounded, once, ``<`` also holds for the exact numbers."""
        if operator in ("==", "!="):
            return self.path.either(("==", *sorted(map(str, (_key(left), _key(right)))))) == (operator == "==")
        if operator == "<=":
            return not self.compare("<", right, left)
        less = self.path.either(("<", _key(left), _key(right)))
        if less and sorted((_roundings(left), _roundings(right))) == [0, 1]:
            (a, b), (c, d) = _ideal(left), _ideal(right)
            difference, scale, zero = c * b - a * d, b * d, index(0)
            if self.path.ask(Compare(scale, "<", zero)):
                difference = -difference
            self.path.assume(Compare(zero, "<", difference))
        return less


def _keeps(*factors: Any) -> bool:
    """Return whether a product by one of the factors is exact."""
    return any(isinstance(each, int | float) and each in (0, 1, -1) for each in factors)


def _settled(value: Any) -> Any:
    return value.settled() if isinstance(value, Unsettled) else value


def _sign(numbers: OnPath, value: SymbolicNumber) -> int:
    if numbers.compare("==", value, 0):
        return 0
    return -1 if numbers.compare("<", value, 0) else 1


def _ascending(operator: Comparison, left: Any, right: Any) -> tuple[Any, Relation, Any]:
    """Return a comparison in the form that indices have, with ``<`` instead of ``>``."""
    match operator:
        case ">":
            return right, "<", left
        case ">=":
            return right, "<=", left
        case "<" | "<=" | "==" | "!=":
            return left, operator, right
    raise TypeError(f"{operator} compares no numbers")


def _compared_integers(path: Path, operator: Comparison, left: Any, right: Any, required: bool | None) -> bool:
    if required is not None and all(isinstance(each, SymbolicInteger | int) for each in (left, right)):
        left, relation, right = _ascending(operator, left, right)
        return path.ask(Compare(index_of(left), relation, index_of(right)), required)
    match operator:
        case "==":
            return bool(left == right)
        case "!=":
            return bool(left != right)
        case "<":
            return bool(left < right)
        case "<=":
            return bool(left <= right)
        case ">":
            return bool(left > right)
    return bool(left >= right)


@dataclass(frozen=True)
class Quotient:
    """A number that a rule has computed from named ones, in a form that means the same on another path."""

    above: Index
    below: Index
    roundings: int
    key: Any


@dataclass(frozen=True)
class Ideal:
    """A number as a quotient of polynomials in named ones."""

    above: Index
    below: Index


def snapshot(value: Any) -> Any:
    """Return the current value of an attribute or a number on its path."""
    match value:
        case tuple():
            return tuple(map(snapshot, value))
        case SymbolicInteger():
            return value.settled()
        case Unsettled():
            return snapshot(value.settled()) if value.is_settled else Ideal(value.path.real(value.label), index(1))
        case SymbolicNumber():
            return Ideal(*value.ideal)
    return value
