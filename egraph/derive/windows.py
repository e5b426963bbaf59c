"""Windows along an axis: other iterators leave the index, taps run forwards, large windows become blocks of small ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from egraph.derive.digits import split
from egraph.derive.rules.bodies import Refusal, pulled
from egraph.derive.rules.boundary import tighten
from egraph.derive.rules.expressions import split_values
from egraph.derive.rules.indices import substitute_indices
from egraph.derive.rules.instances import instantiate
from egraph.derive.rules.substitution import reverse, skew
from egraph.derive.rules.summation import split_summation
from egraph.derive.targets import Target, block_sizes, is_digits
from egraph.derive.trees import Contraction, innermost, with_sources, within
from egraph.tensor.expr.bodies import reads_of
from egraph.tensor.expr.index import Index, Iterator, length
from egraph.tensor.expr.laws import iterators_of
from egraph.tensor.expr.scope import Read, Scalar, Scope

MOST_PHASES = 16
"""The most values of an iterator for which each value becomes a scope of its own."""


def windows(
    contraction: Contraction, operand: Scalar, coordinates: Sequence[Index], target: Target
) -> Iterable[tuple[str, Scope | Refusal]]:
    candidates = [_slide(contraction, p) for p in coordinates]
    slides = [s for s in candidates if s is not None]
    data = data_of(contraction)
    if data is not None and data is not operand:
        yield "instantiation", instantiate(contraction.scope, operand)
        return
    if any(slide.offset.terms for slide in slides):
        yield "skewed taps", _skewed(contraction.scope, slides)
        phases = [i for slide in slides for i in contraction.scope.traversal if i in iterators_of(slide.offset)]
        if phases and prod(map(length, dict.fromkeys(phases))) <= MOST_PHASES:
            yield "expression splitting", _phases(contraction.scope, tuple(dict.fromkeys(phases)))
    elif any(slide.backward for slide in slides):
        yield "reversed taps", _reversed(contraction.scope, [slide.tap for slide in slides if slide.backward])
        return
    slide = candidates[0]
    if target.taps is not None and slide is not None and not slide.offset.terms and slide.unit:
        for size in block_sizes(length(slide.tap), target.taps):
            yield f"taps by {size}", blocks_of_taps(contraction.scope, slide.tap, size, coordinates[0])


def data_of(contraction: Contraction) -> Scalar | None:
    """Return the operand along which windows slide, the one with the longest window; the other operand is the weight."""
    distances: list[tuple[int, int]] = []
    for position, operand in enumerate(contraction.operands):
        slides = [_slide(contraction, p) for p in operand.indices if not is_digits(p)] if isinstance(operand, Read) else []
        lengths = [slide.distance for slide in slides if slide is not None]
        if lengths:
            distances.append((max(lengths), -position))
    return contraction.operands[-max(distances)[1]] if distances else None


@dataclass(frozen=True, slots=True)
class Slide:
    """An index as a window: the tap that moves it, the distance covered, and how far other iterators move it in the tap's direction."""

    tap: Iterator
    distance: int
    offset: Index
    unit: bool
    backward: bool


def _slide(contraction: Contraction, coordinate: Index) -> Slide | None:
    linear = {m[0]: c for m, c in coordinate.terms if len(m) == 1 and isinstance(m[0], Iterator)}
    groups = {i: contraction.group(i) for i in linear if isinstance(i, Iterator)}
    outputs = sorted((i for i, g in groups.items() if g[-1] and sum(g) == 2), key=lambda i: (-length(i), i.name))[:1]
    taps = [i for i in contraction.scope.summation if abs(linear.get(i, 0)) == 1][:1]
    if not outputs or not taps:
        return None
    offset = Index(tuple((m, c) for m, c in coordinate.terms if m and m not in ((outputs[0],), (taps[0],)))) * linear[taps[0]]
    if taps[0] in iterators_of(offset):
        return None
    return Slide(taps[0], length(outputs[0]), offset, all(abs(c) == 1 for c in linear.values()), linear[taps[0]] < 0)


def _skewed(scope: Scope, slides: Sequence[Slide]) -> Scope | Refusal:
    """Move taps along with the iterators that do not belong to their window, so that these leave the index."""
    result: Scope | Refusal = scope
    for slide in slides:
        if slide.offset.terms and isinstance(result, Scope):
            result = skew(result, slide.tap, slide.offset)
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

    def below(source: Scope) -> Scope:
        inner = _phases(source, iterators[1:])
        return source if isinstance(inner, Refusal) else inner

    return first.with_body(with_sources(first.body, below))


def blocks_of_taps(scope: Scope, tap: Iterator, size: int, coordinate: Index) -> Scope | Refusal:
    """{h} sum(r) x[h + r] w[r]  =  {h} sum(q) {y, q: sum(t < size) x[y + t] w[size q + t]}[h + size q, q]"""
    if length(tap) <= size:
        return Refusal("the window is no larger")
    before = {i.name for i in scope.summation}
    divided = split(scope, tap, size)
    if isinstance(divided, Refusal):
        return divided
    blocks = [i for i in divided.summation if (i.name not in before and length(i) != size) or i.name == f"{tap.name}_0"]
    outside = split_summation(divided, blocks[:1])
    if isinstance(outside, Refusal):
        return outside
    tap_free = next(p for p in _places(divided) if blocks[0] in iterators_of(p) and iterators_of(p) & iterators_of(coordinate))
    reduced = frozenset(divided.summation) - {blocks[0]}
    moving = sum((Index((t,)) for t in tap_free.terms if t[0] and not iterators_of(Index((t,))) & reduced), Index(()))
    result = within(outside, lambda inner: substitute_indices(inner, [moving]))
    return result if isinstance(result, Refusal) else innermost(result, _tightened)


def _places(scope: Scope) -> Iterable[Index]:
    for read in reads_of(pulled(scope.body, scope.reduction)[1]):
        yield from read.indices


def narrowed(scope: Scope) -> Scope:
    """Drop the terms at the ends of the sums that guards make zero."""
    for iterator in scope.summation:
        result = tighten(scope, iterator)
        if isinstance(result, Scope):
            return narrowed(result)
    return scope


def _tightened(scope: Scope) -> Scope:
    """Drop the positions at the ends of the traversal that guards make zero."""
    for iterator in scope.traversal:
        result = tighten(scope, iterator)
        if isinstance(result, Scope):
            tighter = within(result, _tightened)
            return tighter if isinstance(tighter, Scope) else result
    return scope
