"""Normal forms as data: a value is a sum of terms, a term a coefficient times factors, summed over iterators where conditions hold.

    3 * sum(c<C, r<R) [0 <= h+r-1 < H] A[n,c,h+r-1] * K[f,c,r]

Iterator names are unique within a whole value. A term's conditions guard its factors: a read has to be inside its
tensor only where they hold. The empty sum is zero; the empty maximum is minus infinity, the empty minimum infinity.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

from egraph.tensor.expr.index import Index, Iterator, Size, format_index
from egraph.tensor.expr.scope import Compare

Kind: TypeAlias = Literal["max", "min"]
INFINITY = "infinity"
"""The function without arguments that stands for plus infinity."""


@dataclass(frozen=True, slots=True)
class Element:
    """tensor[indices]; a real-valued attribute is an element of a tensor without axes."""

    tensor: str
    shape: tuple[Size, ...]
    indices: tuple[Index, ...]

    def __str__(self) -> str:
        return f"${self.tensor}[{','.join(map(format_index, self.indices))}]"


@dataclass(frozen=True, slots=True)
class Call:
    """function(arguments), about which nothing more is known."""

    function: str
    arguments: tuple[Value, ...]

    def __str__(self) -> str:
        return f"{self.function}({', '.join(map(str, self.arguments))})"


@dataclass(frozen=True, slots=True)
class Alternative:
    """One candidate of an extremum: ``value`` for every value of the iterators at which the conditions hold."""

    iterators: tuple[Iterator, ...]
    conditions: tuple[Compare, ...]
    value: Value

    def __str__(self) -> str:
        return format_binder("", self.iterators, self.conditions) + str(self.value)


@dataclass(frozen=True, slots=True)
class Extremum:
    """The largest (smallest) of all alternatives over their iterators."""

    kind: Kind
    alternatives: tuple[Alternative, ...]

    def __str__(self) -> str:
        return f"{self.kind}({'; '.join(map(str, self.alternatives))})"


@dataclass(frozen=True, slots=True)
class Product:
    """The product of ``value`` over the iterators where the conditions hold."""

    iterators: tuple[Iterator, ...]
    conditions: tuple[Compare, ...]
    value: Value

    def __str__(self) -> str:
        return f"{format_binder('prod', self.iterators, self.conditions)}({self.value})"


@dataclass(frozen=True, slots=True)
class IndexFactor:
    """An index used as a number."""

    value: Index

    def __str__(self) -> str:
        return f"<{format_index(self.value)}>"


Factor: TypeAlias = Element | Call | Extremum | Product | IndexFactor


@dataclass(frozen=True, slots=True, init=False)
class Term:
    """coefficient * sum over the iterators, where the conditions hold, of the product of the factors"""

    coefficient: Fraction
    iterators: tuple[Iterator, ...]
    conditions: tuple[Compare, ...]
    factors: tuple[Factor, ...]

    def __init__(
        self, coefficient: Fraction, iterators: tuple[Iterator, ...], conditions: tuple[Compare, ...], factors: tuple[Factor, ...]
    ) -> None:
        _set_coefficient(self, coefficient)
        _set_iterators(self, iterators)
        _set_conditions(self, conditions)
        _set_factors(self, factors)

    def __str__(self) -> str:
        binder = format_binder("sum" if self.iterators else "", self.iterators, self.conditions)
        factors = [str(factor) for factor in self.factors]
        if self.coefficient != 1 or not factors:
            factors.insert(0, str(self.coefficient))
        return binder + " * ".join(factors)


_set_coefficient, _set_iterators, _set_conditions, _set_factors = (
    Term.__dict__[name].__set__ for name in ("coefficient", "iterators", "conditions", "factors")
)  # fmt: skip
"""Slot setters that build a term. A normal form builds thousands of terms, and attributes of a frozen object are slow to set."""


@dataclass(frozen=True, slots=True)
class Value:
    """The sum of the terms."""

    terms: tuple[Term, ...]

    def __str__(self) -> str:
        return " + ".join(map(str, self.terms)) or "0"


def format_binder(word: str, iterators: tuple[Iterator, ...], conditions: tuple[Compare, ...]) -> str:
    """Return ``sum(c<C, r<3) [condition, ...] `` as a prefix."""
    text = ""
    if iterators:
        ranges = (f"{i.name}<{format_index(i.high)}" if i.low == 0 else f"{format_index(i.low)}<={i.name}<{format_index(i.high)}"
                  for i in iterators)  # fmt: skip
        text = f"{word}({', '.join(ranges)}) "
    return text + (f"[{', '.join(map(str, conditions))}] " if conditions else "")
