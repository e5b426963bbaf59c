"""Strassen's product: seven products of half matrices instead of eight, for matrices so large that the extra sums do not matter.

    V[xi, i, k] = sum_q P[xi,q] x[half q // 2 of rows, half q % 2 of columns]      U likewise with Q      M = MatMul(V, U)
    Y[i, j] = sum_xi R[quarter of (i, j),xi] M[xi, i % half, j % half]             sum_xi P Q R = [the halves of a product fit]

The constants are Winograd's variant: fifteen sums if common ones are shared. Halves of odd sizes are rounded up and filled with zeros.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from egraph.derive.bilinear.cook_toom import Matrix
from egraph.derive.bilinear.estimates import CACHES, Caches
from egraph.derive.bilinear.programs import stages
from egraph.derive.derivation import Derivation
from egraph.tensor import Node
from egraph.tensor.expr.bodies import guarded
from egraph.tensor.expr.scope import ZERO, Reduction, Scope, Tensor, inside, table
from egraph.tensor.ops import apply
from egraph.tensor.ops.expression import text_of
from egraph.tensor.ops.scopes import grid, multiply, read

_LEFT = ((1, 0, 0, 0), (0, 1, 0, 0), (1, 1, -1, -1), (0, 0, 0, 1), (0, 0, 1, 1), (-1, 0, 1, 1), (1, 0, -1, 0))
_RIGHT = ((1, 0, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (1, -1, -1, 1), (-1, 1, 0, 0), (1, -1, 0, 1), (0, -1, 0, 1))
_RESULT = ((1, 1, 0, 0, 0, 0, 0), (1, 0, 1, 0, 1, 1, 0), (1, 0, 0, -1, 0, 1, 1), (1, 0, 0, 0, 1, 1, 1))
WORTH = 1.0
"""The least estimated speedup over the product itself; at most 8/7 is possible."""


def matrices() -> tuple[Matrix, Matrix, Matrix]:
    """Return P[xi, quarter of the left], Q[xi, quarter of the right], R[quarter of the result, xi]; quarters by rows."""
    left, right, result = (tuple(tuple(map(Fraction, row)) for row in rows) for rows in (_LEFT, _RIGHT, _RESULT))
    return left, right, result


def strassen_programs(node: Node) -> Iterable[Derivation]:
    """Yield Strassen's program of a product of two large matrices."""
    x, w = node.inputs
    if len(x.type.sizes) == len(w.type.sizes) == 2 and x.type.dtype in ("float32", "float64") and gain(node) >= WORTH:
        y = program(x, w)
        yield Derivation("strassen", y, stages(y, "2x2x2 in 7"))


def gain(node: Node, caches: Caches = CACHES) -> float:
    """Return the estimated speedup over the product itself."""
    x, w = node.inputs
    (rows, depth), columns = x.type.sizes, w.type.sizes[1]
    halves = [-(-size // 2) for size in (rows, depth, columns)]
    parts = [halves[0] * halves[1], halves[1] * halves[2], halves[0] * halves[2]]
    constant = w.op == "Placeholder" and bool(w.attribute("constant"))
    item = 4 if x.type.dtype == "float32" else 8
    made = [7 * part for part, is_free in zip(parts, (False, constant, False), strict=True) if not is_free]
    sums = sum((8 if constant else 15) / 7 * part for part in made)
    data = sum(each.type.size_bytes for each in (x, w, node))
    direct = rows * depth * columns + data * caches.memory
    moved = (
        2 * item * sum(made) * caches.rate(item * sum(made)) + (data + (item * 7 * parts[1] - w.type.size_bytes) * constant) * caches.memory
    )
    return direct / (7 * halves[0] * halves[1] * halves[2] + sums + moved)


def program(x: Node, w: Node) -> Node:
    """Return the product of two matrices by seven products of half matrices."""
    left, right, result = matrices()
    v = apply("Expression", x, text=text_of(_halves(x, left)))
    u = apply("Expression", w, text=text_of(_halves(w, right)))
    m = apply("MatMul", v, u)
    return apply("Expression", m, text=text_of(_whole(m, (x.type.sizes[0], w.type.sizes[1]), result)))


def _halves(x: Node, matrix: Matrix) -> Scope:
    """V[xi, i, k] = sum_q P[xi,q] x[half rows (q // 2) + i, half columns (q % 2) + k]"""
    sizes = x.type.sizes
    rows, columns = (-(-size // 2) for size in sizes)
    traversal, (xi, i, k) = grid("i", (7, rows, columns))
    sums, (q,) = grid("k", (4,))
    coordinates = (q // 2) * rows + i, (q % 2) * columns + k
    value = multiply(read(Tensor("0", sizes), coordinates), table(matrix, xi, q))
    conditions = [c for position, size in zip(coordinates, sizes, strict=True) for c in inside(position, 0, size)]
    return Scope(traversal, sums, Reduction.SUM, guarded(conditions, value, ZERO))


def _whole(m: Node, sizes: tuple[int, int], matrix: Matrix) -> Scope:
    """Y[i, j] = sum_xi R[2 (i // half) + j // half,xi] M[xi, i % half, j % half]"""
    _, rows, columns = m.type.sizes
    traversal, (i, j) = grid("i", sizes)
    sums, (xi,) = grid("k", (7,))
    quarter = (i // rows) * 2 + j // columns
    product = multiply(read(Tensor("0", m.type.sizes), (xi, i % rows, j % columns)), table(matrix, quarter, xi))
    return Scope(traversal, sums, Reduction.SUM, product)
