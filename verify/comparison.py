"""Compare both sides of one match on random operands: whole results where they are small, else as many positions as a bound asks.

Agreement proves nothing. It stands beside a proof, and finds what a rule's function does with the sizes of one match alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from egraph.errors import EinsatError
from egraph.tensor import Node, walk
from egraph.tensor.ops.reference import evaluate, fragment_expression
from verify.named_arrays import Untestable
from verify.random_binding import Refused
from verify.random_testing import Data, Instance, difference_on, draw_values
from verify.sampling import Position, difference_at

WHOLE = 1 << 18
"""Elements: where no value of either side has more, whole results are compared."""
MISSED = 1e-6
"""The probability with which a comparison may miss that sides differ at more positions than ``Comparison.fraction`` says."""
FRACTION = 1e-3
"""The fraction of positions that is asked for where results are larger."""
ASKED = math.ceil(math.log(MISSED) / math.log1p(-FRACTION))
"""Random positions of which one is in this fraction of all, but for that probability: 13,809."""
MOST_COVERED = 1 << 16
"""Positions that visit every index of every axis, since a rule that errs mostly does so in a row or a block: where axes are no longer."""
CHUNK = 1 << 12
"""Positions that are evaluated together at first; fewer where sums are long."""
MOST_CHUNKS = 48
"""Evaluations for one result: long sums make chunks small, fewer positions are compared then, and ``fraction`` says so."""


@dataclass(frozen=True)
class Comparison:
    """How two sides compare: ``reason`` says where they differ; ``positions`` of all ``elements`` were compared."""

    reason: str
    positions: int
    elements: int

    @property
    def fraction(self) -> float:
        """Return at which fraction of its positions a result may differ so that this is missed with more than the stated probability."""
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
    """Compare all elements in float64: on operands of both signs and, where these have results that are no numbers, on positive ones."""
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
    pending, elements = list(positions(left.type.sizes, seed)), left.type.elements
    count, chunk = len(pending), CHUNK
    for _ in range(MOST_CHUNKS):
        if not pending or not chunk:
            break
        try:
            reason = difference_at(*sides, pending[:chunk])
        except (Untestable, MemoryError):
            chunk //= 4
            continue
        if reason:
            return Comparison(reason, count - len(pending), elements)
        pending = pending[chunk:]
    return Comparison("", min(count - len(pending), elements - 1), elements)


def positions(sizes: Sequence[int], seed: int = 0) -> Iterator[Position]:
    """Yield positions in a tensor: at random, as many as are asked for; then some that visit every index of every axis."""
    generator = np.random.default_rng(seed)
    covering = min(max(sizes, default=1), MOST_COVERED)
    columns = [np.concatenate((generator.integers(0, n, ASKED), generator.permutation(max(n, covering))[:covering] % n)) for n in sizes]
    yield from zip(*(column.tolist() for column in columns), strict=True)
