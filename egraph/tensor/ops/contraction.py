"""MatMul: products of (batches of) matrices, with numpy's semantics; vectors are imported as matrices of one row or column."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from egraph.tensor.expr.index import Index
from egraph.tensor.expr.scope import Reduction, Scope, Tensor
from egraph.tensor.ops.dtypes import BYTES, FLOATS, contracted
from egraph.tensor.ops.sampling import SIZES, Sample, draw_broadcasting
from egraph.tensor.ops.scopes import broadcast_places, factor, grid, multiply
from egraph.tensor.ops.sizes import broadcast, plain, refuse, same
from egraph.tensor.ops.spec import OpSpec, Shape, Values


def _matmul_shape(shapes: Sequence[Shape], _: Values) -> Shape:
    left, right = shapes
    if len(left) < 2 or len(right) < 2:
        refuse("operands must have at least two axes")
    same(left[-1], right[-2], "the summed sizes differ")
    return (*broadcast([left[:-2], right[:-2]]), left[-2], right[-1])


def _matmul_meaning(operands: Sequence[Tensor], a: Values) -> Scope:
    left, right = operands
    shape = _matmul_shape([left.shape, right.shape], a)
    iterators, out = grid("i", shape)
    sums, (k,) = grid("k", left.shape[-1:])
    *batch, row, column = out

    def at(tensor: Tensor, matrix: Sequence[Index]) -> tuple[Index, ...]:
        lead = tensor.shape[:-2]
        aligned = batch[len(batch) - len(lead) :]
        return (*broadcast_places(lead, aligned), *matrix)

    body = multiply(factor(left, at(left, (row, k))), factor(right, at(right, (k, column))))
    return Scope(iterators, sums, Reduction.SUM, body)


def _matmul_flops(shapes: Sequence[tuple[int, ...]], a: Values) -> int:
    return 2 * shapes[0][-1] * math.prod(plain(_matmul_shape(shapes, a)))


def _matmul_sample(random: Random) -> Sample:
    m, n, k = (random.choice(SIZES) for _ in range(3))
    if random.random() < 0.4:
        return ((m, k), (k, n)), {}
    left, right = draw_broadcasting(random, 2)
    return ((*left[-2:], m, k), (*right[-2:], k, n)), {}


CONTRACTION: tuple[OpSpec, ...] = (
    OpSpec(
        "MatMul", 2, "contraction", _matmul_shape, _matmul_meaning, _matmul_sample, dtype=contracted, dtypes=FLOATS | BYTES,
        flops=_matmul_flops, onnx=("MatMul",),
    ),
)  # fmt: skip
