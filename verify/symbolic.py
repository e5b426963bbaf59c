"""Numbers that are known only as names: a rule computes with them as with plain ones, and comparisons decide or fork.

``SymbolicInteger`` stands for sizes, pads, strides; ``SymbolicReal`` for float attributes and constants of one number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from egraph.tensor.expr.index import Index, Size, index
from egraph.tensor.expr.scope import Compare, IndexNumber, Number, Scalar
from egraph.tensor.expr.scope import apply as call
from egraph.tensor.ops.sizes import Reasoned
from verify.paths import Path

ONE = index(1)


class SymbolicInteger(Reasoned):
    """An integer under the assumptions of a path."""

    __slots__ = ("path", "value")

    def __init__(self, path: Path, value: Index) -> None:
        self.path, self.value = path, value

    def settled(self) -> Index:
        """Return the value in solved form."""
        return self.path.canonical(self.value)

    @property
    def constant(self) -> int | None:
        return self.settled().constant

    def _made(self, value: Index) -> Any:
        return integer(self.path, value)

    # Arithmetic

    def __add__(self, other: Any) -> Any:
        right = _value(other)
        return NotImplemented if right is None else self._made(self.settled() + right)

    __radd__ = __add__

    def __neg__(self) -> Any:
        return self._made(-self.settled())

    def __sub__(self, other: Any) -> Any:
        right = _value(other)
        return NotImplemented if right is None else self._made(self.settled() - right)

    def __rsub__(self, other: Any) -> Any:
        left = _value(other)
        return NotImplemented if left is None else self._made(left - self.settled())

    def __mul__(self, other: Any) -> Any:
        right = _value(other)
        return NotImplemented if right is None else self._made(self.settled() * self.path.canonical(right))

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return NotImplemented if _value(other) is None else _divided(self.path, self, other, rest=False)

    def __rfloordiv__(self, other: Any) -> Any:
        return NotImplemented if _value(other) is None else _divided(self.path, other, self, rest=False)

    def __mod__(self, other: Any) -> Any:
        return NotImplemented if _value(other) is None else _divided(self.path, self, other, rest=True)

    def __rmod__(self, other: Any) -> Any:
        return NotImplemented if _value(other) is None else _divided(self.path, other, self, rest=True)

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    def __pow__(self, exponent: int) -> Any:
        return math.prod([self] * exponent)

    # Questions

    def _asked(self, left: Any, operator: Any, right: Any) -> Any:
        a, b = _value(left), _value(right)
        if a is None or b is None:
            if isinstance(left if a is None else right, float | Fraction | complex | SymbolicReal):
                raise self.path.leaving("a size that is compared with a number that need not be whole")  # 4 == 4.0 in plain Python
            return NotImplemented
        return self.path.ask(Compare(a, operator, b))

    def __eq__(self, other: object) -> Any:
        return self is other or self._asked(self, "==", other)

    def __ne__(self, other: object) -> Any:
        return self is not other and self._asked(self, "!=", other)

    def __hash__(self) -> int:
        raise self.path.leaving("a size that is looked up in a set or dictionary")  # these look for equal hashes first

    def __lt__(self, other: Any) -> Any:
        return self._asked(self, "<", other)

    def __le__(self, other: Any) -> Any:
        return self._asked(self, "<=", other)

    def __gt__(self, other: Any) -> Any:
        return self._asked(other, "<", self)

    def __ge__(self, other: Any) -> Any:
        return self._asked(other, "<=", self)

    def __bool__(self) -> bool:
        return self.path.ask(Compare(self.value, "!=", index(0)))

    def __index__(self) -> int:
        return self.path.whole(self.value)

    __int__ = __index__

    def __repr__(self) -> str:
        return str(self.settled())

    __str__ = __repr__

    def __format__(self, _: str) -> str:
        return repr(self)

    # What shape rules demand

    def must_equal(self, other: Any) -> bool:
        right = _value(other)
        return right is not None and self.path.demand(Compare(self.value, "==", right))

    def must_reach(self, minimum: int) -> bool:
        return self.path.demand(Compare(index(minimum), "<=", self.value))

    def divided(self, total: Any, divisor: Any) -> Any | None:
        quotient = self.path.exact_quotient(index_of(total), index_of(divisor))
        return None if quotient is None else integer(self.path, quotient)

    def widened(self, other: Any) -> Any | None:
        return integer(self.path, self.path.broadcast(self.value, index_of(other)))

    def is_negative(self) -> bool:
        return bool(self < 0)


def integer(path: Path, value: Size) -> Any:
    """Return a plain integer where the path knows the value, else a symbolic one."""
    settled = path.canonical(value)
    known = settled.constant
    return SymbolicInteger(path, settled) if known is None else known


def opaque(name: str, definition: Callable[..., Any], *arguments: Any, minimum: int = 0) -> Any:
    """Return ``definition(*arguments)``, at least ``minimum``; on a path that leaves functions opaque an unknown instead."""
    path = next((each.path for each in arguments if isinstance(each, SymbolicInteger)), None)
    if path is None or not path.opaque:
        return definition(*arguments)
    return integer(path, path.value_of(name, tuple(map(index_of, arguments)), minimum))


def _value(value: Any) -> Index | None:
    if isinstance(value, SymbolicInteger):
        return value.value
    return index(value) if isinstance(value, int | Index) else None


def index_of(value: Any) -> Index:
    """Return an integer, plain or symbolic, as an index."""
    return value.settled() if isinstance(value, SymbolicInteger) else index(value)


def _divided(path: Path, left: Any, right: Any, *, rest: bool) -> Any:
    divisor = index_of(right)
    if divisor.constant == 0 or (divisor.constant is None and path.ask(Compare(divisor, "==", index(0)))):
        raise ZeroDivisionError("integer division or modulo by zero")
    numerator, divisor = path.canonical(index_of(left)), path.canonical(divisor)
    if path.ask(Compare(divisor, "<", index(0))):
        numerator, divisor = -path.canonical(numerator), -path.canonical(divisor)
        return -integer(path, path.modulo(numerator, divisor)) if rest else integer(path, path.floor(numerator, divisor))
    numerator, divisor = path.canonical(numerator), path.canonical(divisor)
    return integer(path, (path.modulo if rest else path.floor)(numerator, divisor))


class SymbolicReal:
    """A finite real number under the assumptions of a path: a quotient of polynomials in named numbers."""

    __slots__ = ("below", "path", "value")

    def __init__(self, path: Path, value: Index, below: Index = ONE) -> None:
        self.path, self.value, self.below = path, path.canonical(value), path.canonical(below)

    def __add__(self, other: Any) -> Any:
        return self._combined(other, lambda a, b, c, d: (a * d + c * b, b * d))

    __radd__ = __add__

    def __neg__(self) -> Any:
        return SymbolicReal(self.path, -self.value, self.below)

    def __sub__(self, other: Any) -> Any:
        return self._combined(other, lambda a, b, c, d: (a * d - c * b, b * d))

    def __rsub__(self, other: Any) -> Any:
        return (-self) + other

    def __mul__(self, other: Any) -> Any:
        return self._combined(other, lambda a, b, c, d: (a * c, b * d))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return self._combined(other, lambda a, b, c, d: (a * d, _nonzero(self.path, b * c)))

    def __rtruediv__(self, other: Any) -> Any:
        return self._combined(other, lambda a, b, c, d: (c * b, _nonzero(self.path, d * a)))

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    def __pow__(self, exponent: int) -> Any:
        return math.prod([self] * exponent)

    def _combined(self, other: Any, rule: Any) -> Any:
        parts = _parts(other)
        if parts is None:
            return NotImplemented
        return SymbolicReal(self.path, *rule(self.value, self.below, *parts))

    def _asked(self, operator: Any, other: Any) -> Any:
        """Ask self OPERATOR other, for one of < <= == != and their mirror images."""
        if isinstance(other, float) and math.isinf(other):
            return {"<": other > 0, "<=": other > 0, ">": other < 0, ">=": other < 0, "==": False, "!=": True}[operator]
        if isinstance(other, float) and math.isnan(other):
            return operator == "!="
        parts = _parts(other)
        if parts is None:
            return NotImplemented
        above, below = self.path.canonical(self.value), self.path.canonical(self.below)
        difference, scale = above * parts[1] - parts[0] * below, below * parts[1]
        if operator not in ("==", "!=") and self.path.ask(Compare(scale, "<", index(0))):
            difference = -difference
        zero = index(0)
        match operator:
            case "<" | "<=" | "==" | "!=":
                return self.path.ask(Compare(difference, operator, zero))
            case ">":
                return self.path.ask(Compare(zero, "<", difference))
            case _:
                return self.path.ask(Compare(zero, "<=", difference))

    def __eq__(self, other: object) -> Any:
        return self is other or self._asked("==", other)

    def __ne__(self, other: object) -> Any:
        return self is not other and self._asked("!=", other)

    def __hash__(self) -> int:
        raise self.path.leaving("a number that is looked up in a set or dictionary")

    def __lt__(self, other: Any) -> Any:
        return self._asked("<", other)

    def __le__(self, other: Any) -> Any:
        return self._asked("<=", other)

    def __gt__(self, other: Any) -> Any:
        return self._asked(">", other)

    def __ge__(self, other: Any) -> Any:
        return self._asked(">=", other)

    def __bool__(self) -> bool:
        return self.path.ask(Compare(self.value, "!=", index(0)))

    def __repr__(self) -> str:
        return str(self.value) if self.below.constant == 1 else f"({self.value})/({self.below})"

    __str__ = __repr__

    def __format__(self, _: str) -> str:
        return repr(self)

    def differs_from(self, wanted: Any) -> bool:
        """Return whether this is not the wanted number; numbers that merely may be it count as others.

        A rule that needs one number asks for it and is run again with that number.
        """
        parts = _parts(wanted)
        if parts is None:
            return True
        difference = self.path.canonical(self.value * parts[1] - parts[0] * self.below)
        return self.path.bounds.zero(difference) is not True

    def scalar(self) -> Scalar:
        """Return the number as the meaning of operators uses it."""
        above, below = self.path.canonical(self.value), self.path.canonical(self.below)
        if above.constant is not None and below.constant:
            return Number(Fraction(above.constant, below.constant))
        return _scalar(above) if below.constant == 1 else call("div", _scalar(above), _scalar(below))


def _scalar(value: Index) -> Scalar:
    return Number(Fraction(value.constant)) if value.constant is not None else IndexNumber(value)


def _nonzero(path: Path, value: Index) -> Index:
    if path.ask(Compare(value, "==", index(0))):
        raise ZeroDivisionError("division by zero")
    return value


def _parts(value: Any) -> tuple[Index, Index] | None:
    """Return a number as a quotient of two polynomials."""
    if isinstance(value, SymbolicReal):
        return value.value, value.below
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction) or not math.isfinite(value):
        return None
    exact = Fraction(value)
    return index(exact.numerator), index(exact.denominator)
