"""Where two tensors differ, as data: the guards of the terms that find no partner, projected onto the output's positions.

The unpaired terms of left minus right are zero outside the boxes, so the sides are proved equal there. Inside the boxes they may
still agree if terms cancel in a way that pairing does not detect; values in a prime field show whether they do.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from egraph.tensor.boxes import MOST_CELLS, Box, Mask, boxes_of, cells, describe_boxes, restricted
from egraph.tensor.expr.index import Iterator, index
from egraph.tensor.expr.scope import Apply, Guarded, Read, Scalar, Scope
from verify.assumptions import Assumptions
from verify.budget import Exhausted, at_most, spend
from verify.equality import residues
from verify.facts import Facts
from verify.forms import Summand
from verify.literals import Literal0, closure
from verify.named_arrays import PRIME, Algebra, Untestable
from verify.normal.context import TooLarge
from verify.polynomials import FloorAtom, Polynomial, entry
from verify.sampling import Position, Sampler, is_rational

MOST_WORK, LITTLE_WORK = 50_000, 5_000
"""Most units of work for the boxes of one pair of programs, and for the boxes of one of many mutants."""
MOST_POINTS = 1 << 22
"""Most joint values of the iterators of a group of conditions. A larger group is ignored, which makes the boxes larger."""
POINTS_A_UNIT = 1 << 15
"""Number of conditions at points, or of terms of sums at positions, that take about as long to evaluate as one unit of work."""
MOST_SAMPLED, MOST_REFINED, MOST_TRIED = 1 << 12, 16, 1 << 14
"""Most positions that are all tried for agreement; most boxes of agreeing positions that are then proved equal; most positions of a
whole result that are tried."""
MOST_TOGETHER = 1 << 13
"""Most positions that are evaluated at once, each counted once per test."""
Values = NDArray[np.int64]


@dataclass(frozen=True)
class Disagreement:
    """The disjoint ``boxes`` outside of which two programs are equal at every position."""

    boxes: tuple[Box, ...]
    shape: tuple[int, ...]

    @property
    def cells(self) -> int:
        """Return the number of positions at which the programs may differ."""
        return cells(self.boxes)

    @property
    def is_total(self) -> bool:
        """Return whether there is no position at which the programs are known to be equal."""
        return self.cells == np.prod(self.shape, dtype=np.int64)

    @property
    def witness(self) -> tuple[int, ...] | None:
        """Return the first position of the first box."""
        return tuple(r[0] for r in self.boxes[0]) if self.boxes else None

    def describe(self, names: Sequence[str]) -> str:
        """Return ``equal except where h = 7 mod 8``, with a name for every axis."""
        return f"equal except where {describe_boxes(self.boxes, self.shape, names)}" if self.boxes else "equal everywhere"

    def to_json(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the boxes as data, with a name for every axis."""
        boxes = []
        for box in self.boxes:
            axes = zip(names, box, self.shape, strict=True)
            boxes.append({name: {"first": r[0], "last": r[-1], "step": r.step} for name, r, size in axes if r != range(size)})
        return {"sizes": list(self.shape), "witness": list(self.witness or ()), "boxes": boxes}


def disagreement(left: Scope, right: Scope, units: int = MOST_WORK) -> Disagreement | None:
    """Return where two expressions of the same known shape may differ; None if that is not decided.

    The sides may agree at such a position because reads of different indices coincide. Positions at which they are seen to agree are
    proved equal one box at a time and removed. If there are too many positions, only those at the ends of the axes are tried, and the
    positions between are guessed to behave like them.
    """
    shape = tuple(i.high for i in left.traversal if isinstance(i.high, int))
    if [i.high for i in right.traversal] != list(shape) or len(shape) != len(left.traversal) or np.prod(shape, dtype=float) > MOST_CELLS:
        return None
    try:
        with at_most(units):
            mask = _unpaired(left, right, shape)
            if mask.any():
                _refine(left, right, mask)
    except (Exhausted, TooLarge, RecursionError):
        return None
    return Disagreement(boxes_of(mask), shape)


