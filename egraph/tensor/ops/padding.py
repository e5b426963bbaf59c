"""Pad: a border of one value, of the edge, of the mirror image, or of the other end."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from egraph.tensor.expr.bodies import guarded
from egraph.tensor.expr.index import Index, Size, index
from egraph.tensor.expr.scope import Compare, Scalar, Scope, Tensor, number
from egraph.tensor.ops.dtypes import EVERY, RANGES, same_dtype
from egraph.tensor.ops.sampling import Sample, draw_float, draw_shape
from egraph.tensor.ops.scopes import clamped_read, pointwise, read
from egraph.tensor.ops.sizes import at_least, entries, is_zero, one_of, refuse
from egraph.tensor.ops.spec import OpSpec, Shape, Values


def _pad_shape(shapes: Sequence[Shape], a: Values) -> Shape:
    rank = len(shapes[0])
    mode = one_of(a["mode"], ("constant", "reflect", "edge", "wrap"), "mode")
    before, after = entries(a["before"], rank, "before"), entries(a["after"], rank, "after")
    for axis, (size, low, high) in enumerate(zip(shapes[0], before, after, strict=True)):
        for amount in (low, high):
            at_least(amount, 0, f"padding of axis {axis} must not be negative (cut with Slice)")
            if mode == "reflect":
                at_least(size - 1 - amount, 0, f"reflect pads axis {axis} by less than its size; size - 1 - padding must be at least 0")
    return tuple(low + size + high for size, low, high in zip(shapes[0], before, after, strict=True))


def _admits_border(dtypes: Sequence[str], a: Values) -> None:
    """Refuse a border value that the elements cannot have; a value that a proof knows only by name is checked at each match."""
    value = a.get("value")
    if dtypes[0] in RANGES and isinstance(value, float):
        low, high = RANGES[dtypes[0]]
        if not (low <= value <= high and value.is_integer()):
            refuse(f"an element of {dtypes[0]} cannot be {value}")


def _pad_meaning(operands: Sequence[Tensor], a: Values) -> Scope:
    before, after = a["before"], a["after"]
    padded = [axis for axis in range(len(before)) if not (is_zero(before[axis]) and is_zero(after[axis]))]
    if a["mode"] in ("constant", "wrap"):

        def body(indices: tuple[Index, ...]) -> Scalar:
            shape = operands[0].shape
            positions = [i - low for i, low in zip(indices, before, strict=True)]
            if a["mode"] == "wrap":
                wrapped = [p % size for p, size in zip(positions, shape, strict=True)]
                return read(operands[0], [wrapped[axis] if axis in padded else p for axis, p in enumerate(positions)])
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


PADDING: tuple[OpSpec, ...] = (
    OpSpec(
        "Pad", 1, "movement", _pad_shape, _pad_meaning, _pad_sample, attributes=("after", "before", "mode", "value"), dtypes=EVERY,
        dtype=same_dtype, admits=_admits_border, notes="value is 0.0 unless mode is constant",
    ),
)  # fmt: skip
