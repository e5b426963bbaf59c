"""Algebra of matrix products: constants fold into weights, batches collapse, sums and concatenations distribute."""

from __future__ import annotations

from egraph.rule import Attributes, Rule, Steps, Tensor, Weight, require, rule
from egraph.rule_operators import concat, slice_, transpose
from egraph.rules.axes import padded_shape
from egraph.rules.family import of_arity


@rule(rounding="reassociates")
def matmul_weights_associate(x: Tensor, v: Weight, w: Weight) -> Steps:
    """(x V) W = x (V W)

    Only where the product is no larger than both factors: otherwise it costs multiplications."""
    yield (x @ v) @ w
    require(v.rank == 2 and w.rank == 2, "the weights must be matrices")
    (k, m), n = v.shape, w.shape[1]
    require(k * n <= k * m + m * n, "the product of the weights must not be larger than both")
    yield x @ (v @ w)


def row_vector(s: Tensor, rank: int, columns: int) -> Tensor:
    """Return s as [1] or [columns]; refuse an s that varies along another axis or adds axes."""
    require(s.rank <= rank, "the constant must not add axes")
    shape = padded_shape(s.shape, rank)
    require(all(size == 1 for size in shape[:-1]), "the constant must vary along the last axis alone")
    require(shape[-1] in (columns, 1), "the constant must not widen the last axis")
    return s.reshape(shape[-1])


def _as_column(row: Tensor) -> Tensor:
    return row.reshape(row.shape[0], 1)


@rule(rounding="reassociates")
def scale_into_matmul_weight(x: Tensor, w: Weight, s: Weight) -> Steps:
    """(x W) * s = x (W * s),  s one number a column"""
    product = x @ w
    yield product * s
    require(w.rank >= 2, "the weight must be a matrix")
    yield x @ (w * row_vector(s, product.rank, w.shape[-1]))


@rule(rounding="reassociates")
def scale_into_matmul_left_weight(w: Weight, x: Tensor, s: Weight) -> Steps:
    """(W x) * s = (W * s) x,  s one number a row"""
    product = w @ x
    yield product * s
    require(w.rank == 2 and x.rank >= 2, "the weight must be a matrix")
    require(s.rank <= product.rank, "the constant must not add axes")
    shape = padded_shape(s.shape, product.rank)
    require(all(size == 1 for i, size in enumerate(shape) if i != len(shape) - 2), "the constant must vary along the rows alone")
    require(shape[-2] in (1, w.shape[0]), "the constant must not widen the rows")
    yield (w * s.reshape(shape[-2], 1)) @ x


@rule(rounding="reassociates")
def input_scale_into_matmul_weight(x: Tensor, s: Weight, w: Weight) -> Steps:
    """(x * s) W = x (s^T * W),  s one number a row of W"""
    yield (x * s) @ w
    require(x.rank >= 2 and w.rank == 2, "the weight must be a matrix")
    yield x @ (w * _as_column(row_vector(s, x.rank, x.shape[-1])))


@rule(rounding="reassociates")
def number_from_matmul_right_to_left(x: Tensor, y: Tensor, c: Weight) -> Steps:
    """x (y * c) = (x * c) y,  c one number

    Numbers gather at the left operand, where they fold into its producer's weight: every place would multiply the forms."""
    yield x @ (y * c)
    require(c.type.elements == 1 and c.rank <= y.rank, "c must be one number that adds no axes")
    yield (x * c) @ y


@rule(rounding="reassociates")
def number_into_matmul_left(x: Tensor, y: Tensor, c: Weight) -> Steps:
    """(x y) * c = (x * c) y,  c one number"""
    yield (x @ y) * c
    require(c.type.elements == 1, "c must be one number")
    yield (x * c) @ y


@rule
def collapse_matmul_batch(x: Tensor, w: Weight) -> Steps:
    """x[B, S, K] W[K, N] = reshape(reshape(x, [B S, K]) W, [B, S, N])"""
    product = x @ w
    yield product
    require(x.rank > 2 and w.rank == 2, "x must have batch axes that the weight lacks")
    rows = x.type.elements // x.shape[-1]
    yield (x.reshape(rows, x.shape[-1]) @ w).reshape(*product.shape)


@rule
def matmul_column_is_product(x: Tensor, y: Tensor) -> Steps:
    """x[M, 1] y[1, N] = x * y"""
    yield x @ y
    require(x.rank >= 2 and y.rank >= 2 and x.shape[-1] == 1, "the contracted axis must have size one")
    yield x * y


def _swaps_last_two(perm: tuple[int, ...]) -> bool:
    rank = len(perm)
    return rank >= 2 and perm == (*range(rank - 2), rank - 1, rank - 2)


@rule
def transpose_of_matmul(x: Tensor, y: Tensor, p: Attributes) -> Steps:
    """(x y)^T = y^T x^T"""
    yield transpose(x @ y, p)
    require(_swaps_last_two(p.perm), "the transpose must swap the last two axes alone")
    require(x.rank == y.rank, "the operands must have the same rank")
    yield transpose(y, p) @ transpose(x, p)


@rule
def matmul_of_transposes(x: Tensor, y: Tensor, p: Attributes) -> Steps:
    """x^T y^T = (y x)^T"""
    yield transpose(x, p) @ transpose(y, p)
    require(_swaps_last_two(p.perm), "the transposes must swap the last two axes alone")
    yield transpose(y @ x, p)


