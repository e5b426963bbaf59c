"""Short straight-line programs for products with constant matrices: y = M x, with sums that rows share computed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TypeAlias, TypeVar

Matrix: TypeAlias = tuple[tuple[Fraction, ...], ...]
Combination: TypeAlias = tuple[tuple[int, Fraction], ...]
"""sum of coefficient * slot, each slot once, no coefficient zero."""
Value = TypeVar("Value")
Pair: TypeAlias = tuple[int, int, Fraction]
"""Slots a < b and the ratio of their coefficients, b's over a's."""


@dataclass(frozen=True)
class LinearProgram:
    """Slots 0 .. inputs-1 hold x; every step makes the next slot; ``rows`` are the results, over all slots."""

    inputs: int
    steps: tuple[Combination, ...]
    rows: tuple[Combination, ...]

    def run(self, values: Sequence[Value], combine: Callable[[Sequence[tuple[Value, Fraction]]], Value]) -> list[Value]:
        """Return y for x = ``values``; ``combine`` adds up values times coefficients."""
        slots = list(values)
        for step in self.steps:
            slots.append(combine([(slots[slot], c) for slot, c in step]))
        return [combine([(slots[slot], c) for slot, c in row]) for row in self.rows]


@lru_cache(maxsize=256)
def linear_program(matrix: Matrix) -> LinearProgram:
    """Return a program for a matrix: the sum of two slots that most rows hold, up to a factor, becomes a slot, again and again."""
    inputs = len(matrix[0])
    rows = [{column: value for column, value in enumerate(row) if value} for row in matrix]
    steps: list[Combination] = []
    while True:
        counts: dict[Pair, int] = {}
        for row in rows:
            for pair in _pairs(row):
                counts[pair] = counts.get(pair, 0) + 1
        shared = [pair for pair, count in counts.items() if count > 1]
        if not shared:
            break
        best = min(shared, key=lambda pair: (-counts[pair], abs(pair[2]) != 1, pair))
        steps.append(_extract(best, rows, inputs + len(steps)))
    return LinearProgram(inputs, tuple(steps), tuple(tuple(sorted(row.items())) for row in rows))


def _pairs(row: dict[int, Fraction]) -> list[Pair]:
    slots = sorted(row)
    return [(a, b, row[b] / row[a]) for k, a in enumerate(slots) for b in slots[k + 1 :]]


def _extract(pair: Pair, rows: list[dict[int, Fraction]], slot: int) -> Combination:
    """Put ``slot`` in place of a pair in all rows that hold it, scaled so that most of them need no multiplication."""
    a, b, ratio = pair
    holding = [row for row in rows if a in row and b in row and row[b] / row[a] == ratio]
    first, second = sum(abs(row[a]) == 1 for row in holding), sum(abs(row[b]) == 1 for row in holding)
    # Of the two, x_a + ratio x_b and x_a / ratio + x_b, the one whose factor float32 holds exactly, if only one does.
    over_b = (_is_dyadic(1 / ratio), second, -a) > (_is_dyadic(ratio), first, -b)
    for row in holding:
        row[slot] = row[b] if over_b else row[a]
        del row[a], row[b]
    return ((a, 1 / ratio), (b, Fraction(1))) if over_b else ((a, Fraction(1)), (b, ratio))


def _is_dyadic(value: Fraction) -> bool:
    return value.denominator & (value.denominator - 1) == 0
