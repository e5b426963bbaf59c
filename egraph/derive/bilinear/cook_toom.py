"""Cook-Toom: the fewest products for a short correlation, as exact rational matrices.

F(m, r) computes m outputs of a correlation with r taps, ``y[p] = sum_r g[r] d[p+r]``, by m + r - 1 products:

    y[p] = sum_xi A[p,xi] (sum_r G[xi,r] g[r]) (sum_i B[xi,i] d[i]),   sum_xi A[p,xi] B[xi,i] G[xi,r] = [i == p+r]

The three matrices are transforms of polynomials at m + r - 2 points and infinity: A and G evaluate, B interpolates, transposed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import TypeAlias

import numpy as np

Matrix: TypeAlias = tuple[tuple[Fraction, ...], ...]

MAGNITUDES = tuple(Fraction(*pair) for pair in ((1, 1), (2, 1), (1, 2), (3, 1), (3, 2), (3, 4), (4, 1), (1, 4)))
"""Candidate points beside 0 and infinity. They are dyadic, so that float32 holds the entries of A and B exactly."""
WORSE = 1.05
"""The factor by which growth may exceed the least for the sake of smaller constants: points are tried in the order above."""


@dataclass(frozen=True, slots=True, eq=False)
class CookToom:
    """F(outputs, taps): A[outputs, products], G[products, taps], B[products, window]; ``y[p] = sum_r g[r] d[stride p + r]``.

    Each algorithm is built once and compared by identity.
    """

    outputs: int
    taps: int
    points: tuple[Fraction, ...]
    a: Matrix
    g: Matrix
    b: Matrix

    @property
    def products(self) -> int:
        return len(self.b)

    @property
    def window(self) -> int:
        """The number of inputs of a tile."""
        return len(self.b[0])

    @property
    def operations(self) -> tuple[float, float]:
        """Return the entries of B per element of V, and of A per element of M: multiply-adds of the transforms along this axis."""
        b, a = (sum(value != 0 for row in matrix for value in row) / self.products for matrix in (self.b, self.a))
        return b, a

    @property
    def typical_growth(self) -> float:
        """sqrt(mean_p sum_xi A[p,xi]^2 ||G[xi]||^2 ||B[xi]||^2 / r)

        The expected error on random data relative to the direct sum's, if roundings are independent. Points are chosen by it.
        """
        total = sum(
            sum(float(row[xi]) ** 2 for row in self.a) * sum(float(v) ** 2 for v in self.g[xi]) * sum(float(v) ** 2 for v in self.b[xi])
            for xi in range(self.products)
        )
        return math.sqrt(total / (self.outputs * self.taps))

    @property
    def growth(self) -> float:
        """max_p sum_xi |A[p,xi]| ||G[xi]||_1 ||B[xi]||_1 / r

        A bound of the error relative to the direct sum's: no rounding is magnified by more. Growths of axes multiply.
        """
        return float(_growth(self.a, self.g, self.b))


@cache
def cook_toom(outputs: int, taps: int) -> CookToom:
    """Return F(outputs, taps) over the first points whose typical growth is near the least; one tap or output needs plain products only."""
    if outputs < 1 or taps < 1 or outputs + taps - 2 > 2 * len(MAGNITUDES) + 1:
        raise ValueError(f"F({outputs}, {taps}) needs more points than there are")
    if outputs == 1:
        row = tuple(Fraction(1) for _ in range(taps))
        return CookToom(1, taps, (), (row,), _identity(taps), _identity(taps))
    if taps == 1:
        return CookToom(outputs, 1, (), _identity(outputs), tuple((Fraction(1),) for _ in range(outputs)), _identity(outputs))
    choices = _choices(outputs + taps - 2)
    estimates = _estimates(outputs, taps, choices)
    limit = WORSE * min(estimates)
    return over(outputs, taps, next(points for points, growth in zip(choices, estimates, strict=True) if growth <= limit))


def over(outputs: int, taps: int, points: tuple[Fraction, ...]) -> CookToom:
    """Return F(outputs, taps) at these points and infinity.

    The entries of B are the coefficients of prod_{j != xi} (x - p_j), leading with 1. Interpolation divides them by a number; G is divided
    by it instead, because the weights are transformed ahead of time.
    """
    count = outputs + taps - 1
    a = [[point**p for point in points] + [Fraction(p == outputs - 1)] for p in range(outputs)]
    g, b = [], []
    for position, point in enumerate(points):
        other_points = points[:position] + points[position + 1 :]
        b.append((*_product(other_points), *[Fraction(0)] * (count - 1 - len(other_points))))
        scale = Fraction(1)
        for other in other_points:
            scale *= point - other
        g.append(tuple(point**r / scale for r in range(taps)))
    b.append(_product(points))
    g.append(tuple(Fraction(r == taps - 1) for r in range(taps)))
    return CookToom(outputs, taps, points, tuple(tuple(row) for row in a), tuple(g), tuple(b))


@cache
def strided(outputs: int, taps: int, stride: int) -> CookToom:
    """y[p] = sum_ph sum_q g[stride q + ph] d[stride (p + q) + ph]: one algorithm for every phase, their products side by side."""
    if stride == 1:
        return cook_toom(outputs, taps)
    a: list[tuple[Fraction, ...]] = [() for _ in range(outputs)]
    g, b = [], []
    for phase in range(min(stride, taps)):
        part = cook_toom(outputs, -(-(taps - phase) // stride))
        a = [row + part_row for row, part_row in zip(a, part.a, strict=True)]
        g += [_spread(row, phase, stride, taps) for row in part.g]
        b += [_spread(row, phase, stride, stride * (outputs - 1) + taps) for row in part.b]
    return CookToom(outputs, taps, (), tuple(a), tuple(g), tuple(b))


def _spread(row: tuple[Fraction, ...], first: int, step: int, size: int) -> tuple[Fraction, ...]:
    """Return a row whose entries first, first + step, ... are the given ones, and the others 0."""
    return tuple(row[i // step] if i >= 0 and i % step == 0 and i // step < len(row) else Fraction(0) for i in range(-first, size - first))


def _choices(count: int) -> list[tuple[Fraction, ...]]:
    """Return sets of points: 0 and pairs of opposites, whose transforms share sums, and half of a pair if one point remains."""
    pairs, single = divmod(count - 1, 2)
    choices = []
    for chosen in itertools.combinations(MAGNITUDES, pairs):
        points = (Fraction(0), *(signed for magnitude in chosen for signed in (magnitude, -magnitude)))
        unused = [magnitude for magnitude in MAGNITUDES if magnitude not in chosen] if single else []
        choices += [(*points, sign * magnitude) for magnitude in unused for sign in (1, -1)] if single else [points]
    return choices if count else [()]


def _estimates(outputs: int, taps: int, choices: Sequence[tuple[Fraction, ...]]) -> list[float]:
    """Return the typical growth over each set of points. There are hundreds of sets, so all are computed at once in float arithmetic."""
    points = np.array([[float(point) for point in choice] for choice in choices])
    count, total = points.shape[1], np.zeros((len(choices), outputs))
    for position in range(count):
        chosen_point, other_points = points[:, position], np.delete(points, position, axis=1)
        polynomial = np.ones((len(choices), 1))
        for other in other_points.T:
            polynomial = np.pad(polynomial, ((0, 0), (1, 0))) - other[:, None] * np.pad(polynomial, ((0, 0), (0, 1)))
        scale = np.prod(chosen_point[:, None] - other_points, axis=1)
        weight = np.sum(polynomial**2, axis=1) * sum(chosen_point ** (2 * r) for r in range(taps)) / scale**2
        total += chosen_point[:, None] ** (2 * np.arange(outputs)) * weight[:, None]
    polynomial = np.ones((len(choices), 1))
    for other in points.T:
        polynomial = np.pad(polynomial, ((0, 0), (1, 0))) - other[:, None] * np.pad(polynomial, ((0, 0), (0, 1)))
    total[:, -1] += np.sum(polynomial**2, axis=1)
    return [round(float(value), 6) for value in np.sqrt(np.mean(total, axis=1) / taps)]


def _growth(a: Matrix, g: Matrix, b: Matrix) -> Fraction:
    weights = [sum(map(abs, g_row), Fraction(0)) * sum(map(abs, b_row), Fraction(0)) for g_row, b_row in zip(g, b, strict=True)]
    return max(sum((abs(value) * weight for value, weight in zip(row, weights, strict=True)), Fraction(0)) for row in a) / len(g[0])


def _product(roots: tuple[Fraction, ...]) -> tuple[Fraction, ...]:
    """Return the coefficients of prod (x - root), the constant first."""
    result = [Fraction(1)]
    for root in roots:
        result = [low - root * high for low, high in zip([Fraction(0), *result], [*result, Fraction(0)], strict=True)]
    return tuple(result)


def _identity(size: int) -> Matrix:
    return tuple(tuple(Fraction(row == column) for column in range(size)) for row in range(size))
