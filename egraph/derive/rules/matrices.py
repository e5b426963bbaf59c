"""Small integer matrices: inverses that are integer too."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

Matrix = Sequence[Sequence[int]]


def inverse_of(matrix: Matrix) -> tuple[tuple[int, ...], ...] | None:
    """Return the inverse of a square matrix where it is an integer matrix, which is where the determinant is 1 or -1."""
    size = len(matrix)
    if any(len(row) != size for row in matrix):
        return None
    rows = [[Fraction(v) for v in row] + [Fraction(int(k == at)) for k in range(size)] for at, row in enumerate(matrix)]
    for at in range(size):
        pivot = next((k for k in range(at, size) if rows[k][at]), None)
        if pivot is None:
            return None
        rows[at], rows[pivot] = rows[pivot], rows[at]
        rows[at] = [v / rows[at][at] for v in rows[at]]
        for k in range(size):
            if k != at:
                rows[k] = [v - rows[k][at] * w for v, w in zip(rows[k], rows[at], strict=True)]
    inverse = [row[size:] for row in rows]
    if any(v.denominator != 1 for row in inverse for v in row):
        return None
    return tuple(tuple(int(v) for v in row) for row in inverse)
