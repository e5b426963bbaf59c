"""The values of TASO terms: tensors that remember where they were concatenated, and constants whose sizes their use decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from egraph.errors import TypeMismatch
from egraph.rule import Tensor
from egraph.rule_operators import slice_

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Seam:
    """Where a concatenation joined two tensors along an axis, with the seams inside both parts."""

    position: int
    left: Seams
    right: Seams


Seams = tuple[Seam, ...]
"""Seams that must all be in the same place for a split to follow them; none: the axis was never concatenated."""


@dataclass(frozen=True)
class Value:
    """A tensor with the seams of every axis."""

    tensor: Tensor
    seams: tuple[Seams, ...]

    @property
    def shape(self) -> Shape:
        return self.tensor.shape


@dataclass(frozen=True)
class Constant:
    """A named constant: the operator that uses it gives the sizes."""

    build: Callable[[Shape], Tensor]

    def sized(self, *shape: int) -> Value:
        return plain(self.build(shape))


def refuse(reason: str) -> NoReturn:
    """Raise ``TypeMismatch``: the term has no type."""
    raise TypeMismatch(reason)


def plain(tensor: Tensor) -> Value:
    """Return a tensor without seams."""
    return Value(tensor, ((),) * tensor.rank)


def common(left: tuple[Seams, ...], right: tuple[Seams, ...]) -> tuple[Seams, ...]:
    """Return the seams of an elementwise result: TASO keeps a seam only where both operands have it."""
    return tuple(a + b if a and b else () for a, b in zip(left, right, strict=True))


def cut(value: Value, axis: int, part: int) -> Value:
    """Return one part of a tensor on either side of its seam along ``axis``."""
    if axis >= value.tensor.rank or not value.seams[axis]:
        refuse(f"split: axis {axis} was not concatenated")
    position = value.seams[axis][0].position
    for seam in value.seams[axis][1:]:
        if seam.position != position:
            refuse("split: the operands were concatenated at different places")
    shape = value.shape
    start, end = (0, position) if part == 0 else (position, shape[axis])
    starts = tuple(start if i == axis else 0 for i in range(len(shape)))
    ends = tuple(end if i == axis else size for i, size in enumerate(shape))
    inner = tuple(seam for outer in value.seams[axis] for seam in (outer.left if part == 0 else outer.right))
    seams = (*value.seams[:axis], inner, *value.seams[axis + 1 :])
    return Value(slice_(value.tensor, starts=starts, ends=ends, steps=(1,) * len(shape)), seams)
