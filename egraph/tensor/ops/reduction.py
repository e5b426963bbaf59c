"""ReduceSum and related operators: whole axes are reduced, their sizes kept as 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from egraph.tensor.expr.index import Index
from egraph.tensor.expr.scope import IndexNumber, Reduction, Scalar, Scope, Tensor, number
from egraph.tensor.expr.scope import apply as call
from egraph.tensor.ops.dtypes import RING
from egraph.tensor.ops.sampling import Sample, draw_shape
from egraph.tensor.ops.scopes import as_number, grid, pointwise, read, read_broadcast
from egraph.tensor.ops.sizes import axis_of, known, product, refuse
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


LARGEST_PLACE = 1 << 24
"""The largest size of an axis: places are compared in float32, which holds every whole number up to here."""


def _place_shape(shapes: Sequence[Shape], a: Values) -> Shape:
    axis = axis_of(a["axis"], shapes[0])
    if a["select_last_index"] not in (0, 1):
        refuse(f"select_last_index must be 0 or 1, got {a['select_last_index']}")
    if (size := known(shapes[0][axis])) is not None and size > LARGEST_PLACE:
        refuse(f"an axis must have at most {LARGEST_PLACE} elements, got {size}")
    return tuple(1 if k == axis else size for k, size in enumerate(shapes[0]))


def _place(kind: Reduction) -> Callable[[Sequence[Tensor], Values], Scope]:
    """Return the meaning: the least (greatest) k where x_k is the extreme, and 0 if none is, because NaN equals nothing."""

    def meaning(operands: Sequence[Tensor], a: Values) -> Scope:
        data, axis = operands[0], a["axis"]
        extreme, count = reduce_axes(data, (axis,), kind, "e"), as_number(data.shape[axis])
        order, none = (Reduction.MAX, number(0)) if a["select_last_index"] else (Reduction.MIN, count)

        def place(i: tuple[Index, ...]) -> Scalar:
            return call("where", call("equal", read(data, i), read_broadcast(extreme, i)), IndexNumber(i[axis]), none)

        def known_place(i: tuple[Index, ...]) -> Scalar:
            return call("to_int64", call("where", call("less", read(places, i), count), read(places, i), number(0)))

        places = reduce_axes(pointwise("p", data.shape, place), (axis,), order, "r")
        return pointwise("i", places.shape, known_place)

    return meaning


def _place_spec(name: str, kind: Reduction) -> OpSpec:
    def sample(random: Random) -> Sample:
        shape = draw_shape(random)
        return (shape,), {"axis": random.randrange(len(shape)), "select_last_index": random.randint(0, 1)}

    return OpSpec(
        name, 1, "reduction", _place_shape, _place(kind), sample, attributes=("axis", "select_last_index"), dtype=lambda _: "int64",
        dtypes=frozenset({"float32"}), flops=lambda shapes, _: 2 * math.prod(shapes[0]), notes="the axis's size is kept as 1",
    )  # fmt: skip


REDUCTION: tuple[OpSpec, ...] = (
    replace(_reduction("ReduceSum", Reduction.SUM), dtypes=RING),
    _reduction("ReduceMax", Reduction.MAX),
    _reduction("ReduceMin", Reduction.MIN),
    _reduction("ReduceProd", Reduction.PROD),
    _reduce_spec("ReduceMean", _mean_meaning),
    _place_spec("ArgMax", Reduction.MAX),
    _place_spec("ArgMin", Reduction.MIN),
)
