"""Split iterators into digits, so that floor-divisions and remainders of one iterator become iterators of their own.

    {i<12} x[i//4, i%4]   is   {d0<3, d1<4} x[d0, d1]   with i = 4 d0 + d1
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from egraph.tensor.expr.bodies import indices_of, mapped
from egraph.tensor.expr.index import Floor, Index, Iterator, Modulo, Size, Symbol, atoms, index, length, substitute
from egraph.tensor.expr.scope import Scalar, Scope


@dataclass(frozen=True)
class Digits:
    """A scope over digits: ``traversal`` holds the digits of every output axis. An axis that is longer than the output's is cut."""

    traversal: tuple[tuple[Iterator, ...], ...]
    summation: tuple[Iterator, ...]
    body: Scalar

    @property
    def outer(self) -> tuple[Iterator, ...]:
        return tuple(digit for axis in self.traversal for digit in axis)


def divisors(indices: Iterable[Index]) -> dict[Iterator, set[int]]:
    """Return the numbers by which single iterators are divided: the b of i // b and i % b."""
    divisors_by_iterator: dict[Iterator, set[int]] = {}
    for value in indices:
        for atom in atoms(value):
            if isinstance(atom, Floor | Modulo) and isinstance(iterator := atom.numerator.atom, Iterator):
                by = atom.divisor.constant
                if by is not None:
                    divisors_by_iterator.setdefault(iterator, set()).add(by)
    return divisors_by_iterator


def fitting(iterator: Iterator, numbers: Iterable[int]) -> list[int]:
    """Return, in ascending order, the numbers that split the range of an iterator from 0 into equal parts of more than one value."""
    size = length(iterator)
    return sorted(by for by in numbers if 1 < by < size and size % by == 0)


def split_digits(scope: Scope) -> Digits:
    """Return the scope with each iterator split as its divisions and remainders require; all ranges start at 0 and are known."""
    divisors_by_iterator: dict[Iterator, set[int]] = {}
    for value in indices_of(scope.body):
        for atom in atoms(value):
            division = _pure(index(atom))
            if isinstance(atom, Floor | Modulo) and division is not None:
                divisors_by_iterator.setdefault(division[0], set()).add(division[1])
    digits: dict[Iterator, tuple[Iterator, ...]] = {}
    names: dict[Iterator | Symbol, Size] = {}
    for iterator in (*scope.traversal, *scope.summation):
        strides = [1]
        for stride in sorted(divisors_by_iterator.get(iterator, ())):
            if stride % strides[-1] == 0 and strides[-1] < stride < length(iterator):
                strides.append(stride)
        if iterator in scope.summation and length(iterator) % strides[-1]:
            strides = [1]  # a sum must not be longer than its range
        sizes = [after // stride for stride, after in itertools.pairwise(strides)] + [-(-length(iterator) // strides[-1])]
        digits[iterator] = tuple(Iterator(f"{iterator.name}d{k}", 0, size) for k, size in enumerate(sizes))[::-1]
        names[iterator] = sum((index(d) * stride for d, stride in zip(digits[iterator][::-1], strides, strict=True)), index(0))
    body = mapped(scope.body, lambda value: substitute(value, names))
    return Digits(tuple(digits[i] for i in scope.traversal), tuple(d for i in scope.summation for d in digits[i]), body)


def _pure(value: Index) -> tuple[Iterator, int] | None:
    """Return (i, s) if a value depends on the iterator i alone and changes only where i passes a multiple of s."""
    match value.atom:
        case Iterator() as iterator:
            return iterator, 1
        case Floor(numerator, divisor) | Modulo(numerator, divisor):
            inner, by = _pure(numerator), divisor.constant
            return None if inner is None or by is None else (inner[0], inner[1] * by)
    return None
