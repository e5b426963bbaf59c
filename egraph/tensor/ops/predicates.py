"""Operators that ask what kind of number an element is."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from egraph.tensor.expr.scope import Scope, Tensor
from egraph.tensor.expr.scope import apply as call
from egraph.tensor.ops.dtypes import boolean
from egraph.tensor.ops.sampling import Sample, draw_shape
from egraph.tensor.ops.scopes import pointwise, read
from egraph.tensor.ops.spec import OpSpec, Shape, Values


def _shape(shapes: Sequence[Shape], _: Values) -> Shape:
    return tuple(shapes[0])


def _is_nan(operands: Sequence[Tensor], _: Values) -> Scope:
    return pointwise("i", operands[0].shape, lambda indices: call("is_nan", read(operands[0], indices)))


def _sample(random: Random) -> Sample:
    return (draw_shape(random),), {}


PREDICATES: tuple[OpSpec, ...] = (OpSpec("IsNaN", 1, "elementwise", _shape, _is_nan, _sample, dtype=boolean, onnx=("IsNaN",)),)
