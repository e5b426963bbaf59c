"""Tables of integers as data: their support, the axes that they do not depend on, and their factorisation into smaller ones.

The arithmetic is exact and does not involve iterators: a table is analysed once, axis by axis, and read anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import combinations, permutations

import numpy as np

Array = np.ndarray
"""Python integers (dtype object), so that nothing overflows."""
MOST_ORDERED = 4
"""Most axes of a table whose axes are put in canonical order. Larger equal tables read in two orders may be taken for different ones."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Integers in row-major order without a common factor; the first nonzero one is positive."""

    shape: tuple[int, ...]
    numbers: tuple[int, ...]

    @property
    def array(self) -> Array:
        return np.array(self.numbers, dtype=object).reshape(self.shape)

    def __str__(self) -> str:
        return f"table({'x'.join(map(str, self.shape))}: {' '.join(map(str, self.numbers))})"


@dataclass(frozen=True, slots=True)
class Restriction:
    """offset + coefficients * indices RELATION 0, with RELATION one of ``==``, ``>=``"""

    coefficients: tuple[int, ...]
    offset: int
    relation: str


@dataclass(frozen=True, slots=True)
class Piece:
    """A grid read at some of the indices, each shifted: grid[index[axes[0]] - shifts[0], ...]"""

    grid: Grid
    axes: tuple[int, ...]
    shifts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Structure:
    """coefficient * product of the pieces where all restrictions hold, zero elsewhere."""

    coefficient: int
    restrictions: tuple[Restriction, ...]
    pieces: tuple[Piece, ...]


