"""Integers known only by name, for sizes, pads and strides. A rule computes with them, and comparisons are decided or fork the path."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

from egraph.tensor.expr.index import Floor, Index, Modulo, Size, index
from egraph.tensor.expr.scope import Compare
from egraph.tensor.ops.sizes import Reasoned
from verify.paths import Path

ONE = index(1)
LARGEST, DEEPEST = 1000, 6
"""Most atoms of a computed size, and most nested divisions. Loops that reuse their results may double these numbers in each round."""


class NotWhole:
    """A number of a proof that need not be an integer."""


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
        return NotImplemented if right is None else self._made(_bounded(self.path, self.settled() * self.path.canonical(right)))

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return NotImplemented if _value(other) is None else _divided(self.path, self, other, remainder=False)

    def __rfloordiv__(self, other: Any) -> Any:
        return NotImplemented if _value(other) is None else _divided(self.path, other, self, remainder=False)

    def __mod__(self, other: Any) -> Any:
        return NotImplemented if _value(other) is None else _divided(self.path, self, other, remainder=True)

    def __rmod__(self, other: Any) -> Any:
        return NotImplemented if _value(other) is None else _divided(self.path, other, self, remainder=True)

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    # Questions

    def _asked(self, left: Any, operator: Any, right: Any) -> Any:
        a, b = _value(left), _value(right)
        if a is None or b is None:
            if isinstance(left if a is None else right, float | Fraction | complex | NotWhole):
                raise self.path.leaving("a size that is compared with a number that need not be whole")  # 4 == 4.0 in plain Python
            return NotImplemented
        return self.path.ask(Compare(a, operator, b))

    def __eq__(self, other: object) -> Any:
        return self is other or self._asked(self, "==", other)

    def __ne__(self, other: object) -> Any:
        return self is not other and self._asked(self, "!=", other)

    def __hash__(self) -> int:
        raise self.path.leaving("a size that is looked up in a set or dictionary")  # these compare hashes first

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

    # Demands of shape rules

    def must_equal(self, other: Any) -> bool:
        right = _value(other)
        return right is not None and self.path.demand(Compare(self.value, "==", right))

    def must_reach(self, minimum: int) -> bool:
        return self.path.demand(Compare(index(minimum), "<=", self.value))

    def divided(self, total: Any, divisor: Any, *, signed: bool = False) -> Any | None:
        quotient = self.path.exact_quotient(index_of(total), index_of(divisor), signed=signed)
        return None if quotient is None else integer(self.path, quotient)

    def widened(self, other: Any) -> Any | None:
        return integer(self.path, self.path.broadcast(self.value, index_of(other)))


def integer(path: Path, value: Size) -> Any:
    """Return a plain integer if the path determines the value, else a symbolic one."""
    settled = path.canonical(value)
    constant = settled.constant
    return SymbolicInteger(path, settled) if constant is None else constant


def opaque(name: str, definition: Callable[..., Any], *arguments: Any, minimum: int = 0) -> Any:
    """Return ``definition(*arguments)``, at least ``minimum``; on a path that leaves functions opaque, an unknown with this bound."""
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


def _divided(path: Path, left: Any, right: Any, *, remainder: bool) -> Any:
    divisor = index_of(right)
    if divisor.constant == 0 or (divisor.constant is None and path.ask(Compare(divisor, "==", index(0)))):
        raise ZeroDivisionError("integer division or modulo by zero")
    numerator, divisor = path.canonical(index_of(left)), path.canonical(divisor)
    if path.ask(Compare(divisor, "<", index(0))):
        numerator, divisor = -path.canonical(numerator), -path.canonical(divisor)
        return -_quotient(path, numerator, divisor, remainder) if remainder else _quotient(path, numerator, divisor, remainder)
    return _quotient(path, path.canonical(numerator), path.canonical(divisor), remainder)


def _quotient(path: Path, numerator: Index, divisor: Index, remainder: bool) -> Any:
    return integer(path, _bounded(path, (path.modulo if remainder else path.floor)(numerator, divisor)))


def _bounded(path: Path, value: Index) -> Index:
    """Return a value if its form is small enough; otherwise leave the path uncovered."""
    atoms, depth = _extent(value)
    if atoms > LARGEST or depth > DEEPEST:
        raise path.leaving(f"a size that is computed of more than {LARGEST} sizes, or by more than {DEEPEST} divisions in turn")
    return value


@lru_cache(maxsize=1 << 14)
def _extent(value: Index) -> tuple[int, int]:
    """Return the number of atoms in a value, including those inside divisions, and the nesting depth of the divisions."""
    atoms, depth = sum(len(monomial) for monomial, _ in value.terms), 0
    for division in (atom for monomial, _ in value.terms for atom in monomial if isinstance(atom, Floor | Modulo)):
        for inner, below in map(_extent, (division.numerator, division.divisor)):
            atoms, depth = atoms + inner, max(depth, below + 1)
    return atoms, depth
