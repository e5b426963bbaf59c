"""Repairs of conflicts: rules, composed, that bring a contraction nearer to its target. Each yields the rule's name and the new scope."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Iterator as Iterable
from dataclasses import dataclass
from itertools import combinations
from math import gcd, prod

from egraph.derive.matching.laws import affine
from egraph.derive.matching.table import reads_of
from egraph.derive.rules.bodies import Refusal, iterators_in, length, product, pulled, used, where
from egraph.derive.rules.boundary import relax, tighten
from egraph.derive.rules.expressions import split_values
from egraph.derive.rules.instances import instantiate, substitute_indices, sum_within, without_axis
from egraph.derive.rules.substitution import reverse, skew, solve, split_iterator
from egraph.derive.rules.summation import guards_outward, inner_read, split_summation
from egraph.derive.targets import Conflict, Target, conflicts, is_digits
from egraph.derive.trees import Contraction, contraction_of
from egraph.expr.index import Floor, Index, Iterator, Modulo, atoms, index
from egraph.expr.printing import format_scalar
from egraph.expr.scope import Apply, Guarded, Read, Scalar, Scope

Repaired = tuple[str, Scope]
MOST_PHASES = 16
"""Values of an iterator that become scopes of their own at most."""


def repairs(contraction: Contraction, conflict: Conflict, target: Target) -> Iterable[Repaired]:
    """Yield the ways out of one conflict."""
    for name, result in _ways(contraction, conflict, target):
        if isinstance(result, Scope):
            yield name, result


def _ways(contraction: Contraction, conflict: Conflict, target: Target) -> Iterable[tuple[str, Scope | Refusal]]:
    scope, place = contraction.scope, conflict.place
    if conflict.operand < 0 and place is not None:
        for iterator in conflict.iterators:
            yield "summation of one factor", sum_within(scope, iterator)
            yield "traversal merging", without_axis(scope, iterator)
        return
    if conflict.operand < 0 and conflict.condition is None:
        for one, other in combinations(contraction.operands, 2):
            yield f"instantiation of the product of {_noun(one)} and {_noun(other)}", together(contraction, one, other)
        return
    if conflict.operand < 0:
        yield "guards outward", guards_outward(scope)
        for operand in contraction.operands:
            if conflict.iterators <= used(operand):
                yield "instantiation", instantiate(scope, operand)
        return
    operand = contraction.operands[conflict.operand]
    if place is None:
        yield "instantiation", instantiate(scope, operand)
        return
    places = [c.place for c in conflicts(contraction, target) if c.operand == conflict.operand and c.place is not None]
    for factor in _factors(place):
        yield f"digits of {factor}", digits(contraction, conflict.operand, places, factor)
    summed = [i for i in scope.summation if i in conflict.iterators]
    if target.windows:
        yield from _windows(contraction, operand, places, target)
    else:
        yield "instantiation", instantiate(scope, operand)
        if summed:
            yield "summation splitting and substitution", outward(scope, summed, place)


def _noun(operand: Scalar) -> str:
    return format_scalar(operand)


def together(contraction: Contraction, one: Scalar, other: Scalar) -> Scope | Refusal:
    """a * b * c  =  {x: a * b}[x] * c"""
    scope, part = contraction.scope, Apply("mul", (one, other))
    rest = [o for o in contraction.operands if o is not one and o is not other]
    body = where(contraction.conditions, product((part, *rest)), "sum")
    return instantiate(Scope(scope.traversal, scope.summation, "sum", body), part)


def _factors(place: Index) -> tuple[int, ...]:
    """Return the numbers whose digits an index mixes: divisors, and coefficients above 1."""
    divisors = {a.divisor.constant for a in atoms(place) if isinstance(a, Floor | Modulo)}
    if not divisors:
        parts = affine(place)
        divisors = {abs(c) for c in parts[1].values()} if parts is not None else set()
    return tuple(sorted(d for d in divisors if d is not None and d > 1))


def outward(scope: Scope, summed: list[Iterator], place: Index) -> Scope | Refusal:
    """{t} sum(o, i) body(e(t, o))  =  {t} sum(o) [g ? {y, ...: sum(i) body(y)}[e(t, o), ...] : 0]: every product of a tap once"""
    outside = split_summation(scope, summed)
    return outside if isinstance(outside, Refusal) else within(outside, lambda inner: substitute_indices(inner, [place]))


def within(outside: Scope, change: Callable[[Scope], Scope | Refusal]) -> Scope | Refusal:
    """Apply a rule to the scope that ``outside`` reads, alone or under guards."""
    found = inner_read(outside)
    if found is None:
        return change(outside)
    result = change(found[0])
    if isinstance(result, Refusal):
        return result
    read = Read(result, found[1])
    body = Guarded(outside.body.conditions, read, outside.body.otherwise) if isinstance(outside.body, Guarded) else read
    return Scope(outside.traversal, outside.summation, outside.reduction, body)


def innermost(outside: Scope, change: Callable[[Scope], Scope | Refusal]) -> Scope | Refusal:
    """Apply a rule to the scope below all layers that only read."""
    found = inner_read(outside)
    return change(outside) if found is None else within(outside, lambda inner: innermost(inner, change))


def bottom(scope: Scope) -> Scope:
    """Return the scope below all layers that only read."""
    found = inner_read(scope)
    return scope if found is None else bottom(found[0])


def digits(contraction: Contraction, position: int, places: Sequence[Index], factor: int) -> Scope | Refusal:
    """Split iterators into digits of ``factor`` until the indices are ``factor q + p``, solve for the digits that guards determine,
    and let the operand be read at (q, p): space to depth for strides, a batch for dilations, phases for divisions.
    """
    result: Scope | Refusal = contraction.scope
    for iterator, by in _to_split(places, factor):
        if isinstance(result, Refusal):
            return result
        result = innermost(result, lambda inner, i=iterator, f=by: split(inner, i, f))  # type: ignore[misc]
    if isinstance(result, Refusal):
        return result
    result = _solved(result)
    affected = all(affine(place) is not None for place in places)
    return innermost(result, lambda inner: _at_quotients(inner, position, factor)) if affected else result


def _to_split(places: Sequence[Index], factor: int) -> list[tuple[Iterator, int]]:
    """Return the iterators that count below ``factor`` and above it, and the size of their low digits."""
    divided = [a.numerator for p in places for a in atoms(p) if isinstance(a, Floor | Modulo) and a.divisor.constant == factor]
    found: dict[Iterator, int] = {}
    for value in divided or [p for p in places if factor in _factors(p)]:
        parts = affine(value)
        for iterator, coefficient in parts[1].items() if parts is not None else ():
            by = factor // gcd(factor, coefficient)
            if by > 1 and length(iterator) > by:
                found[iterator] = by
    return sorted(found.items(), key=lambda item: item[0].name)


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


def _solved(scope: Scope) -> Scope:
    """Solve for every summation iterator that a guard determines."""
    found = inner_read(scope)
    if found is not None:
        changed = within(scope, _solved)
        return changed if isinstance(changed, Scope) else scope
    for iterator in scope.summation:
        result = solve(scope, iterator)
        if isinstance(result, Scope):
            return _solved(result)
    return scope


def _at_quotients(scope: Scope, position: int, factor: int) -> Scope | Refusal:
    """Let an operand be read at the quotients of the indices that are ``factor q + p`` with a q of several iterators.

    Where another index mixes iterators, the instance is padded along it and read at that index.
    """
    contraction = contraction_of(scope)
    if contraction is None:
        return scope
    operand = contraction.operands[position]
    if not isinstance(operand, Read):
        return Refusal("the operand is no read")
    parts: list[Index] = []
    for place in operand.indices:
        found = affine(place)
        above = {i: c // factor for i, c in found[1].items() if c % factor == 0} if found is not None else {}
        if len(above) > 1:
            parts.append(sum((index(i) * c for i, c in above.items()), Index(())))
        elif not is_digits(place):
            parts.append(place)
    return instantiate(scope, operand, parts) if parts else Refusal("no index has a quotient of several iterators")


def _windows(contraction: Contraction, operand: Scalar, places: Sequence[Index], target: Target) -> Iterable[tuple[str, Scope | Refusal]]:
    found = [_slide(contraction, p) for p in places]
    slides = [s for s in found if s is not None]
    data = data_of(contraction)
    if data is not None and data is not operand:
        yield "instantiation", instantiate(contraction.scope, operand)
        return
    if any(slide.others.terms for slide in slides):
        yield "skewed taps", _skewed(contraction.scope, slides)
        phases = [i for slide in slides for i in contraction.scope.traversal if i in iterators_in(slide.others)]
        if phases and prod(map(length, dict.fromkeys(phases))) <= MOST_PHASES:
            yield "expression splitting", _phases(contraction.scope, tuple(dict.fromkeys(phases)))
    elif any(slide.backward for slide in slides):
        yield "reversed taps", _reversed(contraction.scope, [slide.tap for slide in slides if slide.backward])
        return
    slide = found[0]
    if target.taps is not None and slide is not None and not slide.others.terms and slide.unit:
        for size in range(target.taps, 1, -1):
            yield f"taps by {size}", blocks_of_taps(contraction.scope, slide.tap, size, places[0])


def data_of(contraction: Contraction) -> Scalar | None:
    """Return the operand along which windows slide, that with the longest way; the other is the weight."""
    ways: list[tuple[int, int]] = []
    for position, operand in enumerate(contraction.operands):
        slides = [_slide(contraction, p) for p in operand.indices if not is_digits(p)] if isinstance(operand, Read) else []
        lengths = [slide.way for slide in slides if slide is not None]
        if lengths:
            ways.append((max(lengths), -position))
    return contraction.operands[-max(ways)[1]] if ways else None


@dataclass(frozen=True, slots=True)
class Slide:
    """An index as a window: the tap that moves it, the length of the way, and how far other iterators move it in the tap's direction."""

    tap: Iterator
    way: int
    others: Index
    unit: bool
    backward: bool


