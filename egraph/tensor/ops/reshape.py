"""Reshape: the same elements in row-major order under another shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from egraph.tensor.expr.index import Index, Size, index
from egraph.tensor.expr.scope import Scalar, Scope, Tensor
from egraph.tensor.ops.dtypes import EVERY, same_dtype
from egraph.tensor.ops.sampling import Sample
from egraph.tensor.ops.scopes import pointwise, read
from egraph.tensor.ops.sizes import equal, is_one, product, refuse, show_shape
from egraph.tensor.ops.spec import OpSpec, Shape, Values


def _reshape_shape(shapes: Sequence[Shape], a: Values) -> Shape:
    if not equal(product(shapes[0]), product(a["shape"])):
        refuse(f"{show_shape(shapes[0])} and {show_shape(a['shape'])} have different numbers of elements")
    return tuple(a["shape"])


def _segments(source: Shape, target: Shape) -> list[tuple[range, range]]:
    """Cut both shapes into the smallest runs of axes with equal products, so that divisions stay inside a run."""
    cuts: list[tuple[range, range]] = []
    i = j = first_i = first_j = 0
    left: Size = 1
    totals = {index(product(target[:k])): k for k in range(len(target), 0, -1)}
    while i < len(source):
        left = left * source[i]
        i += 1
        j = totals.get(index(left), 0)
        if j > first_j:
            cuts.append((range(first_i, i), range(first_j, j)))
            first_i, first_j = i, j
    if first_i < len(source) or not is_one(product(target[first_j:])):
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


RESHAPE: tuple[OpSpec, ...] = (
    OpSpec(
        "Reshape", 1, "view", _reshape_shape, _reshape_meaning, _reshape_sample, attributes=("shape",), dtypes=EVERY, dtype=same_dtype
    ),
)
