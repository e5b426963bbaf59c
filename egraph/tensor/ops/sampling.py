"""Random draws of small operand shapes: ones, primes, distinct extents, odd and even sizes."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

SIZES = (1, 2, 3, 4, 5, 7)
Sample = tuple[tuple[tuple[int, ...], ...], dict[str, Any]]


def draw_shape(random: Random, low: int = 1, high: int = 4) -> tuple[int, ...]:
    """Return a shape of ``low`` to ``high`` axes."""
    return tuple(random.choice(SIZES) for _ in range(random.randint(low, high)))


def draw_broadcastable(random: Random, shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape that broadcasts to ``shape``: leading axes dropped, some sizes 1."""
    kept = shape[random.choice((0, 0, random.randint(0, len(shape)))) :]
    return tuple(1 if random.random() < 0.3 else size for size in kept)


def draw_broadcasting(random: Random, operands: int) -> tuple[tuple[int, ...], ...]:
    """Return shapes that broadcast with each other, none of them necessarily the result."""
    full = draw_shape(random)
    return tuple(draw_broadcastable(random, full) for _ in range(operands))


def draw_float(random: Random, low: float, high: float) -> float:
    """Return a multiple of 1/64, so that it is exact in every float type."""
    return random.randint(round(low * 64), round(high * 64)) / 64