@rule
def batch_transpose_out_of_matmul(x: Tensor, y: Tensor, p: Attributes) -> Steps:
    """transpose(x) transpose(y) = transpose(x y),  only batch axes moved"""
    yield transpose(x, p) @ transpose(y, p)
    rank = len(p.perm)
    require(rank > 2 and p.perm[-2:] == (rank - 2, rank - 1), "the last two axes must stay")
    yield transpose(x @ y, p)


@rule(rounding="reassociates")
def add_matmuls_of_one_input(x: Tensor, v: Weight, w: Weight) -> Steps:
    """x V + x W = x (V + W)"""
    yield x @ v + x @ w
    require(v.shape == w.shape, "the weights must have the same shape: a product does not broadcast after the sum")
    yield x @ (v + w)


@rule(rounding="reassociates")
def add_matmuls_of_one_weight(x: Tensor, y: Tensor, w: Weight) -> Steps:
    """x W + y W = (x + y) W"""
    yield x @ w + y @ w
    require(x.shape == y.shape, "the inputs must have the same shape")
    yield (x + y) @ w


@rule(rounding="reassociates")
def add_matmuls(x: Tensor, y: Tensor, v: Weight, w: Weight) -> Steps:
    """x V + y W = [x y] [V; W]"""
    yield x @ v + y @ w
    require(x.rank == y.rank >= 2 and x.shape[:-1] == y.shape[:-1], "the inputs must have the same rows")
    require(v.rank == w.rank == 2 and v.shape[1] == w.shape[1], "the weights must be matrices with the same columns")
    yield concat(x, y, axis=x.rank - 1) @ concat(v, w, axis=0)


@rule(rounding="reassociates")
def matmul_of_concat(x: Tensor, y: Tensor, w: Weight, a: Attributes) -> Steps:
    """[x y] W = x W[:k] + y W[k:]"""
    yield concat(x, y, a=a) @ w
    require(w.rank == 2 and a.axis == x.rank - 1, "the concatenation must be along the contracted axis")
    k, (total, n) = x.shape[-1], w.shape
    upper = slice_(w, starts=(0, 0), ends=(k, n), steps=(1, 1))
    lower = slice_(w, starts=(k, 0), ends=(total, n), steps=(1, 1))
    yield x @ upper + y @ lower


def concat_of_matmuls_of_one_input(x: Tensor, w: list[Weight], a: Attributes) -> Steps:
    products = [x @ each for each in w]
    yield concat(*products, a=a)
    require(all(each.rank == 2 for each in w), "the weights must be matrices")
    require(a.axis == products[0].rank - 1, "the concatenation must be along the columns")
    yield x @ concat(*w, axis=1)


def concat_of_matmuls_of_one_weight(x: list[Tensor], w: Weight, a: Attributes) -> Steps:
    yield concat(*(each @ w for each in x), a=a)
    require(w.rank == 2 and a.axis < x[0].rank - 1, "the concatenation must be along rows or batch axes of the inputs")
    yield concat(*x, a=a) @ w


@rule
def columns_of_matmul(x: Tensor, w: Weight, a: Attributes) -> Steps:
    """(x W)[:, i:j] = x W[:, i:j]"""
    product = x @ w
    yield slice_(product, a)
    axes = range(product.rank - 1)
    require(w.rank == 2, "the weight must be a matrix")
    require(all(a.starts[i] == 0 and a.steps[i] == 1 and a.ends[i] == product.shape[i] for i in axes), "only columns may be cut")
    rows = w.shape[0]
    yield x @ slice_(w, starts=(0, a.starts[-1]), ends=(rows, a.ends[-1]), steps=(1, a.steps[-1]))


@rule
def rows_of_matmul(x: Tensor, w: Weight, a: Attributes) -> Steps:
    """(x W)[i:j] = x[i:j] W"""
    product = x @ w
    yield slice_(product, a)
    require(w.rank == 2 and x.rank >= 2, "the weight must be a matrix")
    require((a.starts[-1], a.ends[-1], a.steps[-1]) == (0, product.shape[-1], 1), "the columns must stay whole")
    yield slice_(x, starts=a.starts, ends=(*a.ends[:-1], x.shape[-1]), steps=a.steps) @ w


RULES: tuple[Rule, ...] = (
    matmul_weights_associate, scale_into_matmul_weight, scale_into_matmul_left_weight, input_scale_into_matmul_weight,
    number_from_matmul_right_to_left, number_into_matmul_left,
    collapse_matmul_batch, matmul_column_is_product, transpose_of_matmul, matmul_of_transposes, batch_transpose_out_of_matmul,
    add_matmuls_of_one_input, add_matmuls_of_one_weight, add_matmuls, matmul_of_concat,
    *(of_arity(concat_of_matmuls_of_one_input, n, f"concat(x W_i, columns) = x concat(W_i, columns),  i to {n}") for n in (2, 3, 4)),
    *(of_arity(concat_of_matmuls_of_one_weight, n, f"concat(x_i W, rows) = concat(x_i, rows) W,  i to {n}") for n in (2, 3, 4)),
    columns_of_matmul, rows_of_matmul,
)
