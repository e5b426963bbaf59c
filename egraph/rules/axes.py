"""Axes that rules reason about: channels, spatial axes, blocks of a reshape, broadcast shapes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from egraph.rule import Attributes, Tensor, require


def channel_axis(a: Attributes, rank: int) -> int:
    """Return where a layout keeps the channels."""
    return 1 if a.layout == "NCHW" else rank - 1


def spatial_axes(a: Attributes, rank: int) -> tuple[int, ...]:
    """Return where a layout keeps height, width, ..."""
    return tuple(range(2, rank)) if a.layout == "NCHW" else tuple(range(1, rank - 1))


def per_channel(s: Tensor, axis: int, rank: int, channels: int) -> Tensor:
    """Return the vector of ``channels`` (or one) numbers of s, refusing an s that varies along any other axis."""
    require(s.rank <= rank, "the constant must not add axes")
    shape = (1,) * (rank - s.rank) + s.shape
    require(all(size == 1 for i, size in enumerate(shape) if i != axis), "the constant must vary along the channels alone")
    require(shape[axis] in (channels, 1), "the constant must hold one number, or one a channel")
    return s.reshape(shape[axis])


def along(vector: Tensor, axis: int, rank: int) -> Tensor:
    """Return a vector as a tensor of ``rank`` axes that varies along ``axis`` alone."""
    return vector.reshape(*((1,) * axis), *vector.shape, *((1,) * (rank - axis - 1)))


def alike_but(axis: int, xs: Sequence[Tensor]) -> bool:
    """Return whether all tensors have the same shape, but for one axis."""
    return all(x.shape[:axis] == xs[0].shape[:axis] and x.shape[axis + 1 :] == xs[0].shape[axis + 1 :] for x in xs[1:])


def padded_shape(shape: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return the shape with leading ones, as broadcasting reads it."""
    return (1,) * (rank - len(shape)) + tuple(shape)


def with_rank(x: Tensor, rank: int) -> Tensor:
    """Return x with leading axes of size one up to ``rank``."""
    return x if x.rank == rank else x.reshape(*padded_shape(x.shape, rank))


def blocks(left: Sequence[int], right: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return the finest cut of a reshape: pairs of axis groups, in order, whose sizes have equal products.

    Axes of size one at a cut join the group on their left.
    """
    result: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(left) or j < len(right):
        a, b = [i] if i < len(left) else [], [j] if j < len(right) else []
        i, j = i + len(a), j + len(b)
        while prod(left[k] for k in a) != prod(right[k] for k in b):
            if prod(left[k] for k in a) < prod(right[k] for k in b):
                a.append(i)
                i += 1
            else:
                b.append(j)
                j += 1
        if not a or not b:  # only ones were left on one side
            if not result:
                return [(a, b)]
            result[-1][0].extend(a)
            result[-1][1].extend(b)
        else:
            result.append((a, b))
    return result
