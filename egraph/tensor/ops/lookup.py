"""Elements and rows read at places that a tensor of integers holds: GatherElements, GatherND."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from egraph.tensor.expr.index import DataIndex, Index, Size, index
from egraph.tensor.expr.scope import Scalar, Scope, Tensor
from egraph.tensor.node import Node
from egraph.tensor.ops.dtypes import EVERY, indexed
from egraph.tensor.ops.sampling import Sample, draw_shape
from egraph.tensor.ops.scopes import pointwise, read
from egraph.tensor.ops.sizes import at_least, axis_of, known, refuse, same, show_shape
from egraph.tensor.ops.spec import OpSpec, Shape, Values


def _place(chosen: Tensor, at: Sequence[Size], size: Size) -> Index:
    """Return the integer at these indices, counted from the end if it is negative: -size <= integer < size"""
    return index(DataIndex(read(chosen, at))) % size


def _elements_shape(shapes: Sequence[Shape], a: Values) -> Shape:
    data, chosen = shapes
    axis = axis_of(a["axis"], data)
    if len(chosen) != len(data):
        refuse(f"indices {show_shape(chosen)} must have {len(data)} axes like the data {show_shape(data)}")
    for other, (size, most) in enumerate(zip(chosen, data, strict=True)):
        if other != axis:
            at_least(most - size, 0, f"indices have {size} places along axis {other}, the data {most}; what is left must be at least 0")
    return tuple(chosen)


def _elements_meaning(operands: Sequence[Tensor], a: Values) -> Scope:
    data, chosen = operands
    axis = a["axis"]

    def body(indices: tuple[Index, ...]) -> Scalar:
        return read(data, (*indices[:axis], _place(chosen, indices, data.shape[axis]), *indices[axis + 1 :]))

    return pointwise("i", chosen.shape, body)


def _elements_sample(random: Random) -> Sample:
    data = draw_shape(random)
    axis = random.randrange(len(data))
    chosen = tuple(random.randint(1, 5) if k == axis else random.randint(1, size) for k, size in enumerate(data))
    return (data, chosen), {"axis": axis}


def _rows_shape(shapes: Sequence[Shape], a: Values) -> Shape:
    """Return the batch axes and places of the indices, then the axes of the data after those that are indexed."""
    data, chosen = shapes
    batches, depth = a["batch_dims"], known(chosen[-1]) if chosen else None
    if depth is None or not 0 <= batches < len(chosen) or batches + depth > len(data):
        refuse(f"indices {show_shape(chosen)} do not choose from the data {show_shape(data)} behind {batches} batch axes")
    for axis in range(batches):
        same(data[axis], chosen[axis], f"indices differ from the data in batch axis {axis}")
    return (*chosen[:-1], *data[batches + depth :])


def _rows_meaning(operands: Sequence[Tensor], a: Values) -> Scope:
    data, chosen = operands
    batches, places = a["batch_dims"], len(chosen.shape) - 1
    depth = len(data.shape) - batches - (len(_rows_shape([data.shape, chosen.shape], a)) - places)

    def body(indices: tuple[Index, ...]) -> Scalar:
        where = [_place(chosen, (*indices[:places], k), data.shape[batches + k]) for k in range(depth)]
        return read(data, (*indices[:batches], *where, *indices[places:]))

    return pointwise("i", _rows_shape([data.shape, chosen.shape], a), body)


def _rows_sample(random: Random) -> Sample:
    data = draw_shape(random)
    batches = random.randrange(len(data))
    depth = random.randint(1, len(data) - batches)
    return (data, (*data[:batches], *draw_shape(random, 0, 2), depth)), {"batch_dims": batches}


def fewest_entries(node: Node) -> int | None:
    """Return the size of the shortest axis that an operator reads at computed places; None if it reads at no such places."""
    if node.op not in READ_AT_COMPUTED_PLACES:
        return None
    sizes = node.inputs[0].type.sizes
    return min(sizes) if node.op == "GatherND" else sizes[node.integer("axis")]


READ_AT_COMPUTED_PLACES = ("Gather", "GatherElements", "GatherND")
"""Operators whose operand 1 holds the places that operand 0 is read at."""

LOOKUP: tuple[OpSpec, ...] = (
    OpSpec(
        "GatherElements", 2, "movement", _elements_shape, _elements_meaning, _elements_sample, attributes=("axis",), dtypes=EVERY,
        dtype=indexed, onnx=("GatherElements",), sample_dtypes=("float32", "int64"),
        notes="indices in -size..size-1; negative ones count from the end",
    ),
    OpSpec(
        "GatherND", 2, "movement", _rows_shape, _rows_meaning, _rows_sample, attributes=("batch_dims",), dtypes=EVERY,
        dtype=indexed, onnx=("GatherND",), sample_dtypes=("float32", "int64"),
        notes="the last axis of the indices holds a place for each indexed axis, in -size..size-1",
    ),
)  # fmt: skip