def _slide(contraction: Contraction, place: Index) -> Slide | None:
    linear = {m[0]: c for m, c in place.terms if len(m) == 1 and isinstance(m[0], Iterator)}
    groups = {i: contraction.group(i) for i in linear if isinstance(i, Iterator)}
    outputs = sorted((i for i, g in groups.items() if g[-1] and sum(g) == 2), key=lambda i: (-length(i), i.name))[:1]
    taps = [i for i in contraction.scope.summation if abs(linear.get(i, 0)) == 1][:1]
    if not outputs or not taps:
        return None
    others = Index(tuple((m, c) for m, c in place.terms if m and m not in ((outputs[0],), (taps[0],)))) * linear[taps[0]]
    if taps[0] in iterators_in(others):
        return None
    return Slide(taps[0], length(outputs[0]), others, all(abs(c) == 1 for c in linear.values()), linear[taps[0]] < 0)


def _skewed(scope: Scope, slides: Sequence[Slide]) -> Scope | Refusal:
    """Let taps move along with the iterators that do not belong to their window, so that these leave the index."""
    result: Scope | Refusal = scope
    for slide in slides:
        if slide.others.terms and isinstance(result, Scope):
            result = skew(result, slide.tap, slide.others)
    return result


def _reversed(scope: Scope, taps: Sequence[Iterator]) -> Scope | Refusal:
    """r = n - 1 - r'"""
    result: Scope | Refusal = scope
    for tap in taps:
        if isinstance(result, Scope):
            result = reverse(result, tap)
    return result