def _refine(left: Scope, right: Scope, mask: Mask) -> None:
    """Remove from a mask the positions that agree on random operands and are proved equal, as far as the budget allows."""
    try:
        for box in _agreeing(left, right, mask):
            selection = tuple(slice(r.start, r.stop, r.step) for r in box)
            mask[selection] &= _unpaired(restricted(left, box), restricted(right, box), tuple(map(len, box)))
    except (Exhausted, TooLarge, RecursionError):
        return


def seen_to_differ(left: Scope, right: Scope) -> Mask | None:
    """Return the positions at which two expressions of known sizes are seen to differ, by trying all; None if they cannot be tried."""
    shape = tuple(i.high for i in left.traversal if isinstance(i.high, int))
    seen = differing(left, right, list(np.ndindex(*shape))) if np.prod(shape, dtype=float) <= MOST_TRIED else None
    return None if seen is None else seen.reshape(shape)


def _unpaired(left: Scope, right: Scope, shape: Sequence[int]) -> Mask:
    """Return the positions at which an unpaired term contributes, or may contribute."""
    mask = np.zeros(tuple(shape), np.bool_)
    for phases, terms in residues(left, right, Assumptions(facts=Facts(at_sizes=True))):
        axes = [slice(phases[a][1], None, phases[a][0]) if a in phases else slice(None) for a in range(len(shape))]
        part = mask[(*axes, ...)]  # a view, even without axes
        if terms is None:
            part[...] = True
        else:
            for term in terms:
                part |= _projected(term, part.shape)
    return mask


