"""Conditions of guards in one form, ``0 <= e`` or ``0 == e``, and their bounds of one iterator or of one axis of a read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from egraph.tensor.expr.conditions import bound_of, tightest
from egraph.tensor.expr.index import Iterator, known
from egraph.tensor.expr.laws import Affine, affine
from egraph.tensor.expr.scope import Compare, Guarded, Scalar

Condition = Compare


@dataclass(frozen=True, slots=True)
class Interval:
    """low <= index < high"""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Piece:
    """The alternative of a choice for low <= iterator < high."""

    low: int
    high: int
    value: Scalar


def pieces_of(choice: Guarded) -> tuple[Iterator, tuple[Piece, ...]] | None:
    """Return a choice as pieces by ranges of one iterator, from the first position to the last; equal neighbours become one piece."""
    iterator: Iterator | None = None
    left: list[tuple[int, int]] = []
    pieces: list[Piece] = []
    body: Scalar = choice
    while isinstance(body, Guarded):
        conditions = tightest(body.conditions)
        if conditions is None:
            body = body.otherwise
            continue
        limits = [bound_of(condition) for condition in conditions]
        names = {None if limit is None else limit.iterator for limit in limits} | ({iterator} if iterator else set())
        if len(names) != 1 or None in names:
            break
        (iterator,) = names
        assert iterator is not None
        first, last = known(iterator.low), known(iterator.high)
        left = left if iterator and (left or pieces) else [(first, last)]
        low = max((limit.low for limit in limits if limit), default=first)
        high = min((limit.high for limit in limits if limit), default=last)
        pieces += [Piece(max(a, low), min(b, high), body.then) for a, b in left if max(a, low) < min(b, high)]
        left = [(a, b) for start, end in left for a, b in ((start, min(end, low)), (max(start, high), end)) if a < b]
        body = body.otherwise
    if iterator is None:
        return None
    merged: list[Piece] = []
    for piece in sorted([*pieces, *(Piece(a, b, body) for a, b in left)], key=lambda piece: piece.low):
        if merged and merged[-1].value == piece.value:
            piece = Piece(merged.pop().low, piece.high, piece.value)
        merged.append(piece)
    return iterator, tuple(merged)


def interval(coordinate: Affine, size: int, conditions: Sequence[Condition]) -> Interval:
    """Return the range that a read covers along one axis by the conditions on that very index, within the tensor.

    If an index takes only some positions, several borders are equivalent; the tensor's own border is preferred.
    """
    low, high = 0, size
    for condition in conditions:
        limits = _limits(coordinate, condition)
        if limits is None:
            continue
        (least, most), step = limits, math.gcd(*coordinate[1].values())
        if least is not None:
            low = max(low, min(max(least - step + 1, 0), least))
        if most is not None:
            high = min(high, max(min(most + step, size), most + 1))
    return Interval(low, high)


def bounds_index(coordinate: Affine, condition: Condition) -> bool:
    """Return whether a condition bounds this very index."""
    return _limits(coordinate, condition) is not None


def _limits(coordinate: Affine, condition: Condition) -> tuple[int | None, int | None] | None:
    """Return the least and the greatest position: with place = q L + k, 0 <= p L + c bounds L by p's sign."""
    parts = affine(condition.right)
    if parts is None or condition.operator not in ("<=", "==") or not coordinate[1] or set(parts[1]) != set(coordinate[1]):
        return None
    q = math.gcd(*coordinate[1].values())
    linear = {i: c // q for i, c in coordinate[1].items()}
    first = next(iter(linear))
    p, remainder = divmod(parts[1][first], linear[first])
    if remainder or any(parts[1][i] != p * c for i, c in linear.items()):
        return None
    least = coordinate[0] + q * -(parts[0] // p) if p > 0 else None
    most = coordinate[0] + q * (parts[0] // -p) if p < 0 else None
    if condition.operator == "==":
        value, remainder = divmod(-parts[0], p)
        return None if remainder else (coordinate[0] + q * value, coordinate[0] + q * value)
    return least, most
