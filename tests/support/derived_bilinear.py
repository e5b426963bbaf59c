"""Hand-written bilinear programs, each with the operator that it computes: Winograd's convolutions and Strassen's products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from egraph.tensor import Node
from egraph.tensor.expr.bodies import guarded
from egraph.tensor.expr.scope import ZERO, Scalar, Tensor, inside, table
from egraph.tensor.ops import apply
from egraph.tensor.ops.scopes import multiply, read
from tests.support.fragments import Body, Indices, Pair, concat, conv, cut, expression, leaf, matmul

Matrix = list[list[Fraction]]
Matrices = tuple[Matrix, Matrix, Matrix]


def cook_toom(m: int, r: int) -> Matrices:
    """Return (A, G, B) with y = A ((G g) * (B d)) for y[i] = sum_q d[i+q] g[q]: m outputs by m + r - 1 products."""
    points = [Fraction(p) for p in (0, 1, -1, 2, -2, Fraction(1, 2), Fraction(-1, 2), 3, -3, 4, -4)][: m + r - 2]

    def evaluation(columns: int) -> Matrix:
        return [[p**j for j in range(columns)] for p in points] + [[Fraction(int(j == columns - 1)) for j in range(columns)]]

    inverse = _inverse(evaluation(m + r - 1))
    a, g = evaluation(m), evaluation(r)
    return [list(row) for row in zip(*a, strict=True)], g, [list(row) for row in zip(*inverse, strict=True)]


def _inverse(matrix: Matrix) -> Matrix:
    size = len(matrix)
    rows = [[*row, *(Fraction(int(i == j)) for j in range(size))] for i, row in enumerate(matrix)]
    for column in range(size):
        pivot = next(i for i in range(column, size) if rows[i][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        rows[column] = [v / rows[column][column] for v in rows[column]]
        for i in range(size):
            if i != column:
                rows[i] = [v - rows[i][column] * w for v, w in zip(rows[i], rows[column], strict=True)]
    return [row[size:] for row in rows]


def fast(
    x: Node, w: Node, m: tuple[int, int], pads: Sequence[int], change: Callable[[list[Matrices]], list[Matrices]] = lambda found: found,
    shift: int = 0,
) -> Node:  # fmt: skip
    """Return Y(MatMul(V, U)) for NHWC; ``change`` and ``shift`` make it wrong."""
    n, h, w_in, c = x.type.sizes
    k, _, r, s = w.type.sizes
    rows, columns = h + pads[0] + pads[2] - r + 1, w_in + pads[1] + pads[3] - s + 1
    (ah, gh, bh), (aw, gw, bw) = change([cook_toom(m[0], r), cook_toom(m[1], s)])
    tall, wide = m[0] + r - 1, m[1] + s - 1
    th, tw = -(-rows // m[0]), -(-columns // m[1])

    def data(tensors: Sequence[Tensor], out: Indices, summed: Indices) -> Scalar:
        p, tile, channel = out
        y, z = m[0] * ((tile // tw) % th) + summed[0] - pads[0], m[1] * (tile % tw) + summed[1] - pads[1] + shift
        value = read(tensors[0], (tile // (th * tw), y, z, channel))
        body = multiply(table(bh, p // wide, summed[0]), table(bw, p % wide, summed[1]), value)
        return guarded([*inside(y, 0, h), *inside(z, 0, w_in)], body, ZERO)

    def weights(tensors: Sequence[Tensor], out: Indices, summed: Indices) -> Scalar:
        p, channel, f = out
        return multiply(table(gh, p // wide, summed[0]), table(gw, p % wide, summed[1]), read(tensors[0], (f, channel, *summed)))

    def result(tensors: Sequence[Tensor], out: Indices, summed: Indices) -> Scalar:
        b, y, z, f = out
        value = read(tensors[0], (summed[0] * wide + summed[1], (b * th + y // m[0]) * tw + z // m[1], f))
        return multiply(table(ah, y % m[0], summed[0]), table(aw, z % m[1], summed[1]), value)

    v = expression([x], (tall * wide, n * th * tw, c), data, (tall, wide))
    u = expression([w], (tall * wide, c, k), weights, (r, s))
    return expression([matmul(v, u)], (n, rows, columns, k), result, (tall, wide))


def winograd(
    n: int, c: int, k: int, h: int, w: int, r: int, s: int, m: tuple[int, int], pads: Sequence[int] | None = None, **wrong: Any
) -> Pair:
    """Return a convolution and its form as F(m, r x s)."""
    x, weight = leaf(0, n, h, w, c), leaf(1, k, c, r, s, constant=True)
    pads = pads if pads is not None else (r // 2, s // 2, r // 2, s // 2)
    return conv(x, weight, pads), fast(x, weight, m, pads, **wrong)


def rows_apart(n: int, c: int, k: int, h: int, rows: int, m: tuple[int, int] | None = None, r: int = 3) -> Pair:
    """A convolution block by block of rows, each block transformed on its own."""
    x, w = leaf(0, n, h, h, c), leaf(1, k, c, r, r, constant=True)
    p = r // 2
    parts = []
    for start in range(0, h, rows):
        end = min(h, start + rows)
        low, high = max(0, start - p), min(h, end + p)
        piece = cut(x, (0, low, 0, 0), (n, high, h, c))
        pads = (p - (start - low), p, p - (high - end), p)
        parts.append(conv(piece, w, pads) if m is None else fast(piece, w, m, pads))
    return conv(x, w, (p,) * 4), concat(1, *parts)


# --- convolution as matrix product


LEFT = [[[1, 0], [0, 1]], [[0, 0], [1, 1]], [[1, 0], [0, 0]], [[0, 0], [0, 1]], [[1, 1], [0, 0]], [[-1, 0], [1, 0]], [[0, 1], [0, -1]]]
RIGHT = [[[1, 0], [0, 1]], [[1, 0], [0, 0]], [[0, 1], [0, -1]], [[-1, 0], [1, 0]], [[0, 0], [0, 1]], [[1, 1], [0, 0]], [[0, 0], [1, 1]]]
RESULT = [[[1, 0, 0, 1, -1, 0, 1], [0, 0, 1, 0, 1, 0, 0]], [[0, 1, 0, 1, 0, 0, 0], [1, -1, 1, 0, 0, 1, 0]]]


def strassen(m: int, k: int, n: int, wrong: bool = False) -> Pair:
    """Seven products of blocks as one batched product, with tables on both sides."""
    a, b = leaf(0, m, k), leaf(1, k, n)
    result = [[list(row) for row in rows] for rows in RESULT]
    if wrong:
        result[0][0][4] = 1

    def side(constants: list[list[list[int]]], rows: int, columns: int) -> Body:
        return lambda tensors, out, block: multiply(
            table(constants, out[0], *block), read(tensors[0], (block[0] * rows + out[1], block[1] * columns + out[2]))
        )

    first = expression([a], (7, m // 2, k // 2), side(LEFT, m // 2, k // 2), (2, 2))
    second = expression([b], (7, k // 2, n // 2), side(RIGHT, k // 2, n // 2), (2, 2))

    def blocks(tensors: Sequence[Tensor], out: Indices, summed: Indices) -> Scalar:
        constants = table(result, out[0] // (m // 2), out[1] // (n // 2), summed[0])
        return multiply(constants, read(tensors[0], (summed[0], out[0] % (m // 2), out[1] % (n // 2))))

    return matmul(a, b), expression([matmul(first, second)], (m, n), blocks, (7,))


def strassen_of_slices(n: int, wrong: bool = False) -> Pair:
    """The same with slices, additions and concatenations."""
    half = n // 2
    whole = leaf(0, n, n), leaf(1, n, n)
    (a, b, c, d), (e, f, g, h) = (
        [cut(x, (i * half, j * half), (i * half + half, j * half + half)) for i in range(2) for j in range(2)] for x in whole
    )

    def add(left: Node, right: Node) -> Node:
        return apply("Add", left, right)

    def sub(left: Node, right: Node) -> Node:
        return apply("Sub", left, right)

    p = [
        matmul(add(a, d), add(e, h)), matmul(add(c, d), e), matmul(a, sub(f, h)), matmul(d, sub(g, e)), matmul(add(a, b), h),
        matmul(sub(c, a), add(e, f)), matmul(sub(b, d), add(g, h)),
    ]  # fmt: skip
    upper = concat(1, add(sub(add(p[0], p[3]), p[4]), p[6]), add(p[2], p[4]))
    lower = concat(1, add(p[1], p[3]), add(add((add if wrong else sub)(p[0], p[1]), p[2]), p[5]))
    return matmul(*whole), concat(0, upper, lower)
