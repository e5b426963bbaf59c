"""Targets of derivations, and the distance of a scope from one: conflicts of iterators with its iterator mapping table.

An index of an operand conflicts if its iterators are not digits of one position (``h + r``), unless the target slides a window
there. A guard conflicts if it does not bound one index. The distance counts the iterators in conflict.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from egraph.derive.matching.conditions import bounds_index
from egraph.derive.rules.bodies import every
from egraph.derive.trees import Contraction
from egraph.tensor.expr.conditions import tightest
from egraph.tensor.expr.index import Index, Iterator, index, length
from egraph.tensor.expr.laws import affine, iterators_of
from egraph.tensor.expr.scope import Compare, Read


@dataclass(frozen=True, slots=True)
class Target:
    """A target of derivations: an operator, whether windows slide along its axes, and what coefficients and sizes they may have.

    With ``smaller``, windows are to be smaller than the operator's. Windows of its size are found first; ``taps`` then bounds the others.
    """

    name: str
    operator: str
    windows: bool
    unit: bool = True
    smaller: bool = False
    taps: int | None = None


@dataclass(frozen=True, slots=True)
class Conflict:
    """An obstacle to the target: an index of an operand or a guard, with its iterators; a surplus operand (``operand`` -1, no index); or
    an iterator that occurs in one tensor alone (``operand`` -1, the iterator as index).
    """

    operand: int
    coordinate: Index | None
    condition: Compare | None
    iterators: frozenset[Iterator]


PRODUCT = Target("product", "MatMul", windows=False)
WINDOW = Target("window", "Conv", windows=True)
SMALL_WINDOW = Target("small window", "Conv", windows=True, smaller=True)
BAND = Target("band", "Expression", windows=True)
TARGETS = (PRODUCT, WINDOW, SMALL_WINDOW, BAND)


def conflicts(contraction: Contraction, target: Target) -> tuple[Conflict, ...]:
    """Return the conflicts of a contraction with the target, those of the first operand first."""
    conflicting = [Conflict(-1, None, None, frozenset()) for _ in contraction.operands[2:]]
    for position, operand in enumerate(contraction.operands):
        if not isinstance(operand, Read):
            conflicting.append(Conflict(position, None, None, frozenset(i for i in contraction.scope.summation)))
            continue
        seen: set[Iterator] = set()
        for coordinate in operand.indices:
            iterators = iterators_of(coordinate)
            shared = iterators & seen
            seen |= iterators
            if shared or not (is_digits(coordinate) or (target.windows and _is_window(contraction, coordinate, target))):
                conflicting.append(Conflict(position, coordinate, None, iterators))
    conflicting += [Conflict(-1, None, c, iterators_of(c.left, c.right)) for c in _loose(contraction)]
    conflicting += [Conflict(-1, index(i), None, frozenset({i})) for i in every(contraction.scope) if not _has_group(contraction, i)]
    return tuple(conflicting)


def onward(contractions: Sequence[Contraction], target: Target) -> Target | None:
    """Return the next target for contractions without conflicts: windows at most half as long as their longest.

    No other sizes are needed below a window: blocks of more than half of its taps are two, and two halves have the fewest taps of these.
    None if the target asks for no smaller windows, or if half a window is one tap and therefore no window.
    """
    if not target.smaller or target.taps is not None:
        return None
    longest = max((length(tap) for contraction in contractions for tap in _taps(contraction)), default=0)
    return replace(target, taps=-(-longest // 2)) if longest > 2 else None


def _taps(contraction: Contraction) -> Iterable[Iterator]:
    """Yield the iterators that are summed along the windows of a contraction."""
    for operand in contraction.operands:
        for coordinate in operand.indices if isinstance(operand, Read) else ():
            if not is_digits(coordinate):
                yield from iterators_of(coordinate) & frozenset(contraction.scope.summation)


def block_sizes(taps: int, most: int) -> tuple[int, ...]:
    """Return the block sizes that a window may be cut into, largest first: the least size for each number of blocks.

    For the same number of blocks, smaller blocks have fewer zero taps, and a fast algorithm for them has fewer products.
    """
    sizes = {-(-taps // blocks) for blocks in range(2, taps)}
    return tuple(size for size in sorted(sizes, reverse=True) if 2 <= size <= most)


def _has_group(contraction: Contraction, iterator: Iterator) -> bool:
    """Return whether the targets have iterators that occur in these tensors: a sum goes over both operands, an output reads one."""
    return length(iterator) == 1 or sum(contraction.group(iterator)) >= 2


def distance(contraction: Contraction, target: Target) -> int:
    """Return the number of iterators in conflict."""
    return sum(max(1, len(c.iterators)) for c in conflicts(contraction, target))


def is_digits(coordinate: Index) -> bool:
    """Return whether the iterators of an index are digits of a mixed-radix number: c1 > c2 > ..., each dividing the one before."""
    parts = affine(coordinate)
    if parts is None:
        return False
    terms = sorted(((abs(c), length(i)) for i, c in parts[1].items()), reverse=True)
    return all(upper % lower == 0 and count * lower <= upper for (upper, _), (lower, count) in pairwise(terms))


def _is_window(contraction: Contraction, coordinate: Index, target: Target) -> bool:
    parts = affine(coordinate)
    if parts is None or len(parts[1]) != 2:
        return False
    if target.unit and any(abs(c) != 1 for c in parts[1].values()):
        return False
    if target is BAND:
        return True
    groups = {i: contraction.group(i) for i in parts[1]}
    outputs = [i for i, g in groups.items() if g[-1] and sum(g) == 2]
    taps = [i for i, g in groups.items() if not g[-1] and sum(g) == 2]
    if len(outputs) != 1 or len(taps) != 1 or min(parts[1].values()) < 1:
        return False
    return target.taps is None or length(taps[0]) <= target.taps


def _loose(contraction: Contraction) -> tuple[Compare, ...]:
    """Return the guards that do not bound one index of an operand."""
    coordinates = [p for o in contraction.operands if isinstance(o, Read) for p in map(affine, o.indices) if p is not None and p[1]]
    normal = tightest(contraction.conditions)
    return tuple(c for c in normal or () if not any(bounds_index(p, c) for p in coordinates))
