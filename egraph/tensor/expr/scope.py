"""Tensor-algebra expressions: scopes of iterators over a scalar body.

    {n, h, w, f}  sum(c, r, s)  A[n, c, h+r-1, w+s-1] * K[f, c, r, s]   if 0 <= h+r-1 < H and ...

A ``Scope`` is a tensor: its traversal iterators are the output's dimensions (from 0), its summation iterators
are reduced. A body reads tensors or inner scopes (instantiated intermediates). A read must lie inside its
tensor wherever its guards hold: padding is a guard, never an implicit zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Literal, TypeAlias

from egraph.tensor.expr.index import Index, Iterator, Size, format_index, hashed_once, index


class Reduction(StrEnum):
    """A reduction of a body's values: by an associative and commutative function of two, with an identity."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"
    PROD = "prod"

    @property
    def combine(self) -> str:
        """The name in ``functions.FUNCTIONS`` of the scalar function that combines two values."""
        return {"sum": "add", "prod": "mul"}.get(self, self)

    @property
    def identity(self) -> Number:
        """The identity of the reduction: 0, 1, -inf or inf."""
        return _IDENTITIES[self]

    @property
    def operator(self) -> str:
        """The operator that applies this reduction to whole axes."""
        return f"Reduce{self.capitalize()}"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named operand: ``name`` is its position ('0', '1', ...) in an operator's meaning."""

    name: str
    shape: tuple[Size, ...]
    dtype: str = "float32"


@dataclass(frozen=True, slots=True, init=False)
class Compare:
    """left OP right over indices, with OP one of ``<``, ``<=``, ``==``, ``!=``."""

    left: Index
    operator: Literal["<", "<=", "==", "!="]
    right: Index

    def __init__(self, left: Index, operator: Literal["<", "<=", "==", "!="], right: Index) -> None:
        _set_left(self, left)
        _set_operator(self, operator)
        _set_right(self, right)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            type(other) is Compare and self.operator == other.operator and self.right == other.right and self.left == other.left
        )

    def __hash__(self) -> int:
        return hash((self.left, self.operator, self.right))

    def __str__(self) -> str:
        return f"{format_index(self.left)}{self.operator}{format_index(self.right)}"


_set_left, _set_operator, _set_right = (Compare.__dict__[name].__set__ for name in ("left", "operator", "right"))
"""Setters of a comparison's slots: a proof builds millions of them, and attributes of a frozen object are slow to set otherwise."""


@dataclass(frozen=True, slots=True)
class Number:
    """A constant: exact if it is rational, float for infinities and measured constants."""

    value: Fraction | float


@dataclass(frozen=True, slots=True)
class IndexNumber:
    """An index used as a number (argmax, interpolation weights)."""

    value: Index


@hashed_once
@dataclass(frozen=True, slots=True)
class Read:
    """source[indices]"""

    source: Tensor | Scope
    indices: tuple[Index, ...]
    _hash: int = field(init=False, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Table:
    """values[indices], row-major over ``shape``: the exact constants of a bilinear algorithm, selections, interpolation weights."""

    shape: tuple[int, ...]
    values: tuple[Fraction, ...]
    indices: tuple[Index, ...]


@hashed_once
@dataclass(frozen=True, slots=True)
class Apply:
    """function(arguments): arithmetic and scalar functions by their name in ``functions.FUNCTIONS``."""

    function: str
    arguments: tuple[Scalar, ...]
    _hash: int = field(init=False, repr=False, compare=False)


@hashed_once
@dataclass(frozen=True, slots=True)
class Guarded:
    """``then`` where every condition holds, else ``otherwise`` (padding, concatenation, slices)."""

    conditions: tuple[Compare, ...]
    then: Scalar
    otherwise: Scalar
    _hash: int = field(init=False, repr=False, compare=False)


Scalar: TypeAlias = Number | IndexNumber | Read | Table | Apply | Guarded


@hashed_once
@dataclass(frozen=True, slots=True)
class Scope:
    """A tensor over ``traversal``: reduction over ``summation`` of ``body`` (no reduction when it is empty)."""

    traversal: tuple[Iterator, ...]
    summation: tuple[Iterator, ...]
    reduction: Reduction
    body: Scalar
    _hash: int = field(init=False, repr=False, compare=False)

    @classmethod
    def pointwise(cls, traversal: tuple[Iterator, ...], body: Scalar) -> Scope:
        """Return a scope that reduces nothing."""
        return cls(traversal, (), Reduction.SUM, body)

    def with_body(self, body: Scalar) -> Scope:
        """Return a scope over the same iterators with another body."""
        return Scope(self.traversal, self.summation, self.reduction, body)

    @property
    def shape(self) -> tuple[Size, ...]:
        return tuple(i.high for i in self.traversal)


def inside(value: object, low: object, high: object) -> tuple[Compare, Compare]:
    """low <= value < high"""
    return Compare(index(low), "<=", index(value)), Compare(index(value), "<", index(high))


def number(value: float | Fraction | Scalar) -> Scalar:
    """Return a constant, exact when it is an integer, a fraction or a finite float; a scalar (a number with a name) stays itself."""
    if isinstance(value, Number | IndexNumber | Read | Table | Apply | Guarded):
        return value
    if not math.isfinite(value):
        return Number(float(value))
    return Number(Fraction(value))


Rows: TypeAlias = "Sequence[Rows] | Sequence[int | Fraction]"


def table(rows: Rows, *indices: Size) -> Table:
    """Return nested ``rows`` of numbers, read at ``indices``; raise ValueError if rows differ in length."""
    values, shape = _flat(rows)
    return Table(shape, values, tuple(index(i) for i in indices))


def _flat(rows: Rows | int | Fraction) -> tuple[tuple[Fraction, ...], tuple[int, ...]]:
    if isinstance(rows, int | Fraction):
        return (Fraction(rows),), ()
    parts = [_flat(row) for row in rows]
    shapes = {shape for _, shape in parts}
    if len(shapes) != 1:
        raise ValueError("rows of a table differ in length")
    return tuple(value for values, _ in parts for value in values), (len(parts), *shapes.pop())


def apply(function: str, *arguments: Scalar) -> Apply:
    return Apply(function, arguments)


ZERO, ONE = Number(Fraction(0)), Number(Fraction(1))
_IDENTITIES = {Reduction.SUM: ZERO, Reduction.PROD: ONE, Reduction.MAX: Number(-math.inf), Reduction.MIN: Number(math.inf)}
