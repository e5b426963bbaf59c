"""Variable substitution: split iterators into digits, merge them, map them by unimodular matrices, or solve for them in an equation."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from egraph.derive.rules.bodies import Refusal, counted, every, mapped, pulled, replaced, where
from egraph.derive.rules.inside import reads_inside
from egraph.tensor.expr.bodies import used
from egraph.tensor.expr.conditions import slack
from egraph.tensor.expr.index import Index, Iterator, Modulo, Size, bounds, floor_divide, index, length, modulo, substitute
from egraph.tensor.expr.laws import inside_divisions, iterators_of, straightened
from egraph.tensor.expr.scope import Compare, Read, Reduction, Scalar, Scope, inside


def split_iterator(scope: Scope, iterator: Iterator, factor: int) -> Scope | Refusal:
    """x = factor q + p with p < factor, if factor divides the range of x; for a traversal iterator, an outer scope reads at the digits"""
    if refusal := counted(scope):
        return refusal
    size = length(iterator)
    if not 1 < factor < size or size % factor:
        return Refusal(f"{factor} does not split the range {size} of {iterator.name}")
    high, low = _names(iterator, scope, (size // factor, factor))
    body = replaced(scope.body, {iterator: index(high) * factor + low})
    digits = floor_divide(index(iterator), index(factor)), modulo(index(iterator), index(factor))
    return _exchanged(scope, (iterator,), (high, low), body, digits)


def merge_iterators(scope: Scope, major: Iterator, minor: Iterator) -> Scope | Refusal:
    """x = |minor| major + minor, for two traversal iterators or two summation iterators"""
    if refusal := counted(scope):
        return refusal
    if major == minor or (major in scope.summation) != (minor in scope.summation):
        return Refusal("two traversal iterators merge, or two summation iterators")
    size = length(minor)
    (merged,) = _names(major, scope, (length(major) * size,))
    body = mapped(scope.body, lambda value: straightened(_merged(value, major, minor, index(merged), size)))
    return _exchanged(scope, (major, minor), (merged,), body, (index(major) * size + minor,))


def _merged(value: Index, major: Iterator, minor: Iterator, merged: Index, size: int) -> Index:
    """Replace major and minor by the digits of ``merged``, and their multiples in the right proportion by a multiple of ``merged``."""
    linear = {m[0]: c for m, c in value.terms if len(m) == 1}
    step = linear.get(minor, 0)
    together = step != 0 and linear.get(major) == step * size
    unmerged = Index(tuple(term for term in value.terms if term[0] not in ((major,), (minor,)))) if together else value
    digits = {major: floor_divide(merged, index(size)), minor: modulo(merged, index(size))}
    total = substitute(inside_divisions(unmerged, lambda part: _merged(part, major, minor, merged, size)), digits)
    return total + merged * step if together else total


def unimodular(scope: Scope, iterators: Sequence[Iterator], matrix: Matrix) -> Scope | Refusal:
    """y = U x for an integer matrix U with determinant 1 or -1, y in the smallest box, guarded by x = U^-1 y in its ranges

    Skews (h' = h + r), exchanges and reversals (up to a shift) are such maps. For traversal iterators, an outer scope reads at U x, and
    the guard is dropped if the reads stay inside without it.
    """
    if refusal := counted(scope):
        return refusal
    inverse = inverse_of(matrix)
    if inverse is None:
        return Refusal("the determinant is not 1 or -1")
    if len({i in scope.summation for i in iterators}) != 1 or not set(iterators) <= set(every(scope)):
        return Refusal("iterators of the traversal alone, or of the summation alone")
    forward = [_row(row, iterators) for row in matrix]
    limits = [bounds(value) or (0, 0) for value in forward]
    new = _names(iterators[0], scope, tuple(high - low + 1 for low, high in limits))
    shifted = [index(i) + low for i, (low, _) in zip(new, limits, strict=True)]
    back: dict[Iterator, Size] = {
        old: sum((value * c for c, value in zip(row, shifted, strict=True)), Index(())) for old, row in zip(iterators, inverse, strict=True)
    }
    body = replaced(scope.body, back)
    ranges = [c for old in iterators for c in inside(back[old], 0, length(old))]
    guarded = where(ranges, body, scope.reduction)
    coordinates = tuple(value - low for value, (low, _) in zip(forward, limits, strict=True))
    if iterators[0] in scope.traversal:
        plain = _exchanged(scope, tuple(iterators), new, body, coordinates)
        if isinstance(plain.body, Read) and isinstance(plain.body.source, Scope) and reads_inside(plain.body.source):
            return plain
    return _exchanged(scope, tuple(iterators), new, guarded, coordinates)


def _row(row: Sequence[int], iterators: Sequence[Iterator]) -> Index:
    return sum((index(i) * c for i, c in zip(iterators, row, strict=True)), Index(()))


def solve(scope: Scope, iterator: Iterator) -> Scope | Refusal:
    """sum(x < g) [(a - x) % g == 0 ? body : 0]  =  body at x = a % g, likewise for (a + x) % g and for an equation x == a

    if x occurs in the equation with the coefficient 1 or -1, and its range is one period. Two bounds may make an equation.
    """
    conditions, summand = pulled(scope.body, scope.reduction)
    conditions = _equations(conditions)
    if iterator not in scope.summation:
        return Refusal(f"{iterator.name} is not summed")
    for condition in conditions:
        solution = _solution(condition, iterator)
        if solution is None:
            continue
        value, ranges = solution
        body = replaced(where([c for c in conditions if c != condition], summand, scope.reduction), {iterator: value})
        summation = tuple(i for i in scope.summation if i != iterator)
        body = where(ranges, body, scope.reduction)
        return Scope(scope.traversal, summation, scope.reduction if summation else Reduction.SUM, body)
    return Refusal(f"no guard is an equation that determines {iterator.name}")


def _equations(conditions: Sequence[Compare]) -> tuple[Compare, ...]:
    """0 <= e, 0 <= -e  =  0 == e (``equation from bounds``)"""
    equations: dict[Compare, None] = {}
    bounds = {condition: slack(condition) for condition in conditions}
    for condition, value in bounds.items():
        if value is not None and -value in bounds.values():
            equations.setdefault(Compare(min(value, -value, key=str), "==", index(0)))
        else:
            equations.setdefault(condition)
    return tuple(equations)


def _solution(condition: Compare, iterator: Iterator) -> tuple[Index, tuple[Compare, ...]] | None:
    difference = condition.left - condition.right
    if condition.operator != "==":
        return None
    if len(difference.terms) == 1 and isinstance(difference.terms[0][0][0], Modulo):
        inner, divisor = difference.terms[0][0][0].numerator, difference.terms[0][0][0].divisor.constant
        if divisor is None or length(iterator) != divisor or index(iterator.low).constant != 0:
            return None
        remaining = _without(inner, iterator)
        return None if remaining is None else (modulo(remaining, index(divisor)), ())
    remaining = _without(difference, iterator)
    return None if remaining is None else (remaining, inside(remaining, iterator.low, iterator.high))


def _without(value: Index, iterator: Iterator) -> Index | None:
    """Return a with value = 0 exactly where iterator = a, if the iterator's coefficient is 1 or -1; else None."""
    sign = dict(value.terms).get((iterator,))
    if sign not in (1, -1):
        return None
    remaining = value - index(iterator) * sign
    return None if iterator in iterators_of(remaining) else remaining * -sign


def _names(iterator: Iterator, scope: Scope, sizes: Sequence[int]) -> tuple[Iterator, ...]:
    """Return new iterators over [0, size), named after an old iterator."""
    taken = {i.name for i in every(scope)}
    names = (f"{iterator.name}_{k}" for k in range(len(taken) + len(sizes)))
    free = [name for name in names if name not in taken]
    return tuple(Iterator(name, 0, size) for name, size in zip(free, sizes, strict=False))


def _exchanged(scope: Scope, old: Sequence[Iterator], new: Sequence[Iterator], body: Scalar, coordinates: Sequence[Index]) -> Scope:
    """Return ``scope`` with iterators exchanged and a new body; for traversal iterators, an outer scope reads at ``coordinates``."""
    if old[0] in scope.summation:
        at = scope.summation.index(old[0])
        kept = [i for i in scope.summation if i not in old]
        before = sum(1 for i in scope.summation[:at] if i not in old)
        return Scope(scope.traversal, (*kept[:before], *new, *kept[before:]), scope.reduction, body)
    at = scope.traversal.index(old[0])
    before = sum(1 for i in scope.traversal[:at] if i not in old)
    kept = [i for i in scope.traversal if i not in old]
    inner = Scope((*kept[:before], *new, *kept[before:]), scope.summation, scope.reduction, body)
    where_read = [index(i) for i in kept]
    return Scope.pointwise(scope.traversal, Read(inner, (*where_read[:before], *coordinates, *where_read[before:])))


def skew(scope: Scope, iterator: Iterator, by: Index) -> Scope | Refusal:
    """sum(x < n) body  =  sum(y) [0 <= x < n ? body : 0] at x = y - by, for any index ``by`` of other iterators

    y ranges over all values of x + by: a summation iterator moves along with other iterators, including traversal iterators.
    """
    if refusal := counted(scope):
        return refusal
    if iterator not in scope.summation or iterator in iterators_of(by):
        return Refusal(f"{iterator.name} must be summed, and not move by itself")
    limits = bounds(index(iterator) + by)
    if limits is None or by.constant is not None:
        return Refusal("the move must be by other iterators with known ranges")
    low, high = limits
    (new,) = _names(iterator, scope, (high - low + 1,))
    old = index(new) + low - by
    body = where(inside(old, 0, length(iterator)), replaced(scope.body, {iterator: old}), scope.reduction)
    return Scope(scope.traversal, tuple(new if i == iterator else i for i in scope.summation), scope.reduction, body)


def reverse(scope: Scope, iterator: Iterator) -> Scope | Refusal:
    """x = n - 1 - y, for a summation iterator; for a traversal iterator, an outer scope reads at n - 1 - x"""
    if refusal := counted(scope):
        return refusal
    if iterator not in used(scope.body):
        return Refusal(f"{iterator.name} does not occur")
    (new,) = _names(iterator, scope, (length(iterator),))
    last = length(iterator) - 1
    return _exchanged(scope, (iterator,), (new,), replaced(scope.body, {iterator: last - index(new)}), (last - index(iterator),))


Matrix = Sequence[Sequence[int]]


def inverse_of(matrix: Matrix) -> tuple[tuple[int, ...], ...] | None:
    """Return the inverse of a square matrix if it is an integer matrix, that is, if the determinant is 1 or -1; else None."""
    size = len(matrix)
    if any(len(row) != size for row in matrix):
        return None
    rows = [[Fraction(v) for v in row] + [Fraction(int(k == at)) for k in range(size)] for at, row in enumerate(matrix)]
    for at in range(size):
        pivot = next((k for k in range(at, size) if rows[k][at]), None)
        if pivot is None:
            return None
        rows[at], rows[pivot] = rows[pivot], rows[at]
        rows[at] = [v / rows[at][at] for v in rows[at]]
        for k in range(size):
            if k != at:
                rows[k] = [v - rows[k][at] * w for v, w in zip(rows[k], rows[at], strict=True)]
    inverse = [row[size:] for row in rows]
    if any(v.denominator != 1 for row in inverse for v in row):
        return None
    return tuple(tuple(int(v) for v in row) for row in inverse)
