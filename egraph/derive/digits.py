"""Digits of indices: split strides, dilations, groups and divisions, so that windows of unit steps and plain axes remain."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import gcd

from egraph.derive.rules.bodies import Refusal
from egraph.derive.rules.boundary import relax
from egraph.derive.rules.instances import instantiate
from egraph.derive.rules.substitution import solve, split_iterator
from egraph.derive.rules.summation import inner_read
from egraph.derive.targets import is_digits
from egraph.derive.trees import Contraction, contraction_of, innermost, within
from egraph.tensor.expr.index import Floor, Index, Iterator, Modulo, atoms, index, length
from egraph.tensor.expr.laws import affine
from egraph.tensor.expr.scope import Read, Scope


def digits(contraction: Contraction, position: int, coordinates: Sequence[Index], factor: int) -> Scope | Refusal:
    """Split iterators into digits of ``factor`` until the indices are ``factor q + p``, and solve for the digits that guards determine.

    The operand is then read at (q, p): space to depth for strides, a batch for dilations, phases for divisions.
    """
    result: Scope | Refusal = contraction.scope
    for iterator, by in _to_split(coordinates, factor):
        if isinstance(result, Refusal):
            return result
        result = innermost(result, partial(split, iterator=iterator, factor=by))
    if isinstance(result, Refusal):
        return result
    result = solved(result)
    affected = all(affine(coordinate) is not None for coordinate in coordinates if factor in factors_of(coordinate))
    return innermost(result, lambda inner: _at_quotients(inner, position, factor)) if affected else result


def _to_split(coordinates: Sequence[Index], factor: int) -> list[tuple[Iterator, int]]:
    """Return the iterators that count both below and above ``factor``, and the size of their low digits."""
    divided = [a.numerator for p in coordinates for a in atoms(p) if isinstance(a, Floor | Modulo) and a.divisor.constant == factor]
    low_sizes: dict[Iterator, int] = {}
    for value in divided or [p for p in coordinates if factor in factors_of(p)]:
        parts = affine(value)
        for iterator, coefficient in parts[1].items() if parts is not None else ():
            by = factor // gcd(factor, coefficient)
            if by > 1 and length(iterator) > by:
                low_sizes[iterator] = by
    return sorted(low_sizes.items(), key=lambda item: item[0].name)


def split(scope: Scope, iterator: Iterator, factor: int) -> Scope | Refusal:
    """x = factor q + p, after the range of x is relaxed to a multiple of factor"""
    missing = -length(iterator) % factor
    if not missing:
        return split_iterator(scope, iterator, factor)
    grown = relax(scope, iterator, 0, missing)
    if isinstance(grown, Refusal):
        return grown
    wide = Iterator(iterator.name, 0, length(iterator) + missing)
    if iterator in scope.summation:
        return split_iterator(grown, wide, factor)
    return within(grown, lambda inner: split_iterator(inner, wide, factor))


def solved(scope: Scope) -> Scope:
    """Solve for every summation iterator that guards determine."""
    inner = inner_read(scope)
    if inner is not None:
        changed = within(scope, solved)
        return changed if isinstance(changed, Scope) else scope
    for iterator in scope.summation:
        result = solve(scope, iterator)
        if isinstance(result, Scope):
            return solved(result)
    return scope


def _at_quotients(scope: Scope, position: int, factor: int) -> Scope | Refusal:
    """Read an operand at the quotients of the indices that are ``factor q + p`` with a q of several iterators.

    If another index mixes iterators, the instance is padded along it and read at that index.
    """
    contraction = contraction_of(scope)
    if contraction is None:
        return scope
    operand = contraction.operands[position]
    if not isinstance(operand, Read):
        return Refusal("the operand is no read")
    parts: list[Index] = []
    for coordinate in operand.indices:
        parts_of_index = affine(coordinate)
        above = {i: c // factor for i, c in parts_of_index[1].items() if c % factor == 0} if parts_of_index is not None else {}
        if len(above) > 1:
            parts.append(sum((index(i) * c for i, c in above.items()), Index(())))
        elif not is_digits(coordinate):
            parts.append(coordinate)
    return instantiate(scope, operand, parts) if parts else Refusal("no index has a quotient of several iterators")


def factors_of(coordinate: Index) -> tuple[int, ...]:
    """Return the numbers whose digits an index mixes: divisors, and coefficients above 1."""
    divisors = {a.divisor.constant for a in atoms(coordinate) if isinstance(a, Floor | Modulo)}
    if not divisors:
        parts = affine(coordinate)
        divisors = {abs(c) for c in parts[1].values()} if parts is not None else set()
    return tuple(sorted(d for d in divisors if d is not None and d > 1))
