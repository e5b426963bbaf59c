"""Tables of constants in normal forms: exact factors, contracted if a sum runs over tables only.

A table is an ``Element`` of a tensor whose name contains its integers, so that equal tables read at equal places are equal
data. The structure of the integers is extracted: a table that is zero unless an equation between its indices holds becomes a
condition, a table that is a product becomes factors, and ``sum(x) A[p,x] B[x,i] G[x,r]`` becomes one table ``T[p,i,r]``:

    sum(x < 4) A[h%2,x] B[x,i] G[x,r] = [i == h%2 + r]     for Winograd's F(2, 3), by arithmetic alone
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np

from egraph.tensor.expr.index import DataIndex, Index, Iterator, RealSymbol, Symbol, atoms, bounds, index, substitute
from egraph.tensor.expr.laws import iterators_of
from egraph.tensor.expr.scope import Compare
from verify.normal.algebra import guarded
from verify.normal.context import ZERO, Context
from verify.normal.grids import Array, Grid, primitive, structure
from verify.normal.naming import free_iterators
from verify.normal.terms import Element, Factor, Term, Value

LARGEST_TABLE = 1 << 12
"""Most entries of a table made by a contraction; a sum that would exceed it stays a sum."""
LARGEST_WORK = 1 << 17
"""Most products of entries in one contraction."""
LONGEST_SUM = 1 << 10
"""Most values of an iterator over which tables are contracted."""
_TESTS = {"<": operator.gt, "<=": operator.ge, "==": operator.eq, "!=": operator.ne}
_PREFIX = "table("
_grids: dict[str, Grid] = {}


def tabulated(context: Context, shape: Sequence[int], values: Sequence[Fraction | int], indices: Sequence[Index]) -> Value:
    """Return a table read at indices that are inside it wherever the value contributes."""
    array, places = _reduced(np.array(values, dtype=object).reshape(shape), [context.simplify(i) for i in indices])
    if not array.size:
        return ZERO  # an index outside of the table: the read never contributes
    coefficient, numbers = primitive(array.reshape(-1).tolist())
    if not coefficient:
        return ZERO
    factored = structure(Grid(array.shape, numbers))
    conditions = [
        Compare(index(0), "==" if restriction.relation == "==" else "<=", _combined(restriction.coefficients, places) + restriction.offset)
        for restriction in factored.restrictions
    ]
    factors = [_element(p.grid, [places[a] - s for a, s in zip(p.axes, p.shifts, strict=True)]) for p in factored.pieces]
    whole = Value((Term(coefficient * factored.coefficient, (), (), tuple(factors)),))
    return guarded(context, conditions, whole) if conditions else whole


def _reduced(array: Array, places: Sequence[Index]) -> tuple[Array, list[Index]]:
    """Return the part of a table within the indices' ranges, without axes that are read at a known index or together with another axis."""
    kept: list[Index] = []
    pending = list(places)
    while pending:  # the axis of the next index follows the kept ones
        axis, position = len(kept), pending.pop(0)
        digits = _radix(position, array.shape[axis])
        if digits is not None:
            base, upper, lower = digits
            array = array.reshape(*array.shape[:axis], array.shape[axis] // base, base, *array.shape[axis + 1 :])
            pending = [upper, lower, *pending]
            continue
        limits = bounds(position)
        low, high = (0, array.shape[axis] - 1) if limits is None else (max(limits[0], 0), min(limits[1], array.shape[axis] - 1))
        array = array[(slice(None),) * axis + (slice(low, high + 1),)]
        if not array.size:
            return array, kept
        same = next((k for k, earlier in enumerate(kept) if (position - earlier).constant is not None and position.constant is None), None)
        if position.constant is not None:
            array = np.asarray(array.take(0, axis=axis), dtype=object)
        elif same is None:
            kept.append(position - low)
        else:
            array = _diagonal(array, same, axis, (position - low - kept[same]).constant or 0)
            if not array.size:
                return array, kept
    return array, kept


def _radix(position: Index, size: int) -> tuple[int, Index, Index] | None:
    """Return (b, e, f) with position = b e + f and 0 <= f < b, where e and f vary and b divides the size; else None."""
    for base in sorted({abs(c) for m, c in position.terms if m and 1 < abs(c) < size and not size % c}):
        lower = Index(tuple((m, c) for m, c in position.terms if c % base))
        limits = bounds(lower)
        if lower.constant is None and limits is not None and limits[0] >= 0 and limits[1] < base:
            return base, Index(tuple((m, c // base) for m, c in position.terms if not c % base)), lower
    return None


def _diagonal(array: Array, axis: int, second_axis: int, shift: int) -> Array:
    """Return the array read at i along the axis and at i + shift along the other axis, which is removed; zero if that is outside."""
    rows = [
        np.moveaxis(array, axis, 0)[i].take(i + shift, axis=second_axis - 1)
        if 0 <= i + shift < array.shape[second_axis]
        else np.zeros_like(np.moveaxis(array, axis, 0)[i].take(0, axis=second_axis - 1))
        for i in range(array.shape[axis])
    ]
    return np.stack(rows, axis=axis)


def _combined(coefficients: Sequence[int], places: Sequence[Index]) -> Index:
    total = index(0)
    for coefficient, position in zip(coefficients, places, strict=True):
        total = total + position * coefficient
    return total


def _element(grid: Grid, places: Sequence[Index]) -> Element:
    name = str(grid)
    _grids.setdefault(name, grid)
    return Element(name, grid.shape, tuple(places))


def grid_of(factor: Factor) -> Grid | None:
    """Return the table that a factor reads; None if it reads none."""
    return _grids[factor.tensor] if type(factor) is Element and factor.tensor.startswith(_PREFIX) else None


def replaced(context: Context, grid: Grid, indices: Sequence[Index]) -> Value:
    """Return a table read at other places, simplified by these."""
    return tabulated(context, grid.shape, grid.numbers, indices)


Reading = tuple[int, tuple[int, ...]]
"""How one index of a table is read: the axis of the result that it follows (or -1), and the offset at each value of the iterator."""


@dataclass(frozen=True)
class _Contraction:
    """A sum of products of tables over one iterator: the grids, their readings, and the axes of the result."""

    iterator: Iterator
    parts: tuple[Element | Compare, ...]
    grids: tuple[tuple[Grid, tuple[Reading, ...]], ...]
    places: tuple[Index, ...]
    sizes: tuple[int, ...]

    @property
    def entries(self) -> int:
        return math.prod(self.sizes)


def contracted(context: Context, term: Term) -> tuple[Term, Value] | None:
    """Return (rest, table): the term is the sum of rest * table over the rest's iterators, which are one fewer; None if there is none."""
    tried = [_contraction(context, iterator, term) for iterator in _of_tables(context, term)]
    contractions = [contraction for contraction in tried if contraction is not None]
    if not contractions:
        return None
    best = min(contractions, key=lambda contraction: contraction.entries)
    gone = {id(part) for part in best.parts}
    remaining = replace(
        term, iterators=tuple(i for i in term.iterators if i != best.iterator),
        conditions=tuple(c for c in term.conditions if id(c) not in gone), factors=tuple(f for f in term.factors if id(f) not in gone),
    )  # fmt: skip
    return remaining, tabulated(context, best.sizes, _summed(best.grids, best.sizes), best.places)


def _of_tables(context: Context, term: Term) -> list[Iterator]:
    """Return the iterators that occur in tables, possibly in conditions, and nowhere else."""
    tables = [factor for factor in term.factors if grid_of(factor) is not None]
    if not tables or not term.iterators:
        return []
    others = [factor for factor in term.factors if grid_of(factor) is None]
    elsewhere = frozenset[Iterator]().union(*(free_iterators(context, factor) for factor in others))
    within = frozenset[Iterator]().union(*(free_iterators(context, factor) for factor in tables))
    return [iterator for iterator in term.iterators if iterator in within and iterator not in elsewhere]


def _values(iterator: Iterator) -> range | None:
    low, high = index(iterator.low).constant, index(iterator.high).constant
    return None if low is None or high is None or not 0 < high - low <= LONGEST_SUM else range(low, high)


def _contraction(context: Context, iterator: Iterator, term: Term) -> _Contraction | None:
    values = _values(iterator)
    if values is None:
        return None
    parts: list[Element | Compare] = []
    reads: list[tuple[Grid, tuple[Index, ...]]] = []
    for factor in term.factors:
        grid = grid_of(factor)
        if isinstance(factor, Element) and grid is not None and iterator in free_iterators(context, factor):
            parts.append(factor)
            reads.append((grid, factor.indices))
    for condition in term.conditions:
        if iterator in free_iterators(context, condition):
            condition_table = _truths(condition)
            if condition_table is None:
                return None
            parts.append(condition)
            reads.append(condition_table)
    axes: dict[Index, tuple[int, int]] = {}  # place: number and size of its axis
    grids: list[tuple[Grid, tuple[Reading, ...]]] = []
    for grid, places in reads:
        readings: list[Reading] = []
        for position, size in zip(places, grid.shape, strict=True):
            read = _reading(position, size, iterator, values)
            if read is None:
                return None
            axis, extent, offsets = read
            if axis is None:
                readings.append((-1, offsets))
                continue
            number, smallest = axes.get(axis, (len(axes), extent))
            axes[axis] = number, min(smallest, extent)
            readings.append((number, offsets))
        grids.append((grid, tuple(readings)))
    sizes = tuple(size for _, size in axes.values())
    if math.prod(sizes) > LARGEST_TABLE or math.prod(sizes) * len(values) > LARGEST_WORK:
        return None
    return _Contraction(iterator, tuple(parts), tuple(grids), tuple(axes), sizes)


def _truths(condition: Compare) -> tuple[Grid, tuple[Index, ...]] | None:
    """Return a condition as a table of zeros and ones."""
    value = condition.right - condition.left
    limits = bounds(value)
    if limits is None or limits[1] - limits[0] >= LONGEST_SUM:
        return None
    test = _TESTS[condition.operator]
    return Grid((limits[1] - limits[0] + 1,), tuple(int(test(v, 0)) for v in range(limits[0], limits[1] + 1))), (value - limits[0],)


def _reading(position: Index, size: int, iterator: Iterator, values: range) -> tuple[Index | None, int, tuple[int, ...]] | None:
    """Return (axis, its size, offset at each value) with position = axis + offset; None if it is not of that form."""
    iterators = iterators_of(position)
    if iterator not in iterators:
        return position, size, (0,) * len(values)
    if iterators == {iterator} and not any(isinstance(atom, Symbol | RealSymbol | DataIndex) for atom in atoms(position)):
        return None, 0, tuple(substitute(position, {iterator: value}).constant or 0 for value in values)
    slope = dict(position.terms).get((iterator,), 0)
    others = position - index(iterator) * slope
    limits = bounds(others)
    if iterator in iterators_of(others) or limits is None:
        return None
    return others - limits[0], limits[1] - limits[0] + 1, tuple(limits[0] + slope * value for value in values)


@lru_cache(maxsize=1 << 10)
def _summed(grids: tuple[tuple[Grid, tuple[Reading, ...]], ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sum over the iterator's values of the product of the grids, row-major over the axes; grids are zero outside."""
    rank = len(sizes)
    axes = [np.arange(size).reshape([1] + [-1 if k == axis else 1 for k in range(rank)]) for axis, size in enumerate(sizes)]
    total: Array = np.ones([1] * (rank + 1), dtype=object)
    for grid, readings in grids:
        places, inside = [], np.ones([1] * (rank + 1), dtype=bool)
        for (axis, offsets), size in zip(readings, grid.shape, strict=True):
            position = np.array(offsets).reshape([-1] + [1] * rank)
            position = position if axis < 0 else position + axes[axis]
            inside = inside & (position >= 0) & (position < size)
            places.append(np.clip(position, 0, size - 1))
        total = total * np.where(inside, grid.array[tuple(places)], 0)
    whole = np.broadcast_to(total, (total.shape[0], *sizes)).sum(axis=0)
    return tuple(int(value) for value in np.asarray(whole).reshape(-1).tolist())
