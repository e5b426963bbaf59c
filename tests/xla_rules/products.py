"""Products of matrices."""

from __future__ import annotations

from egraph.rule import Attributes, Steps, Tensor, Weight, require
from egraph.rule_operators import concat, expand, reduce_sum, transpose
from tests.xla_rules.claims import Claim, Truth, claim, member


@claim("true", "reassociates")
def sum_of_columns(x: Tensor, y: Tensor, a: Attributes) -> Steps:
    """sum over columns of (x y) = x (sum over columns of y)"""
    yield reduce_sum(x @ y, a)
    require(x.rank == 2 and y.rank == 2 and a.axes == (1,), "over columns")
    yield x @ reduce_sum(y, a)


@claim("false", "reassociates")
def sum_of_columns_wrongly(x: Tensor, y: Tensor, a: Attributes) -> Steps:
    """sum over columns of (x y) = (sum over columns of x) y"""
    yield reduce_sum(x @ y, a)
    require(x.rank == 2 and y.rank == 2 and a.axes == (0,) and x.shape[0] == x.shape[1] and y.shape[0] == y.shape[1], "square")
    yield expand(reduce_sum(y, a), shape=(1, y.shape[1]))


@claim("true", "reassociates")
def transpose_a_product(x: Tensor, y: Tensor, p: Attributes) -> Steps:
    """(x y)^T = y^T x^T"""
    yield transpose(x @ y, p)
    require(x.rank == 2 and y.rank == 2 and p.perm == (1, 0), "matrices")
    yield transpose(y, p) @ transpose(x, p)


@claim("false", "reassociates")
def transpose_a_product_wrongly(x: Tensor, y: Tensor, p: Attributes) -> Steps:
    """(x y)^T = x^T y^T, of square matrices"""
    yield transpose(x @ y, p)
    require(x.rank == 2 and y.rank == 2 and p.perm == (1, 0) and x.shape == y.shape, "matrices")
    yield transpose(x, p) @ transpose(y, p)


@claim("false", "reassociates")
def product_commutes(x: Tensor, y: Tensor) -> Steps:
    """x y = y x, of square matrices"""
    yield x @ y
    require(x.rank == 2 and x.shape == y.shape, "square")
    yield y @ x


def of_scaled(truth: Truth, name: str, text: str, axis: int, *, square: bool) -> Claim:
    """x (y c) = (x y) c, with c of size one along an axis"""

    def law(x: Tensor, y: Tensor, c: Weight) -> Steps:
        yield x @ (y * c)
        require(x.rank == 2 and y.rank == 2 and c.rank == 2 and c.shape[axis] == 1, f"one number along axis {axis}")
        require(not square or x.shape[0] == x.shape[1], "a square")
        yield (x @ y) * c

    return member(truth, name, text, law, "reassociates")


@claim("false", "reassociates")
def product_of_parts(x: Tensor, y: Tensor, u: Tensor, v: Tensor, c: Attributes, d: Attributes) -> Steps:
    """[x y] [u; v] = x u + y v, but the parts may be cut elsewhere"""
    yield concat(x, y, a=c) @ concat(u, v, a=d)
    require(x.rank == 2 and u.rank == 2 and c.axis == 1 and d.axis == 0, "joined where they meet")
    require(x.shape[1] + y.shape[1] == u.shape[0] + v.shape[0] and x.shape == y.shape and u.shape == v.shape, "halves")
    yield x @ v + y @ u


@claim("true", "reassociates")
def product_of_equal_parts(x: Tensor, y: Tensor, u: Tensor, v: Tensor, c: Attributes, d: Attributes) -> Steps:
    """[x y] [u; v] = x u + y v"""
    yield concat(x, y, a=c) @ concat(u, v, a=d)
    require(x.rank == 2 and u.rank == 2 and c.axis == 1 and d.axis == 0, "joined where they meet")
    require(x.shape[1] == u.shape[0], "cut at the same place")
    yield x @ u + y @ v


CLAIMS = (
    sum_of_columns, sum_of_columns_wrongly, transpose_a_product, transpose_a_product_wrongly, product_commutes,
    of_scaled("true", "scale_columns", "x (y c) = (x y) c, one number a column", 0, square=False),
    of_scaled("false", "scale_rows_wrongly", "x (y c) = (x y) c, but one number a row", 1, square=True),
    product_of_parts, product_of_equal_parts,
)  # fmt: skip