def _phases(scope: Scope, iterators: Sequence[Iterator]) -> Scope | Refusal:
    """{p, q} body  =  [p == 0 ? [q == 0 ? {body at 0, 0} : ...] : ...]"""
    if not iterators:
        return narrowed(scope)
    first = split_values(scope, iterators[0])
    if isinstance(first, Refusal):
        return first

    def below(body: Scalar) -> Scalar:
        match body:
            case Guarded(conditions, then, otherwise):
                return Guarded(conditions, below(then), below(otherwise))
            case Read(Scope() as source, indices):
                inner = _phases(source, iterators[1:])
                return body if isinstance(inner, Refusal) else Read(inner, indices)
        return body

    return Scope(first.traversal, first.summation, first.reduction, below(first.body))


def blocks_of_taps(scope: Scope, tap: Iterator, size: int, place: Index) -> Scope | Refusal:
    """{h} sum(r) x[h + r] w[r]  =  {h} sum(q) {y, q: sum(t < size) x[y + t] w[size q + t]}[h + size q, q]"""
    if length(tap) <= size:
        return Refusal("the window is no larger")
    before = {i.name for i in scope.summation}
    taken = split(scope, tap, size)
    if isinstance(taken, Refusal):
        return taken
    blocks = [i for i in taken.summation if (i.name not in before and length(i) != size) or i.name == f"{tap.name}_0"]
    outside = split_summation(taken, blocks[:1])
    if isinstance(outside, Refusal):
        return outside
    tap_free = next(p for p in _places(taken) if blocks[0] in iterators_in(p) and iterators_in(p) & iterators_in(place))
    reduced = frozenset(taken.summation) - {blocks[0]}
    moving = sum((Index((t,)) for t in tap_free.terms if t[0] and not iterators_in(Index((t,))) & reduced), Index(()))
    result = within(outside, lambda inner: substitute_indices(inner, [moving]))
    return result if isinstance(result, Refusal) else innermost(result, _tightened)


def _places(scope: Scope) -> Iterable[Index]:
    for read in reads_of(pulled(scope.body, scope.reduction)[1]):
        yield from read.indices


def narrowed(scope: Scope) -> Scope:
    """Leave out what guards make zero at the ends of the sums."""
    for iterator in scope.summation:
        result = tighten(scope, iterator)
        if isinstance(result, Scope):
            return narrowed(result)
    return scope


def _tightened(scope: Scope) -> Scope:
    """Leave out what guards make zero at the ends of the traversal."""
    for iterator in scope.traversal:
        result = tighten(scope, iterator)
        if isinstance(result, Scope):
            again = within(result, _tightened)
            return again if isinstance(again, Scope) else result
    return scope

