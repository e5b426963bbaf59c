"""Split iterators into digits that do not fill their range: the last ones run over the end, and are cut off by conditions.

    (i + 1) // 2 % 4 and (i + 1) % 2 with i < 13   are   b and c with i + 1 = 8 a + 2 b + c, 0 <= i, i < 13
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from egraph.tensor.expr.conditions import undecided
from egraph.tensor.expr.index import Floor, Index, Iterator, Modulo, atoms, index, known, length
from egraph.tensor.expr.scope import Compare
from lower.eoperator.terms import Terms


@dataclass(frozen=True)
class Cut:
    """An iterator from 0 to ``size`` as ``sum(digit * place) - shift``, the highest digit first."""

    digits: tuple[Iterator, ...]
    weights: tuple[int, ...]
    shift: int
    size: int

    @property
    def value(self) -> Index:
        return sum((index(d) * weight for d, weight in zip(self.digits, self.weights, strict=True)), index(-self.shift))

    @property
    def conditions(self) -> tuple[Compare, ...]:
        """The conditions under which the digits are a value of the iterator."""
        return _known((Compare(index(0), "<=", self.value), Compare(self.value, "<", index(self.size))))

    def within(self, regions: Mapping[Iterator, Iterator]) -> Cut:
        """Return the cut where digits run over parts of their range only."""
        return replace(self, digits=tuple(regions.get(digit, digit) for digit in self.digits))

    def reached(self, fixed: frozenset[Iterator]) -> tuple[Compare, ...]:
        """Return the conditions under which some choice of the other digits gives a value of the iterator."""
        if not fixed.intersection(self.digits[1:]):
            return ()  # the highest digit alone always leads to one
        low = index(-self.shift)
        spread = 0
        for digit, weight in zip(self.digits, self.weights, strict=True):
            if digit in fixed:
                low = low + index(digit) * weight
            else:
                low = low + known(digit.low) * weight
                spread += (length(digit) - 1) * weight
        return _known((Compare(index(0), "<=", low + spread), Compare(low, "<", index(self.size))))


def _known(conditions: tuple[Compare, ...]) -> tuple[Compare, ...]:
    left = undecided(conditions)
    assert left is not None, "some value is always reached"
    return left


def cut_digits(table: Terms, iterator: Iterator, indices: Iterable[Index]) -> Cut | None:
    """Return the digits of an iterator that the indices read, None where there are none, or none that fit together."""
    cuts: set[tuple[int, int]] = set()
    for value in indices:
        for atom in atoms(value):
            if isinstance(atom, Floor | Modulo):
                numerator, by = _quotient(atom.numerator, iterator), atom.divisor.constant
                if numerator is not None and by is not None:
                    shift, weight = numerator
                    cuts |= {(shift, weight * by)} | ({(shift, weight)} if weight > 1 else set())
    if not cuts:
        return None
    size, largest = length(iterator), max(weight for _, weight in cuts)
    shifts = {shift % largest for shift, weight in cuts if weight == largest}
    weights = sorted({1, *(weight for _, weight in cuts)})
    fits = len(shifts) == 1 and all((shift - next(iter(shifts))) % weight == 0 for shift, weight in cuts)
    if not fits or any(b % a for a, b in itertools.pairwise(weights)) or largest > size:
        return None
    shift = next(iter(shifts))
    sizes = [b // a for a, b in itertools.pairwise(weights)] + [-(-(size + shift) // largest)]
    digits = tuple(table.fresh(iterator.name + "d", count) for count in reversed(sizes))
    return Cut(digits, tuple(reversed(weights)), shift, size)


def _quotient(value: Index, iterator: Iterator) -> tuple[int, int] | None:
    """Return (b, p) where value = (iterator + b) // p."""
    constant = value.constant_part
    atom = (value - constant).atom
    if atom == iterator:
        return constant, 1
    if isinstance(atom, Floor) and (by := atom.divisor.constant) is not None:
        inner = _quotient(atom.numerator, iterator)
        return None if inner is None else (inner[0] + constant * inner[1] * by, inner[1] * by)
    return None
