"""Decide from few points of the output where two multilinear programs agree: PET's theorems 1 and 2, as a check of proofs.

Theorem 1: let the sums of both programs run over the same values in a box, and let their reads move with the position. If the programs
agree at one point and at its neighbour along every axis, they agree in the whole box. Theorem 2: programs with n reads in a product that
differ at a point agree there with a probability of at most n/p, on random operands modulo a prime p.

Boxes also end where floor-divisions, which reshapes introduce, make reads jump.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from egraph.tensor.boxes import Box, Mask, boxes_of
from egraph.tensor.expr.index import Iterator
from egraph.tensor.expr.scope import Scope
from verify.assumptions import Assumptions
from verify.disagreement import Values, differing, error_bound, iterator_range, points_of, truth_of, value_of
from verify.equality import output_positions
from verify.facts import Facts
from verify.forms import Names, Read, Summand, Unsupported, form_of
from verify.literals import closure
from verify.normal import normalise
from verify.polynomials import FloorAtom, Polynomial, entry

MOST_POINTS = 1 << 22
"""Limit on the positions of the output times the values of a term's iterators."""


@dataclass(frozen=True)
class FewPoints:
    """The boxes in which m + 1 points decide for all, the boxes in which the programs differ at one, and the probability of an error."""

    boxes: tuple[Box, ...]
    differing: tuple[Box, ...]
    points: int
    tests: int
    missed: float
    """Upper bound on the probability that a difference was missed at any of the points."""

    def describe(self) -> str:
        """Return ``12 boxes, 40 points, 2 tests: 3 boxes differ; that one was missed has a probability of at most 3.5e-17``."""
        counts = f"{len(self.boxes)} boxes, {self.points} points, {self.tests} tests: {len(self.differing)} boxes differ; "
        return f"{counts}that one was missed has a probability of at most {self.missed:.2g}"


def few_points(left: Scope, right: Scope, tests: int = 2) -> FewPoints | None:
    """Return where two expressions of one shape with known sizes agree, from m + 1 points a box; None if they are not multilinear."""
    boxes = _boxes(left, right)
    if boxes is None:
        return None
    points = [(number, point) for number, box in enumerate(boxes) for point in points_of(box)]
    apart = differing(left, right, [point for _, point in points], tests)
    if apart is None:
        return None
    numbers = dict.fromkeys(number for (number, _), differs in zip(points, apart, strict=True) if differs)
    missed = min(1.0, len(points) * error_bound(left, right, tests))
    return FewPoints(boxes, tuple(boxes[number] for number in numbers), len(points), tests, missed)


def _boxes(left: Scope, right: Scope) -> tuple[Box, ...] | None:
    """Return boxes of positions in which both sides sum over the same values, and their reads move with the position."""
    assumptions = Assumptions(facts=Facts(at_sizes=True))
    output = output_positions(left, assumptions)
    shape = tuple(i.high for i in left.traversal if isinstance(i.high, int))
    kinds: dict[bytes, int] = {}
    labels = np.zeros(shape, np.int64)
    for side, prefix in ((left, "l"), (right, "r")):
        try:
            terms = form_of(normalise(side, output, assumptions, set(), None), assumptions.facts, Names(prefix)).terms
        except Unsupported:
            return None
        for term in terms:
            signature = _signature(term, shape)
            if signature is None:
                return None
            together = np.concatenate([labels.reshape(-1, 1), signature], axis=1)
            kinds = {}
            numbers = [kinds.setdefault(row.tobytes(), len(kinds)) for row in together]
            labels = np.array(numbers, np.int64).reshape(shape)
    return tuple(box for kind in range(max(len(kinds), 1)) for box in boxes_of(labels == kind))


def _signature(term: Summand, shape: Sequence[int]) -> Values | None:
    """Return a row for every output position; rows are equal if a term sums over the same values and its reads move with the position."""
    if any(not isinstance(part, Read) for part in term.parts) or term.numerator.constant is None or term.denominator.constant is None:
        return None
    indices = [position for part in term.parts if isinstance(part, Read) for position in part.indices]
    polynomials = [*(condition.value for condition in term.conditions), *indices]
    atoms = set().union(*map(closure, polynomials))
    if any(not isinstance(entry(atom).kind, Iterator | FloorAtom) for atom in atoms):
        return None
    ranges = [iterator_range(atom) for atom in term.iterators]
    count = int(np.prod([len(r) for r in ranges], dtype=np.int64))
    if count * np.prod(shape, dtype=float) > MOST_POINTS:
        return None
    grid = np.meshgrid(*(np.arange(n) for n in shape), *(np.array(r, np.int64) for r in ranges), indexing="ij", sparse=True)
    axes = {f"o{axis}": grid[axis] for axis in range(len(shape))}
    output = {atom: kind for atom in atoms if isinstance(kind := entry(atom).kind, Iterator) and kind.name in axes}
    values = {atom: axes[kind.name] for atom, kind in output.items()} | dict(zip(term.iterators, grid[len(shape) :], strict=True))
    whole = (*shape, *(len(r) for r in ranges))
    counts: Mask = np.ones(whole, np.bool_)
    for condition in term.conditions:
        counts = counts & truth_of(condition, values)
    rows = [counts.reshape(-1, count).astype(np.int64)]
    for part in term.parts:
        assert isinstance(part, Read), "other parts were left out above"
        rows += [np.where(counts, _unmoved(position, values, whole, len(shape)), 0).reshape(-1, count) for position in part.indices]
    return np.concatenate(rows, axis=1)


def _unmoved(position: Polynomial, values: dict[int, Values], whole: Sequence[int], axes: int) -> Values:
    """Return an index minus a multiple of each position; it is constant in a box in which the index moves with the position."""
    offset = np.broadcast_to(value_of(position, values), tuple(whole)).astype(np.int64)
    for axis in range(axes):
        steps = np.diff(offset, axis=axis)
        if steps.size:
            slopes, often = np.unique(steps, return_counts=True)
            along = np.arange(whole[axis]).reshape([-1 if k == axis else 1 for k in range(len(whole))])
            offset = offset - int(slopes[np.argmax(often)]) * along
    return offset
