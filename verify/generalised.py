"""Generalise cases: what the sides read at one position of the result becomes a tensor of one element.

At a fixed position of the result, a read of a tensor or of an inner scope is one number. Sides that are equal for all values of these
numbers are equal at every position, whatever the ranks and sizes of the operands. Cases that differ only in how operands are broadcast
have one generalisation, so that one proof serves them all. A generalisation that is not proved says nothing about its case.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from egraph.tensor.expr.bodies import indices_of, mapped, reads_of, rebuilt, walked, with_reads
from egraph.tensor.expr.index import DataIndex, Index, Iterator, RealSymbol, Size, Symbol, index, substitute
from egraph.tensor.expr.laws import iterators_of
from egraph.tensor.expr.scope import ZERO, Apply, Guarded, IndexNumber, Number, Read, Scalar, Scope, Tensor
from verify.assumptions import Assumptions
from verify.cases import Case
from verify.definedness import SPREADING, has_nan, is_partial

Elements = dict[Read | Number, Read]
"""The reads of one element that stand for reads and constants."""


def generalised(case: Case) -> Case | None:
    """Return the case of any numbers in place of the reads; None if there is none, or if it is the case itself.

    The sides reduce only in inner scopes, and read the same elements of the same tensors and inner scopes. An inner scope may be undefined
    somewhere; then both sides are.
    """
    if any(map(has_nan, (*case.left, *case.right))):
        return None
    elements: Elements = {}
    lefts: list[Scope] = []
    rights: list[Scope] = []
    for left, right in zip(case.left, case.right, strict=True):
        bodies = _at_one_position(left, right, case.assumptions)
        if bodies is None or not _same_elements(*bodies):
            return None
        numbers = all(isinstance(part, Guarded | Read | Number) for body in bodies for part in walked(body))
        first, second = (_of_elements(body, elements, numbers=numbers) for body in bodies)
        values = [*indices_of(first), *indices_of(second)]
        if any(isinstance(atom, DataIndex) for value in values for atom in value.atoms):
            return None
        positions = iterators_of(*values)
        traversal = tuple(iterator for iterator in left.traversal if iterator in positions)
        if len(traversal) < len(positions):
            return None
        lefts.append(_without_border(Scope.pointwise(traversal, first)))
        rights.append(_without_border(Scope.pointwise(traversal, second)))
    if tuple(lefts) == case.left and tuple(rights) == case.right:
        return None
    return replace(case, assumptions=_about((*lefts, *rights), case.assumptions), left=tuple(lefts), right=tuple(rights))


def _at_one_position(left: Scope, right: Scope, assumptions: Assumptions) -> tuple[Scalar, Scalar] | None:
    """Return both bodies at the position of the left side, which is 0 along axes of size 1; None if a side reduces or shapes may differ."""
    if left.summation or right.summation or len(left.traversal) != len(right.traversal):
        return None
    if not all(index(a) == index(b) or assumptions.equal(a, b) for a, b in zip(left.shape, right.shape, strict=True)):
        return None
    position = list(map(_position, left.traversal))
    return _moved(left.body, left.traversal, position), _moved(right.body, right.traversal, position)


def _position(iterator: Iterator) -> Index:
    """Return the generic position of an iterator: its only value if it has one."""
    low, high = index(iterator.low), index(iterator.high)
    return low if (high - low).constant == 1 else index(iterator)


def _moved(body: Scalar, iterators: Sequence[Iterator], values: Sequence[Index]) -> Scalar:
    """Return a body with iterators replaced, and with the iterators of inner scopes named in order."""
    replaced = {iterator: value for iterator, value in zip(iterators, values, strict=True) if value.atom is not iterator}
    return with_reads(mapped(body, lambda value: substitute(value, replaced)) if replaced else body, _with_named_scope)


def _with_named_scope(read: Read) -> Read:
    return Read(_named(read.source), read.indices) if isinstance(read.source, Scope) else read


@lru_cache(maxsize=1 << 10)
def _named(scope: Scope) -> Scope:
    """Return an inner scope with its iterators named in order, so that scopes that differ only in names are equal."""
    traversal = tuple(Iterator(f"t{axis}", 0, iterator.high) for axis, iterator in enumerate(scope.traversal))
    outer = dict(zip(scope.traversal, map(index, traversal), strict=True))
    summation = tuple(
        Iterator(f"k{number}", substitute(reduced.low, outer), substitute(reduced.high, outer))
        for number, reduced in enumerate(scope.summation)
    )
    body = _moved(scope.body, (*scope.traversal, *scope.summation), list(map(_position, (*traversal, *summation))))
    return Scope(traversal, summation, scope.reduction, body)


def _same_elements(left: Scalar, right: Scalar) -> bool:
    """Return whether the right body reads no other tensor elements than the left one, and the same inner scopes, used unconditionally."""
    reads, twins = set(reads_of(left)), set(reads_of(right))
    inner, inner_twins = ({read for read in each if isinstance(read.source, Scope)} for each in (reads, twins))
    is_strict = not inner or all(_is_strict(part) for body in (left, right) for part in walked(body))
    return is_strict and twins <= reads and inner == inner_twins


def _is_strict(body: Scalar) -> bool:
    """Return whether a scalar is undefined wherever a part of it is."""
    return not isinstance(body, Guarded) and (not isinstance(body, Apply) or body.function in SPREADING)


def _of_elements(body: Scalar, elements: Elements, *, numbers: bool) -> Scalar:
    """Return a body with a tensor of one element for each different read.

    ``numbers``: also for each constant. A body that computes nothing chooses a read or a constant, whatever their values.
    """
    if isinstance(body, Read) or (numbers and isinstance(body, Number)):
        if body not in elements:
            dtype = body.source.dtype if isinstance(body, Read) and isinstance(body.source, Tensor) else "float32"
            elements[body] = Read(Tensor(f"element {len(elements)}", (), dtype), ())
        return elements[body]
    return rebuilt(body, lambda part: _of_elements(part, elements, numbers=numbers))


def _without_border(side: Scope) -> Scope:
    """if c then x else b = b + (if c then x - b else 0), if all alternatives are one number b.

    Nested conditions of a border then make one term, while their negations would make a term each.
    """
    borders = {part.otherwise for part in walked(side.body) if isinstance(part, Guarded)}
    if len(borders) != 1 or not isinstance(border := next(iter(borders)), Read | Number | IndexNumber):
        return side
    return side if border == ZERO or is_partial(side) else side.with_body(_added(side.body, border))


def _added(body: Scalar, border: Scalar) -> Scalar:
    """Return a body with the border added outside its conditions."""
    if isinstance(body, Guarded):
        return Apply("add", (border, _less(body, border)))
    return rebuilt(body, lambda part: _added(part, border))


def _less(body: Scalar, border: Scalar) -> Scalar:
    """Return a body less the border, subtracted inside its conditions."""
    if isinstance(body, Guarded):
        return Guarded(body.conditions, _less(body.then, border), ZERO)
    return Apply("sub", (_added(body, border), border))


def _about(sides: Sequence[Scope], assumptions: Assumptions) -> Assumptions:
    """Return the assumptions about the symbols of some scopes alone."""
    symbols = _symbols(value for side in sides for value in (*side.shape, *indices_of(side.body)))
    if not symbols:
        return Assumptions()
    stated = ((condition, _symbols((condition.left, condition.right))) for condition in assumptions.conditions)
    return Assumptions().assume(*(condition for condition, named in stated if named and named <= symbols))


def _symbols(values: Iterable[Size]) -> set[Symbol | RealSymbol]:
    """Return the unknowns of some values, and those of the ranges of their iterators."""
    symbols: set[Symbol | RealSymbol] = set()
    pending = [index(value) for value in values]
    while pending:
        for atom in pending.pop().atoms:
            if isinstance(atom, Symbol | RealSymbol):
                symbols.add(atom)
            elif isinstance(atom, Iterator):
                pending += [index(atom.low), index(atom.high)]
    return symbols
