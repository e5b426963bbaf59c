"""Operators that only move, repeat or drop elements: Transpose, Expand, Concat, Slice, Gather."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from egraph.tensor.expr.bodies import guarded
from egraph.tensor.expr.index import DataIndex, Index, Size, index
from egraph.tensor.expr.scope import Compare, Scalar, Scope, Tensor
from egraph.tensor.node import Node
from egraph.tensor.ops.dtypes import EVERY, indexed, same_dtype
from egraph.tensor.ops.sampling import SIZES, Sample, draw_broadcastable, draw_shape
from egraph.tensor.ops.scopes import pointwise, read, read_broadcast
from egraph.tensor.ops.sizes import at_least, axis_of, broadcasts_to, divide, entries, known, refuse, same, show_shape
from egraph.tensor.ops.spec import OpSpec, Shape, Values


def _transpose_shape(shapes: Sequence[Shape], a: Values) -> Shape:
    if sorted(a["perm"]) != list(range(len(shapes[0]))):
        refuse(f"perm must order the {len(shapes[0])} axes, got {a['perm']}")
    return tuple(shapes[0][axis] for axis in a["perm"])


def _transpose_meaning(operands: Sequence[Tensor], a: Values) -> Scope:
    perm = a["perm"]
    shape = _transpose_shape([operands[0].shape], a)
    return pointwise("i", shape, lambda i: read(operands[0], [i[perm.index(axis)] for axis in range(len(perm))]))


def _transpose_sample(random: Random) -> Sample:
    shape = draw_shape(random)
    return (shape,), {"perm": tuple(random.sample(range(len(shape)), len(shape)))}


def _expand_shape(shapes: Sequence[Shape], a: Values) -> Shape:
    broadcasts_to(shapes[0], a["shape"], "operand")
    return tuple(a["shape"])


def _expand_sample(random: Random) -> Sample:
    shape = draw_shape(random)
    return (draw_broadcastable(random, shape),), {"shape": shape}


def _concat_shape(shapes: Sequence[Shape], a: Values) -> Shape:
    first, axis = shapes[0], axis_of(a["axis"], shapes[0])
    total: Size = 0
    for position, shape in enumerate(shapes):
        if len(shape) != len(first):
            refuse(f"operand {position} {show_shape(shape)} must have {len(first)} axes like operand 0 {show_shape(first)}")
        for other, (left, right) in enumerate(zip(first, shape, strict=True)):
            if other != axis:
                same(left, right, f"operand {position} differs from operand 0 in axis {other}")
        total = total + shape[axis]
    return (*first[:axis], total, *first[axis + 1 :])


def _concat_meaning(operands: Sequence[Tensor], a: Values) -> Scope:
    axis = a["axis"]

    def body(indices: tuple[Index, ...]) -> Scalar:
        ends: list[Size] = [0]
        for operand in operands:
            ends.append(ends[-1] + operand.shape[axis])
        reads = [
            read(operand, (*indices[:axis], indices[axis] - start, *indices[axis + 1 :]))
            for operand, start in zip(operands, ends, strict=False)
        ]
        result: Scalar = reads[-1]
        for part, end in zip(reversed(reads[:-1]), reversed(ends[1:-1]), strict=True):
            result = guarded((Compare(indices[axis], "<", index(end)),), part, result)
        return result

    return pointwise("i", _concat_shape([operand.shape for operand in operands], a), body)


def _concat_sample(random: Random) -> Sample:
    shape = draw_shape(random)
    axis = random.randrange(len(shape))
    sizes = [random.choice(SIZES) for _ in range(random.randint(1, 4))]
    return tuple((*shape[:axis], size, *shape[axis + 1 :]) for size in sizes), {"axis": axis}


def _slice_shape(shapes: Sequence[Shape], a: Values) -> Shape:
    rank = len(shapes[0])
    result: list[Size] = []
    columns = [entries(a[name], rank, name) for name in ("starts", "ends", "steps")]
    for axis, (size, start, end, step) in enumerate(zip(shapes[0], *columns, strict=True)):
        if known(step) == 0:
            refuse(f"step of axis {axis} must not be 0")
        reason = f"axis {axis}: end - start must be a multiple of the step"
        count = divide(end - start, step, reason, signed=True)
        at_least(count, 1, f"axis {axis}: start {start}, end {end}, step {step} select nothing; size must be at least 1")
        last = start + (count - 1) * step
        for edge in (start, last):
            at_least(edge, 0, f"axis {axis}: selected positions must be at least 0")
            at_least(size - 1 - edge, 0, f"axis {axis} of size {size}: position {edge} is outside; remaining size must be at least 0")
        result.append(count)
    return tuple(result)


def _slice_meaning(operands: Sequence[Tensor], a: Values) -> Scope:
    shape = _slice_shape([operands[0].shape], a)

    def body(indices: tuple[Index, ...]) -> Scalar:
        return read(operands[0], [start + i * step for start, i, step in zip(a["starts"], indices, a["steps"], strict=True)])

    return pointwise("i", shape, body)


def _slice_sample(random: Random) -> Sample:
    shape = draw_shape(random)
    starts, ends, steps = [], [], []
    for size in shape:
        step = random.choice((1, 1, 2, 3, -1, -2))
        start = random.randrange(size)
        room = (size - 1 - start) // step if step > 0 else start // -step
        count = random.randint(1, room + 1)
        starts.append(start)
        steps.append(step)
        ends.append(start + count * step)
    return (shape,), {"starts": tuple(starts), "ends": tuple(ends), "steps": tuple(steps)}


def _gather_shape(shapes: Sequence[Shape], a: Values) -> Shape:
    axis = axis_of(a["axis"], shapes[0])
    return (*shapes[0][:axis], *shapes[1], *shapes[0][axis + 1 :])


def _gather_meaning(operands: Sequence[Tensor], a: Values) -> Scope:
    data, chosen = operands
    axis, rank = a["axis"], len(chosen.shape)

    def body(indices: tuple[Index, ...]) -> Scalar:
        where = index(DataIndex(read(chosen, indices[axis : axis + rank]))) % data.shape[axis]  # -size <= index < size
        return read(data, (*indices[:axis], where, *indices[axis + rank :]))

    return pointwise("i", _gather_shape([data.shape, chosen.shape], a), body)


def _gather_sample(random: Random) -> Sample:
    data, indices = draw_shape(random), draw_shape(random, 0, 2)
    return (data, indices), {"axis": random.randrange(len(data))}


MOVEMENT: tuple[OpSpec, ...] = (
    OpSpec(
        "Transpose", 1, "movement", _transpose_shape, _transpose_meaning, _transpose_sample, attributes=("perm",), dtypes=EVERY,
        dtype=same_dtype, onnx=("Transpose",),
    ),
    OpSpec(
        "Expand", 1, "movement", _expand_shape,
        lambda operands, a: pointwise("i", a["shape"], lambda indices: read_broadcast(operands[0], indices)),
        _expand_sample, attributes=("shape",), dtypes=EVERY, dtype=same_dtype, notes="shape is the result's",
    ),
    OpSpec(
        "Concat", None, "movement", _concat_shape, _concat_meaning, _concat_sample, attributes=("axis",), dtypes=EVERY,
        dtype=same_dtype, onnx=("Concat",),
    ),
    OpSpec(
        "Slice", 1, "movement", _slice_shape, _slice_meaning, _slice_sample, attributes=("ends", "starts", "steps"), dtypes=EVERY,
        dtype=same_dtype, notes="one entry an axis, positions inside the tensor; ends = starts + count * steps",
    ),
    OpSpec(
        "Gather", 2, "movement", _gather_shape, _gather_meaning, _gather_sample, attributes=("axis",), dtypes=EVERY, dtype=indexed,
        onnx=("Gather",), sample_dtypes=("float32", "int64"), notes="indices in -size..size-1; negative ones count from the end",
    ),
)  # fmt: skip


def joins_outermost(fragment: Node) -> bool:
    """Return whether a fragment only concatenates along the outermost axis: its parts lie one after the other."""
    if fragment.op != "Concat" or any(part.op != "Placeholder" for part in fragment.inputs):
        return False
    return all(size == 1 for size in fragment.type.sizes[: fragment.integer("axis")])
