"""The form in which scopes are matched and compared: a flat output of digits, conditions outside, indices affine if possible.

Iterators that are divided (``i//7``, ``i%7``) are split into digits, and iterators that only occur together (``7*i+j``) are joined. A
scope and its program therefore agree even if one of them has merged axes. The output is a list of digits in row-major order whose
values make up ``shape``: a split or a join over the borders of axes is a reshape of the result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from egraph.derive.matching.bodies import merged, opened, ordered, replaced
from egraph.derive.matching.conditions import Condition
from egraph.derive.rules.bodies import hoisted
from egraph.tensor.expr.bodies import indices_of, mapped, reads_of, rebuilt, used
from egraph.tensor.expr.canonical import canonical
from egraph.tensor.expr.conditions import bound_of, tightest
from egraph.tensor.expr.digits import divisors, fitting
from egraph.tensor.expr.index import Floor, Index, Iterator, Modulo, Size, atoms, index, length
from egraph.tensor.expr.laws import affine, tidy
from egraph.tensor.expr.printing import format_scope
from egraph.tensor.expr.scope import ONE, ZERO, Apply, Guarded, Number, Read, Reduction, Scalar, Scope, Tensor

MOST_STEPS = 64


@dataclass(frozen=True, slots=True)
class Form:
    """``reduction`` over ``sums`` of ``inner`` where all conditions hold, else ``otherwise``; the output is ``digits`` as ``shape``."""

    shape: tuple[int, ...]
    digits: tuple[Iterator, ...]
    sums: tuple[Iterator, ...]
    reduction: Reduction
    conditions: tuple[Condition, ...]
    inner: Scalar
    otherwise: Number | None

    @property
    def body(self) -> Scalar:
        """The conditions and the value that they guard."""
        return Guarded(self.conditions, self.inner, self.otherwise) if self.conditions and self.otherwise is not None else self.inner

    @property
    def scope(self) -> Scope:
        """The digits as traversal."""
        return Scope(self.digits, self.sums, self.reduction if self.sums else Reduction.SUM, self.body)

    @property
    def text(self) -> str:
        """A text that is equal for forms that differ only in names and order, or in how they write position 0 of an axis of size 1."""
        return _text(self)


@lru_cache(maxsize=1 << 10)
def form(scope: Scope, *, keep_strides: bool = False) -> Form:
    """Return the form of a scope; with ``keep_strides``, iterators that a condition on a remainder selects are not split."""
    scope = opened(merged(replace(scope, body=simpler(scope.body))))
    shape = tuple(length(i) for i in scope.traversal)
    names: dict[Iterator, Size] = {}
    digits, sums = list[Iterator](), list[Iterator]()
    for prefix, iterators, kept in (("t", scope.traversal, digits), ("s", scope.summation, sums)):
        for position, old in enumerate(iterators):
            new = Iterator(f"{prefix}{position}", 0, length(old))
            names[old] = old.low if length(old) == 1 else index(new) + old.low
            kept += [new] if length(old) != 1 else []
    reduction = scope.reduction if scope.summation else Reduction.SUM
    result = _of(Form(shape, tuple(digits), tuple(sums), reduction, (), replaced(scope.body, names), None))
    for _ in range(MOST_STEPS):
        after = _of(_split(_joined(_directed(_tightened(result))), keep_strides))
        if after == result:
            break
        result = after
    return result


@lru_cache(maxsize=1 << 10)
def _text(value: Form) -> str:
    scope = value.scope
    return f"{value.shape} {format_scope(canonical(replace(scope, body=_plain(scope.body, scope.traversal + scope.summation))))}"


def _plain(body: Scalar, iterators: Sequence[Iterator]) -> Scalar:
    """Write position 0 of axes of size 1 as 0, and close every inner scope over the iterators that it depends on, as a form of its own."""
    match body:
        case Read(Scope() as source, _):
            depended_on = used(body)
            depended = [i for i in iterators if i in depended_on]
            inner = form(Scope(tuple(depended), source.summation, source.reduction, source.body))
            flat = index(0)
            for i in depended:
                flat = flat * length(i) + i
            coordinates: list[Index] = []
            for digit in reversed(inner.digits):
                coordinates.append(tidy(flat % length(digit)))
                flat = tidy(flat // length(digit))
            scope = inner.scope
            return Read(replace(scope, body=_plain(scope.body, scope.traversal + scope.summation)), tuple(reversed(coordinates)))
        case Read(source, indices):
            return Read(source, tuple(index(0) if size == 1 else value for size, value in zip(source.shape, indices, strict=True)))
        case _:
            return rebuilt(body, lambda part: _plain(part, iterators))


def _of(value: Form) -> Form:
    """Tidy the indices and gather the conditions."""
    conditions, inner, otherwise = hoisted(mapped(value.body, tidy, opened=True))
    kept, inner = tightest(conditions), ordered(inner)
    if kept is None:
        return replace(value, conditions=(), inner=otherwise or ZERO, otherwise=None)
    return replace(value, conditions=kept, inner=inner, otherwise=otherwise if kept else None)


def simpler(body: Scalar) -> Scalar:
    """Inline inner scopes that reduce nothing, and drop factors and divisors of one."""
    match body:
        case Read(Scope() as source, indices):
            names: dict[Iterator, Size] = {i: i.low for i in source.summation if length(i) == 1}
            kept = tuple(i for i in source.summation if i not in names)
            within = mapped(simpler(replaced(source.body, names)), tidy, opened=True)
            if not kept:
                return replaced(within, dict(zip(source.traversal, indices, strict=True)))
            if isinstance(within, Number) and isinstance(within.value, Fraction) and source.reduction == "sum":
                return Number(within.value * math.prod(map(length, kept)))
            if not any(True for _ in reads_of(within)):  # the number of taps of a window inside the data: one number if all windows agree
                counted = form(Scope(source.traversal, kept, source.reduction, within))
                if not counted.sums and not counted.conditions and isinstance(counted.inner, Number):
                    return counted.inner
            return Read(Scope(source.traversal, kept, source.reduction, within), indices)
        case Apply("mul", (left, right)):
            sides = simpler(left), simpler(right)
            if ONE in sides:
                return sides[1 - sides.index(ONE)]
            values = [side.value for side in sides if isinstance(side, Number) and isinstance(side.value, Fraction)]
            return Number(values[0] * values[1]) if len(values) == 2 else Apply("mul", sides)
        case Apply(function, arguments):
            parts = tuple(map(simpler, arguments))
            return parts[0] if function == "div" and parts[1] == ONE else Apply(function, parts)
        case _:
            return rebuilt(body, simpler)


def _tightened(value: Form) -> Form:
    """Narrow the ranges of summation iterators to the values for which conditions on them alone hold."""
    if value.otherwise != value.reduction.identity:
        return value
    for condition in value.conditions:
        limit = bound_of(condition)
        if limit is not None and limit.iterator in value.sums:
            low, high = limit.low, limit.high
            if high <= low:
                continue
            new = Iterator(f"{limit.iterator.name}t", 0, high - low)
            sums = tuple(new if i == limit.iterator else i for i in value.sums if i != limit.iterator or high - low > 1)
            remaining = tuple(c for c in value.conditions if c != condition)
            coordinate = index(new) + low if high - low > 1 else index(low)
            narrowed = replace(value, sums=sums, conditions=remaining, otherwise=value.otherwise if remaining else None)
            return _tightened(substituted(narrowed, {limit.iterator: coordinate}))
    return value


def _directed(value: Form) -> Form:
    """Orient every summed iterator so that it runs upwards along the first axis that it indexes, in the order of the operands."""
    reads = [read for read in reads_of(value.inner) if isinstance(read.source, Tensor)]
    reads.sort(key=lambda read: read.source.name if isinstance(read.source, Tensor) else "")
    seen: set[Iterator] = set()
    for read in reads:
        for parts in map(affine, read.indices):
            for i, coefficient in parts[1].items() if parts is not None else ():
                if coefficient < 0 and i in value.sums and i not in seen:
                    return _directed(substituted(value, {i: length(i) - 1 - index(i)}))
                seen.add(i)
    return value


def substituted(value: Form, names: Mapping[Iterator, Size]) -> Form:
    """Return a form with iterators replaced in its body (and nowhere else)."""
    return _of(replace(value, conditions=(), inner=replaced(value.body, names), otherwise=None))


def _joined(value: Form) -> Form:
    """Join x and y if everything depends on ``length(y)*x + y`` alone."""
    indices = tuple(indices_of(value.body, opened=True))
    pairs = list(zip(value.digits, value.digits[1:], strict=False))
    pairs += [(x, y) for x in value.sums for y in value.sums if x != y]
    for x, y in pairs:
        if all(_together(coordinate, x, y) for coordinate in indices):
            new = Iterator(f"{x.name}_{y.name}", 0, length(x) * length(y))
            iterators = [tuple(new if i == x else i for i in group if i != y) for group in (value.digits, value.sums)]
            return _joined(substituted(replace(value, digits=iterators[0], sums=iterators[1]), {x: 0, y: index(new)}))
    return value


def _together(coordinate: Index, x: Iterator, y: Iterator) -> bool:
    coefficients = {x: 0, y: 0}
    for monomial, coefficient in coordinate.terms:
        if monomial == (x,) or monomial == (y,):
            coefficients[x if monomial == (x,) else y] = coefficient
            continue
        for atom in monomial:
            if atom in (x, y):
                return False
            if isinstance(atom, Floor | Modulo) and not (_together(atom.numerator, x, y) and _together(atom.divisor, x, y)):
                return False
    return coefficients[x] == length(y) * coefficients[y]


def _split(value: Form, keep_strides: bool) -> Form:
    """Split an iterator x that is divided by d, a divisor of its length, into d*x1 + x0."""
    kept: set[object] = set()
    if keep_strides:
        kept = set().union(*(atoms(c.right) for c in value.conditions if c.operator == "=="), set())
    divided = divisors(indices_of(value.body, opened=True))
    for iterator in value.digits + value.sums:
        for by in fitting(iterator, () if iterator in kept else divided.get(iterator, ())):
            upper, lower = Iterator(f"{iterator.name}h", 0, length(iterator) // by), Iterator(f"{iterator.name}l", 0, by)
            parted = {iterator: (upper, lower)}
            digits, sums = (tuple(part for i in group for part in parted.get(i, (i,))) for group in (value.digits, value.sums))
            return _split(substituted(replace(value, digits=digits, sums=sums), {iterator: index(upper) * by + lower}), keep_strides)
    return value