def _agreeing(left: Scope, right: Scope, mask: Mask) -> Sequence[Box]:
    """Return boxes of marked positions at which the sides are seen to agree; () if there are too many boxes."""
    are_few = np.count_nonzero(mask) <= MOST_SAMPLED
    axes = [np.arange(size) for size in mask.shape] if are_few else _ends(mask.shape)
    tried = np.atleast_1d(mask)[np.ix_(*axes)] if axes else mask
    positions = [tuple(int(axis[k]) for axis, k in zip(axes, place, strict=True)) for place in np.argwhere(tried)]
    spend(len(positions) * sum(map(_terms, (left, right))) // POINTS_A_UNIT)
    apart = differing(left, right, positions)
    if apart is None or apart.all():
        return ()
    agreeing = tried.copy()
    agreeing[tried] = ~apart
    boxes = boxes_of(agreeing if are_few else _between(agreeing, axes, mask.shape) & mask)
    return boxes if len(boxes) <= MOST_REFINED else ()


def _ends(shape: Sequence[int]) -> list[NDArray[np.intp]]:
    """Return the positions to try on every axis: the same number at the two ends of all long axes, as many as the limit allows."""
    longest = bisect_right(range(1, MOST_TRIED + 1), MOST_TRIED, key=lambda length: math.prod(min(size, length) for size in shape))
    lengths = [min(size, longest) for size in shape]
    return [np.array([*range((tried + 1) // 2), *range(size - tried // 2, size)]) for size, tried in zip(shape, lengths, strict=True)]


def _between(mask: Mask, axes: Sequence[NDArray[np.intp]], shape: Sequence[int]) -> Mask:
    """Extend a mask over ends of axes to whole axes: positions between the ends take the value of the last one of the first end."""
    for axis, (tried, size) in enumerate(zip(axes, shape, strict=True)):
        mask = mask.take(np.searchsorted(tried, np.arange(size), side="right") - 1, axis=axis)
    return mask


def _terms(side: Scope) -> int:
    """Return the number of iterator values that an expression sums over."""
    ends = [(each.low, each.high) for each in side.summation]
    return math.prod(high - low for low, high in ends if isinstance(low, int) and isinstance(high, int))


def differing(left: Scope, right: Scope, positions: Sequence[Position], tests: int = 1) -> Mask | None:
    """Return the positions at which two expressions are seen to differ on random operands in a prime field; None if the field lacks
    one of their functions.

    Marked positions differ for certain. A position that differs stays unmarked with probability at most (n/p)^tests for n reads in a
    product.
    """
    if not positions:
        return None
    apart = np.zeros(len(positions), np.bool_)
    together = max(1, MOST_TOGETHER // len(positions))
    for test in range(0, tests, together):
        seen = _apart(left, right, positions, range(test, min(tests, test + together)))
        if seen is None:
            return None
        apart |= seen
    return apart


def _apart(left: Scope, right: Scope, positions: Sequence[Position], tests: range) -> Mask | None:
    """Return the positions at which two expressions are seen to differ in any of some tests."""
    first, second = (_values(side, positions, tests) for side in (left, right))
    if first is not None and second is not None:
        seen: Mask = (first != second).reshape(len(tests), len(positions)).any(axis=0)
        return seen
    if len(tests) == 1:
        return None
    half = len(tests) // 2  # half as many at once may not be too many
    before = _apart(left, right, positions, tests[:half])
    after = None if before is None else _apart(left, right, positions, tests[half:])
    return None if before is None or after is None else before | after


def _values(side: Scope, positions: Sequence[Position], tests: range = range(1)) -> NDArray[np.float64] | None:
    """Return an expression's values at some positions, test by test, on random operands in a prime field; None if the field lacks one of
    its functions.
    """
    if not is_rational(side.body):
        return None
    output = [Iterator(f"o{axis}", 0, size) for axis, size in enumerate(side.shape)]
    columns = [np.tile(np.array(column, np.int64), len(tests)) for column in zip(*positions, strict=True)]
    numbers = None if tests == range(1) else np.repeat(np.array(tests), len(positions))
    sampler = Sampler(Algebra(True), dict(zip(output, columns, strict=True)), tests=numbers)
    try:
        with np.errstate(over="ignore"):
            values = sampler.at(side, tuple(map(index, output))).values
        return np.broadcast_to(values, len(tests) * len(positions))
    except (Untestable, MemoryError):
        return None


def error_bound(left: Scope, right: Scope, tests: int) -> float:
    """(n/p)^tests, a bound on the probability that programs with n reads in a product agree in all tests at a position where they differ.
    """
    return float((max(_degree(side.body) for side in (left, right)) / PRIME) ** tests)


def points_of(box: Box) -> tuple[Position, ...]:
    """Return a box's first position and its neighbour along every axis on which the box has one. If multilinear programs whose
    sums have the same ranges all over the box agree at these positions, they agree on the box.
    """
    first = tuple(r[0] for r in box)
    return (first, *((*first[:axis], r[1], *first[axis + 1 :]) for axis, r in enumerate(box) if len(r) > 1))


def _degree(body: Scalar) -> int:
    """Return the largest number of reads of operands in a product of a scalar."""
    match body:
        case Apply("mul" | "div", arguments):
            return sum(map(_degree, arguments))
        case Apply(_, arguments):
            return max(map(_degree, arguments), default=0)
        case Guarded(_, then, otherwise):
            return max(_degree(then), _degree(otherwise))
        case Read(Scope() as inner, _):
            return _degree(inner.body)
        case Read():
            return 1
        case _:
            return 0


def _projected(term: Summand, shape: Sequence[int]) -> Mask:
    """Return the positions of the output at which a term's conditions hold for some values of its iterators."""
    axes = {f"o{axis}": axis for axis in range(len(shape))}
    mask = np.ones((1,) * len(shape), np.bool_)
    for conditions, iterators in _joined(term):
        output = [a for a in iterators if _name(a) in axes]
        lengths = {a: iterator_range(a) for a in iterators}
        if np.prod([len(r) for r in lengths.values()], dtype=float) > MOST_POINTS:
            continue
        inner = [a for a in iterators if a not in output]
        order = [*sorted(output, key=lambda a: axes[_name(a)]), *inner]
        spend(math.prod(len(r) for r in lengths.values()) * len(conditions) // POINTS_A_UNIT)
        grid = np.meshgrid(*(np.array(lengths[a], np.int64) for a in order), indexing="ij", sparse=True)
        values = dict(zip(order, grid, strict=True))
        holds = np.ones([len(lengths[a]) for a in order], np.bool_)
        for condition in conditions:
            holds &= truth_of(condition, values)
        reached = holds.any(axis=tuple(range(len(output), len(order))))
        mask = mask & reached.reshape([size if any(axes[_name(a)] == axis for a in output) else 1 for axis, size in enumerate(shape)])
    return np.broadcast_to(mask, tuple(shape))


def _joined(term: Summand) -> Iterable[tuple[list[Literal0], list[int]]]:
    """Yield the conditions of a term in groups that share no iterator, each with its iterators; conditions on data are omitted."""
    groups: list[tuple[list[Literal0], set[int]]] = []
    for condition in term.conditions:
        atoms = closure(condition.value)
        iterators = {a for a in atoms if isinstance(entry(a).kind, Iterator)}
        if any(not isinstance(entry(a).kind, Iterator | FloorAtom) for a in atoms):
            continue
        together = [group for group in groups if group[1] & iterators]
        groups = [group for group in groups if not group[1] & iterators]
        groups.append(([c for g in together for c in g[0]] + [condition], iterators.union(*(g[1] for g in together))))
    for conditions, iterators in groups:
        yield conditions, sorted(iterators, key=lambda a: entry(a).key)


def _name(atom: int) -> str:
    kind = entry(atom).kind
    return kind.name if isinstance(kind, Iterator) else ""


def iterator_range(atom: int) -> range:
    """Return the values of an iterator; if its ends are not numbers, a range longer than the limit of points."""
    low, high = entry(atom).low, entry(atom).high
    assert low is not None and high is not None, "an iterator has a range"
    first, stop = low.constant, high.constant
    return range(first, stop) if first is not None and stop is not None else range(MOST_POINTS + 1)


def truth_of(condition: Literal0, values: dict[int, Values]) -> Mask:
    """Return where a condition holds, at known values of its iterators; ``values`` caches intermediate values."""
    value = value_of(condition.value, values)
    match condition.relation:
        case "==":
            return np.equal(value, 0)
        case "!=":
            return np.not_equal(value, 0)
        case ">":
            return np.greater(value, 0)
        case ">=":
            return np.greater_equal(value, 0)


def value_of(value: Polynomial, values: dict[int, Values]) -> Values:
    """Return a polynomial at known values of its iterators; ``values`` caches intermediate values."""
    total = np.zeros((), np.int64)
    for monomial, coefficient in value.terms.items():
        product = np.array(coefficient, np.int64)
        for atom in monomial:
            product = product * _atom(atom, values)
        total = total + product
    return total


def _atom(atom: int, values: dict[int, Values]) -> Values:
    if atom not in values:
        kind = entry(atom).kind
        assert isinstance(kind, FloorAtom), "iterators have values, and conditions on data are left out"
        values[atom] = value_of(kind.numerator, values) // value_of(kind.divisor, values)
    return values[atom]


def agreement(left: Scope, few: int = 6, many: int = 24) -> Callable[[Scope], float]:
    """Return a function that measures at which share of some positions an expression agrees with ``left``; 0 if nothing can be tested.

    An expression that agrees at fewer than two of the first ``few`` positions gets 0 without further tests.
    """
    random = Random(0)
    sizes = [i.high for i in left.traversal if isinstance(i.high, int)]
    positions = [tuple(random.randrange(size) for size in sizes) for _ in range(few + many)]
    expected = _values(left, positions)

    def share(right: Scope) -> float:
        first = None if expected is None else _values(right, positions[:few])
        if first is None or expected is None or np.count_nonzero(first == expected[:few]) < 2:
            return 0.0
        values = _values(right, positions)
        return 0.0 if values is None else float(np.mean(values == expected))

    return share