def primitive(values: Sequence[Fraction | int]) -> tuple[Fraction, tuple[int, ...]]:
    """Return (c, integers) with values = c * integers; the integers have no common factor, and the first nonzero one is positive."""
    whole = math.lcm(*(value.denominator for value in values))
    numbers = [value.numerator * (whole // value.denominator) for value in values]
    common = math.gcd(*numbers)
    if not common:
        return Fraction(0), tuple(numbers)
    if next(number for number in numbers if number) < 0:
        common = -common
    return Fraction(common, whole), tuple(number // common for number in numbers)


@lru_cache(maxsize=1 << 12)
def structure(grid: Grid) -> Structure:
    """Return the structure of a grid: restrictions and pieces whose product is the grid."""
    finder = _Finder(len(grid.shape))
    finder.split(grid.array, tuple(range(len(grid.shape))), (0,) * len(grid.shape))
    pieces = tuple(sorted(finder.pieces, key=lambda piece: piece.axes))
    return Structure(finder.coefficient, tuple(finder.restrictions), pieces)


class _Finder:
    """Decomposes a grid, piece by piece."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.coefficient = 1
        self.restrictions: list[Restriction] = []
        self.pieces: list[Piece] = []

    def restrict(self, axes: Sequence[int], coefficients: Sequence[int], offset: int, relation: str) -> None:
        row = [0] * self.rank
        for axis, coefficient in zip(axes, coefficients, strict=True):
            row[axis] = coefficient
        self.restrictions.append(Restriction(tuple(row), offset, relation))

    def split(self, array: Array, axes: tuple[int, ...], shifts: tuple[int, ...]) -> None:
        """Decompose an array whose axis k is read at index[axes[k]] - shifts[k]."""
        if not array.any():
            self.coefficient = 0
            return
        array, axes, shifts = _dependent(*self._boxed(array, axes, shifts))
        array, axes, shifts = _dependent(*self._determined(array, axes, shifts))
        parts = _factors(array)
        if parts is not None:
            (first, first_axes), (second, second_axes) = parts
            self.split(first, tuple(axes[k] for k in first_axes), tuple(shifts[k] for k in first_axes))
            self.split(second, tuple(axes[k] for k in second_axes), tuple(shifts[k] for k in second_axes))
            return
        scale, numbers = primitive(array.reshape(-1).tolist())
        self.coefficient *= int(scale)
        if axes:
            sign, piece = _ordered(Piece(Grid(array.shape, numbers), axes, shifts))
            self.coefficient *= sign
            self.pieces.append(piece)

    def _boxed(self, array: Array, axes: tuple[int, ...], shifts: tuple[int, ...]) -> Read:
        """Restrict axes to the range in which the array is nonzero."""
        moved = list(shifts)
        for k, axis in enumerate(axes):
            filled = [bool(np.any(part)) for part in np.moveaxis(array, k, 0)]
            first, last = filled.index(True), len(filled) - 1 - filled[::-1].index(True)
            if first == last and len(filled) > 1:
                self.restrict((axis,), (1,), -(first + moved[k]), "==")
            else:
                if first:
                    self.restrict((axis,), (1,), -(first + moved[k]), ">=")
                if last < len(filled) - 1:
                    self.restrict((axis,), (-1,), last + moved[k], ">=")
            array = array[(slice(None),) * k + (slice(first, last + 1),)]
            moved[k] += first
        return array, axes, tuple(moved)

    def _determined(self, array: Array, axes: tuple[int, ...], shifts: tuple[int, ...]) -> Read:
        """Remove axes whose index is determined by an equation between the indices wherever the array is nonzero."""
        while len(axes) > 1:
            equation = _equation(array)
            if equation is None:
                break
            k, coefficients, offset = equation  # coefficients * places + offset == 0, with 1 at k
            self.restrict(axes, coefficients, offset - sum(c * s for c, s in zip(coefficients, shifts, strict=True)), "==")
            places = np.indices(array.shape)
            at = -offset - sum(c * places[n] for n, c in enumerate(coefficients) if n != k)
            at = at.take([0], axis=k)
            inside = ((at >= 0) & (at < array.shape[k])).take(0, axis=k)
            chosen = np.take_along_axis(array, np.clip(at, 0, array.shape[k] - 1), axis=k).take(0, axis=k)
            values = set(chosen[inside].tolist())
            array = np.where(inside, chosen, values.pop() if len(values) == 1 else 0)  # outside, the equation has no solution
            axes, shifts = axes[:k] + axes[k + 1 :], shifts[:k] + shifts[k + 1 :]
        return array, axes, shifts


Read = tuple[Array, tuple[int, ...], tuple[int, ...]]


def _dependent(array: Array, axes: tuple[int, ...], shifts: tuple[int, ...]) -> Read:
    """Drop the axes on which the array does not depend."""
    kept = [k for k in range(len(axes)) if (array != array.take([0], axis=k)).any()]
    for k in reversed(range(len(axes))):
        if k not in kept:
            array = np.asarray(array.take(0, axis=k), dtype=object)
    return array, tuple(axes[k] for k in kept), tuple(shifts[k] for k in kept)


def _equation(array: Array) -> tuple[int, tuple[int, ...], int] | None:
    """Return (axis, coefficients, offset) of an equation with coefficient 1 at the axis that holds at all nonzero positions."""
    places = np.argwhere(array).tolist()
    first = places[0]
    rows = _reduced([[a - b for a, b in zip(position, first, strict=True)] for position in places[1:]], array.ndim)
    for coefficients in _kernel(rows, array.ndim):
        for k, coefficient in enumerate(coefficients):
            if abs(coefficient) == 1:
                signed = tuple(c * coefficient for c in coefficients)
                return k, signed, -sum(c * p for c, p in zip(signed, first, strict=True))
    return None


def _reduced(rows: list[list[int]], width: int) -> list[list[Fraction]]:
    """Return the reduced echelon form of the rows, without zero rows."""
    result: list[list[Fraction]] = []
    for row in rows:
        left = [Fraction(v) for v in row]
        for earlier in result:
            pivot = next(k for k, v in enumerate(earlier) if v)
            if left[pivot]:
                left = [v - left[pivot] * w for v, w in zip(left, earlier, strict=True)]
        pivot = next((k for k, v in enumerate(left) if v), width)
        if pivot == width:
            continue
        left = [v / left[pivot] for v in left]
        result = [[v - earlier[pivot] * w for v, w in zip(earlier, left, strict=True)] for earlier in result] + [left]
        if len(result) == width:
            break
    return result


def _kernel(rows: list[list[Fraction]], width: int) -> list[tuple[int, ...]]:
    """Return integer vectors that span the orthogonal complement of the rows of a reduced echelon form."""
    pivots = [next(k for k, v in enumerate(row) if v) for row in rows]
    vectors = []
    for free in (k for k in range(width) if k not in pivots):
        vector = [Fraction(0)] * width
        vector[free] = Fraction(1)
        for row, pivot in zip(rows, pivots, strict=True):
            vector[pivot] = -row[free]
        vectors.append(primitive(vector)[1])
    return vectors


def _factors(array: Array) -> tuple[tuple[Array, tuple[int, ...]], tuple[Array, tuple[int, ...]]] | None:
    """Return (f, axes), (g, others) with array = f g / f[0], if there are f and g that share no axis, else None."""
    for count in range(1, array.ndim // 2 + 1):
        for mine in combinations(range(array.ndim), count):
            other_axes = tuple(k for k in range(array.ndim) if k not in mine)
            matrix = np.transpose(array, (*mine, *other_axes)).reshape(math.prod(array.shape[k] for k in mine), -1)
            row = next(k for k in range(len(matrix)) if matrix[k].any())
            column = next(k for k in range(matrix.shape[1]) if matrix[row, k])
            if (matrix * matrix[row, column] == np.outer(matrix[:, column], matrix[row])).all():
                scale, numbers = primitive([Fraction(v, matrix[row, column]) for v in matrix[:, column].tolist()])
                left = np.array(numbers, dtype=object).reshape([array.shape[k] for k in mine])
                right = np.array([int(v * scale) for v in matrix[row].tolist()], dtype=object)
                return (left, mine), (right.reshape([array.shape[k] for k in other_axes]), other_axes)
    return None


def _ordered(piece: Piece) -> tuple[int, Piece]:
    """Return (sign, piece) with its axes in the order that gives the smallest shape and numbers."""
    rank = len(piece.axes)
    if rank > MOST_ORDERED:
        return 1, piece
    array = piece.grid.array
    orders = []
    for order in permutations(range(rank)):
        scale, numbers = primitive(np.transpose(array, order).reshape(-1).tolist())
        orders.append((tuple(array.shape[k] for k in order), numbers, order, int(scale)))
    shape, numbers, order, sign = min(orders)
    return sign, Piece(Grid(shape, numbers), tuple(piece.axes[k] for k in order), tuple(piece.shifts[k] for k in order))
