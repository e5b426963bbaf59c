"""ReduceSum and its kin: whole axes are reduced, their sizes kept as 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from egraph.tensor.expr.scope import Reduction, Scalar, Scope, Tensor
from egraph.tensor.expr.scope import apply as call
from egraph.tensor.ops.dtypes import RING
from egraph.tensor.ops.sampling import Sample, draw_shape
from egraph.tensor.ops.scopes import as_number, grid, pointwise, read
from egraph.tensor.ops.sizes import axis_of, product, refuse
from egraph.tensor.ops.spec import OpSpec, Shape, Values


def _reduced_shape(shapes: Sequence[Shape], a: Values) -> Shape:
    axes = a["axes"]
    if not axes or list(axes) != sorted(set(axes)):
        refuse(f"axes must be at least one axis, sorted and distinct, got {axes}")
    for axis in axes:
        axis_of(axis, shapes[0])
    return tuple(1 if axis in axes else size for axis, size in enumerate(shapes[0]))


def reduce_axes(
    source: Tensor | Scope, axes: Sequence[int], kind: Reduction, prefix: str, of: Callable[[Scalar], Scalar] | None = None
) -> Scope:
    """Reduce ``of(element)`` over axes whose sizes are kept as 1."""
    shape = source.shape
    iterators, out = grid(prefix, [1 if axis in axes else size for axis, size in enumerate(shape)])
    sums, inner = grid(f"{prefix}k", [shape[axis] for axis in axes])
    position = [inner[list(axes).index(axis)] if axis in axes else out[axis] for axis in range(len(shape))]
    element = read(source, position)
    return Scope(iterators, sums, kind, of(element) if of else element)


def _reduction(name: str, kind: Reduction) -> OpSpec:
    def meaning(operands: Sequence[Tensor], a: Values) -> Scope:
        return reduce_axes(operands[0], a["axes"], kind, "i")

    return _reduce_spec(name, meaning)


def _mean_meaning(operands: Sequence[Tensor], a: Values) -> Scope:
    total = reduce_axes(operands[0], a["axes"], Reduction.SUM, "s")
    count = as_number(product([operands[0].shape[axis] for axis in a["axes"]]))
    return pointwise("i", total.shape, lambda indices: call("div", read(total, indices), count))


def _reduce_spec(name: str, meaning: Callable[[Sequence[Tensor], Values], Scope]) -> OpSpec:
    def sample(random: Random) -> Sample:
        shape = draw_shape(random)
        return (shape,), {"axes": tuple(sorted(random.sample(range(len(shape)), random.randint(1, len(shape)))))}

    return OpSpec(
        name, 1, "reduction", _reduced_shape, meaning, sample, attributes=("axes",), flops=lambda shapes, _: math.prod(shapes[0])
    )


REDUCTION: tuple[OpSpec, ...] = (
    replace(_reduction("ReduceSum", Reduction.SUM), dtypes=RING),
    _reduction("ReduceMax", Reduction.MAX),
    _reduction("ReduceMin", Reduction.MIN),
    _reduction("ReduceProd", Reduction.PROD),
    _reduce_spec("ReduceMean", _mean_meaning),
)
