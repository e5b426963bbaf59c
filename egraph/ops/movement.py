"""Operators that only move, repeat, drop or pad elements: Reshape, Transpose, Expand, Concat, Slice, Pad, Gather."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from egraph.expr.index import DataIndex, Index, Size, index
from egraph.expr.scope import Compare, Scalar, Scope, Tensor, number
from egraph.ops.dtypes import EVERY, indexed, same_dtype
from egraph.ops.sampling import SIZES, Sample, draw_broadcastable, draw_float, draw_shape
from egraph.ops.scopes import clamped_read, guarded, pointwise, read, read_broadcast
from egraph.ops.sizes import (
    at_least, axis_of, broadcasts_to, entries, equal, is_one, is_zero, known, one_of, product, refuse, same, show_shape,
)  # fmt: skip
from egraph.ops.spec import OpSpec, Shape, Values


def _reshape_shape(shapes: Sequence[Shape], a: Values) -> Shape:
    if not equal(product(shapes[0]), product(a["shape"])):
        refuse(f"{show_shape(shapes[0])} and {show_shape(a['shape'])} have different numbers of elements")
    return tuple(a["shape"])


def _segments(source: Shape, target: Shape) -> list[tuple[range, range]]:
    """Cut both shapes into the smallest runs of axes with equal products, so that divisions stay inside a run."""
    cuts: list[tuple[range, range]] = []
    i = j = first_i = first_j = 0
    left: Size = 1
    right: Size = 1
    totals = {index(product(target[:k])): k for k in range(len(target), 0, -1)}
    while i < len(source):
        left = left * source[i]
        i += 1
        j = totals.get(index(left), 0)
        if j > first_j:
            cuts.append((range(first_i, i), range(first_j, j)))
            first_i, first_j = i, j
    right = product(target[first_j:])
    if first_i < len(source) or not is_one(right):
        cuts.append((range(first_i, len(source)), range(first_j, len(target))))
    return cuts


def _reshape_meaning(operands: Sequence[Tensor], a: Values) -> Scope:
    source, target = operands[0].shape, tuple(a["shape"])

    def body(indices: tuple[Index, ...]) -> Scalar:
        position: list[Index] = [index(0)] * len(source)
        for inner, outer in _segments(source, target):
            flat = index(0)
            for axis in outer:
                flat = flat * target[axis] + indices[axis]
            axes = [axis for axis in inner if not is_one(source[axis])]
            for k, axis in enumerate(axes):
                quotient = flat // product([source[after] for after in axes[k + 1 :]])
                position[axis] = index(quotient if k == 0 else quotient % source[axis])
        return read(operands[0], position)

    return pointwise("i", target, body)


def _factor(random: Random, total: int) -> tuple[int, ...]:
    """Return sizes with the product ``total``, in random order, with ones in between."""
    sizes: list[int] = []
    while total > 1:
        divisor = random.choice([d for d in range(2, total + 1) if total % d == 0])
        sizes.append(divisor)
        total //= divisor
    sizes += [1] * random.randint(0 if sizes else 1, 2)
    random.shuffle(sizes)
    return tuple(sizes)


def _reshape_sample(random: Random) -> Sample:
    shape = tuple(random.choice((1, 2, 3, 4, 6)) for _ in range(random.randint(1, 4)))
    return (shape,), {"shape": _factor(random, math.prod(shape))}


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
    for axis, (size, start, end, step) in enumerate(
        zip(shapes[0], entries(a["starts"], rank, "starts"), entries(a["ends"], rank, "ends"), entries(a["steps"], rank, "steps"), strict=True)
    ):
        stride = known(step)
        if stride == 0:
            refuse(f"step of axis {axis} must not be 0")
        if stride is not None and stride < 0:
            count = (start - end - stride - 1) // -stride
        else:
            count = (end - start + step - 1) // step
        at_least(count, 1, f"axis {axis}: start {start}, end {end}, step {step} select nothing; size must be at least 1")
        last = start + (count - 1) * step
        for edge in (start, last):
            at_least(edge, 0, f"axis {axis}: selected positions must be at least 0")
            at_least(size - 1 - edge, 0, f"axis {axis} of size {size}: position {edge} is outside; remaining size must be at least 0")
        result.append(count)
    return tuple(result)


def _slice_meaning(operands: Sequence[Tensor], a: Values) -> Scope:
    shape = _slice_shape([operands[0].shape], a)
    return pointwise(
        "i", shape, lambda indices: read(operands[0], [start + i * step for start, i, step in zip(a["starts"], indices, a["steps"], strict=True)])
    )


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


def _pad_shape(shapes: Sequence[Shape], a: Values) -> Shape:
    rank = len(shapes[0])
    mode = one_of(a["mode"], ("constant", "reflect", "edge", "wrap"), "mode")
    before, after = entries(a["before"], rank, "before"), entries(a["after"], rank, "after")
    for axis, (size, low, high) in enumerate(zip(shapes[0], before, after, strict=True)):
        for amount in (low, high):
            at_least(amount, 0, f"padding of axis {axis} must not be negative (cut with Slice)")
            if mode == "reflect":
                at_least(size - 1 - amount, 0, f"reflect needs padding smaller than the size of axis {axis}; size - 1 - padding must be at least 0")
    return tuple(low + size + high for size, low, high in zip(shapes[0], before, after, strict=True))


def _pad_meaning(operands: Sequence[Tensor], a: Values) -> Scope:
    before, after = a["before"], a["after"]
    padded = [axis for axis in range(len(before)) if not (is_zero(before[axis]) and is_zero(after[axis]))]
    if a["mode"] in ("constant", "wrap"):

        def body(indices: tuple[Index, ...]) -> Scalar:
            shape = operands[0].shape
            positions = [i - low for i, low in zip(indices, before, strict=True)]
            if a["mode"] == "wrap":
                return read(operands[0], [p % size if axis in padded else p for axis, (p, size) in enumerate(zip(positions, shape, strict=True))])
            lower = [Compare(index(0), "<=", positions[axis]) for axis in padded if not is_zero(before[axis])]
            upper = [Compare(positions[axis], "<", index(shape[axis])) for axis in padded if not is_zero(after[axis])]
            return guarded((*lower, *upper), read(operands[0], positions), number(a["value"]))

        return pointwise("i", _pad_shape([operands[0].shape], a), body)
    source: Tensor | Scope = operands[0]
    for axis in padded or [0]:
        source = _extend(source, axis, before[axis], after[axis], a["mode"], "i" if axis == (padded or [0])[-1] else f"p{axis}_")
    assert isinstance(source, Scope)
    return source


def _extend(source: Tensor | Scope, axis: int, low: Size, high: Size, mode: str, prefix: str) -> Scope:
    """Pad one axis by its edge or its mirror image."""
    size = source.shape[axis]

    def body(indices: tuple[Index, ...]) -> Scalar:
        def at(value: Index) -> Scalar:
            return read(source, (*indices[:axis], value, *indices[axis + 1 :]))

        position = indices[axis] - low
        if mode == "edge":
            return clamped_read(source, (*indices[:axis], position, *indices[axis + 1 :]), axis)
        upper = guarded((Compare(position, "<", index(size)),), at(position), at(2 * (index(size) - 1) - position))
        return guarded((Compare(index(0), "<=", position),), upper, at(-position))

    return pointwise(prefix, (*source.shape[:axis], low + size + high, *source.shape[axis + 1 :]), body)


def _pad_sample(random: Random) -> Sample:
    shape, mode = draw_shape(random), random.choice(("constant", "constant", "reflect", "edge", "wrap"))
    limits = [size - 1 if mode == "reflect" else size if mode == "wrap" else 3 for size in shape]
    before, after = (tuple(random.choice((0, random.randint(0, limit))) for limit in limits) for _ in range(2))
    return (shape,), {"before": before, "after": after, "mode": mode, "value": draw_float(random, -1, 1) if mode == "constant" else 0.0}


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
        "Reshape", 1, "view", _reshape_shape, _reshape_meaning, _reshape_sample, attributes=("shape",), dtypes=EVERY, dtype=same_dtype
    ),
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
        "Pad", 1, "movement", _pad_shape, _pad_meaning, _pad_sample, attributes=("after", "before", "mode", "value"), dtypes=EVERY,
        dtype=same_dtype, notes="value is 0.0 unless mode is constant",
    ),
    OpSpec(
        "Gather", 2, "movement", _gather_shape, _gather_meaning, _gather_sample, attributes=("axis",), dtypes=EVERY, dtype=indexed,
        onnx=("Gather",), sample_dtypes=("float32", "int64"), notes="indices in -size..size-1; negative ones count from the end",
    ),
)  # fmt: skip
