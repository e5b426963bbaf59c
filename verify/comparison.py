"""Compare both sides of one match on random operands: whole results if they are small, else as many positions as a bound requires.

Agreement proves nothing. The comparison supplements a proof, and finds errors that a rule's function makes only at the sizes of one
match.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from egraph.errors import EinsatError
from egraph.tensor import Node, walk
from egraph.tensor.expr.bodies import walked
from egraph.tensor.expr.index import Iterator, bounds, index
from egraph.tensor.expr.laws import iterators_of
from egraph.tensor.expr.scope import Read, Scope
from egraph.tensor.ops.reference import evaluate, fragment_expression
from verify.named_arrays import Untestable
from verify.random_binding import Refused
from verify.random_testing import Data, Instance, difference_on, draw_values
from verify.sampling import difference_at

WHOLE = 1 << 18
"""Most elements of any value of either side if whole results are compared."""
MISSED = 1e-6
"""Largest probability that a comparison misses sides that differ at more than ``Comparison.fraction`` of the positions."""
FRACTION = 1e-3
"""Fraction of differing positions that has to be found in larger results."""
ASKED = math.ceil(math.log(MISSED) / math.log1p(-FRACTION))
"""Number of random positions of which at least one is in this fraction, except with that probability: 13,809."""
MOST_COVERED = 1 << 16
"""Most positions, besides the random ones, that visit every index of every axis, because wrong rules mostly err in a row or a block."""
CHUNK = 1 << 14
"""Most positions that are evaluated together."""
CHUNK_TERMS = 1 << 17
"""Approximate number of terms of sums that are evaluated together, so that their arrays stay in a core's cache."""
MOST_TERMS = 1 << 22
"""Approximate most terms that are evaluated for one result. With long sums fewer positions are compared, which ``fraction`` reflects."""


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison: ``reason`` says where the sides differ; ``positions`` of all ``elements`` were drawn and compared."""

    reason: str
    positions: int
    elements: int

    @property
    def fraction(self) -> float:
        """Return the fraction of differing positions up to which a difference may be missed with more than the stated probability."""
        if self.positions >= self.elements:
            return 0.0
        return -math.expm1(math.log(MISSED) / self.positions) if self.positions else 1.0

    def __str__(self) -> str:
        if not self.positions:
            return "none: it could not be evaluated"
        if self.positions >= self.elements:
            return f"all {self.elements:,} elements"
        caveat = f"a difference at {100 * self.fraction:.2g} % of them is missed with a probability of at most {MISSED:g}"
        return f"{self.positions:,} of {self.elements:,} elements: {caveat}"


def compare_sides(lefts: Sequence[Node], rights: Sequence[Node], numbers: Mapping[int, float], seed: int = 0) -> Comparison:
    """Compare the sides of a match; ``numbers``: placeholders all of whose elements are one number."""
    if all(node.type.elements <= WHOLE for node in walk((*lefts, *rights))):
        return _whole(Instance((), tuple(lefts), tuple(rights), numbers), seed)
    comparisons = [_sampled(left, right, numbers, seed) for left, right in zip(lefts, rights, strict=True)]
    return max(comparisons, key=lambda each: (bool(each.reason), each.fraction))


def _whole(instance: Instance, seed: int) -> Comparison:
    """Compare all elements in float64, on operands of both signs and, if these give infinities or NaN, on positive operands."""
    elements, compared = sum(side.type.elements for side in instance.left), 0
    kinds: tuple[Data, ...] = ("signed", "positive")
    for kind in kinds:
        values = draw_values(instance, seed, kind)
        values |= {leaf: (value > 0).astype(np.float64) for leaf, value in values.items() if leaf.type.dtype in ("bool", "int64")}
        try:
            difference = difference_on(instance, values, bits=False)
        except Refused:
            continue
        except (EinsatError, MemoryError):
            break
        if difference is not None:
            at, left, right = ", ".join(map(str, difference.index)), difference.left[difference.index], difference.right[difference.index]
            return Comparison(f"the sides differ at [{at}]: {left:.12g} and {right:.12g}, on random operands", elements, elements)
        compared = elements
        with np.errstate(all="ignore"):
            if all(np.isfinite(value).all() for value in evaluate(instance.left, values)):
                break
    return Comparison("", compared, elements)


def _sampled(left: Node, right: Node, numbers: Mapping[int, float], seed: int) -> Comparison:
    sides = fragment_expression(left, numbers), fragment_expression(right, numbers)
    elements, terms = left.type.elements, max(map(terms_of, sides))
    covering, random = positions(left.type.sizes, max(2, MOST_TERMS // terms), seed)
    pending, compared, chunk = np.concatenate([covering, random]), 0, min(CHUNK, max(1, CHUNK_TERMS // terms))
    while len(pending) and chunk:
        try:
            reason = difference_at(*sides, pending[:chunk])
        except (Untestable, MemoryError):
            chunk //= 4
            continue
        compared += min(chunk, len(pending))
        if reason:
            return Comparison(reason, compared, elements)
        pending = pending[chunk:]
    return Comparison("", min(max(0, compared - len(covering)), max(1, elements - 1)), elements)


def terms_of(scope: Scope) -> int:
    """Return the size of the largest array that one element of a scope needs, with an axis per summed iterator that an index depends on."""
    lengths: list[int] = []

    def largest(inner: Scope, axes: Mapping[Iterator, frozenset[int]]) -> int:
        own: dict[Iterator, frozenset[int]] = {}
        for iterator in inner.summation:
            extent = bounds(index(iterator.high) - index(iterator.low))
            own[iterator] = frozenset([len(lengths)])
            lengths.append(max(1, extent[1]) if extent else 1)
        axes, sizes = {**axes, **own}, [1]
        for part in walked(inner.body):
            if isinstance(part, Read):
                needed = [frozenset[int]().union(*(axes.get(each, ()) for each in iterators_of(at))) for at in part.indices]
                if isinstance(part.source, Scope):
                    sizes.append(largest(part.source, dict(zip(part.source.traversal, needed, strict=True))))
                else:
                    sizes.append(math.prod(lengths[axis] for axis in frozenset[int]().union(*needed)))
        return max(sizes)

    return largest(scope, {})


def positions(sizes: Sequence[int], most: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return at most ``most`` positions in a tensor, as rows of two arrays: positions that visit every index of every axis, and up to
    ``ASKED`` random ones.
    """
    if not sizes:
        return np.empty((0, 0), np.int64), np.empty((1, 0), np.int64)
    generator = np.random.default_rng(seed)
    longest = max(sizes)
    covering = min(longest, MOST_COVERED, most // 2)
    visits = [generator.permutation(max(size, longest))[:covering] % size for size in sizes]
    random = [generator.integers(0, size, min(ASKED, most - covering)) for size in sizes]
    return np.stack(visits, axis=1), np.stack(random, axis=1)
