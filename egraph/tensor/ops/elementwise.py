"""Operators that compute each element from the operands' (broadcast) elements: arithmetic, comparison, selection, predicates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from egraph.tensor.expr.scope import ZERO, Scalar, Scope, Tensor
from egraph.tensor.expr.scope import apply as call
from egraph.tensor.ops.activations import ACTIVATIONS
from egraph.tensor.ops.dtypes import BOOLEANS, FLOATS, RING, DtypeRule, boolean, same_dtype, selected
from egraph.tensor.ops.sampling import Sample, draw_broadcastable, draw_broadcasting, draw_shape
from egraph.tensor.ops.scopes import multiply, pointwise, read, read_broadcast
from egraph.tensor.ops.sizes import broadcast, broadcasts_to
from egraph.tensor.ops.spec import OpSpec, Shape, Values


def _shape(shapes: Sequence[Shape], _: Values) -> Shape:
    return broadcast(shapes)


def _meaning(function: Callable[..., Scalar]) -> Callable[[Sequence[Tensor], Values], Scope]:
    def meaning(operands: Sequence[Tensor], _: Values) -> Scope:
        shape = broadcast([operand.shape for operand in operands])
        return pointwise("i", shape, lambda indices: function(*(read_broadcast(operand, indices) for operand in operands)))

    return meaning


def _elementwise(
    name: str,
    function: Callable[..., Scalar] | str,
    operands: int,
    *,
    dtypes: frozenset[str] = FLOATS,
    dtype: DtypeRule = same_dtype,
    commutative: bool = False,
    sample_dtypes: tuple[str, ...] = (),
    notes: str = "",
) -> OpSpec:
    if isinstance(function, str):
        scalar: str = function

        def named(*arguments: Scalar) -> Scalar:
            return call(scalar, *arguments)

        function = named

    def sample(random: Random) -> Sample:
        return draw_broadcasting(random, operands), {}

    return OpSpec(
        name, operands, "elementwise", _shape, _meaning(function), sample, dtype=dtype, dtypes=dtypes, commutative=commutative,
        onnx=(name,), sample_dtypes=sample_dtypes, notes=notes,
    )  # fmt: skip


def _leak(x: Scalar, slope: Scalar) -> Scalar:
    """x where x >= 0, else slope x"""
    return call("where", call("less", x, ZERO), multiply(slope, x), x)


def _prelu_shape(shapes: Sequence[Shape], _: Values) -> Shape:
    broadcasts_to(shapes[1], shapes[0], "slope")
    return shapes[0]


def _prelu_sample(random: Random) -> Sample:
    shape = draw_shape(random)
    return (shape, draw_broadcastable(random, shape)), {}


ELEMENTWISE: tuple[OpSpec, ...] = (
    _elementwise("Add", "add", 2, dtypes=RING, commutative=True),
    _elementwise("Sub", "sub", 2, dtypes=RING),
    _elementwise("Mul", "mul", 2, dtypes=RING, commutative=True),
    _elementwise("Div", "div", 2),
    _elementwise("Pow", "pow", 2),
    _elementwise("Max", "max", 2, commutative=True),
    _elementwise("Min", "min", 2, commutative=True),
    _elementwise("Less", "less", 2, dtype=boolean),
    _elementwise("LessOrEqual", "less_equal", 2, dtype=boolean),
    _elementwise("Greater", "greater", 2, dtype=boolean),
    _elementwise("GreaterOrEqual", "greater_equal", 2, dtype=boolean),
    _elementwise("Equal", "equal", 2, dtype=boolean, commutative=True),
    _elementwise("And", "and_", 2, dtypes=BOOLEANS, commutative=True, sample_dtypes=("bool", "bool")),
    _elementwise("Or", "or_", 2, dtypes=BOOLEANS, commutative=True, sample_dtypes=("bool", "bool")),
    _elementwise("Not", "not_", 1, dtypes=BOOLEANS, sample_dtypes=("bool",)),
    _elementwise("Where", "where", 3, dtypes=BOOLEANS, dtype=selected, sample_dtypes=("bool", "float32", "float32")),
    OpSpec(
        "PRelu", 2, "elementwise", _prelu_shape, _meaning(_leak), _prelu_sample, dtype=same_dtype, onnx=("PRelu",),
        notes="slope broadcasts to x, never the other way",
    ),
    *ACTIVATIONS,
)  # fmt: skip


def _same_shape(shapes: Sequence[Shape], _: Values) -> Shape:
    return tuple(shapes[0])


def _is_nan(operands: Sequence[Tensor], _: Values) -> Scope:
    return pointwise("i", operands[0].shape, lambda indices: call("is_nan", read(operands[0], indices)))


def _predicate_sample(random: Random) -> Sample:
    return (draw_shape(random),), {}


PREDICATES: tuple[OpSpec, ...] = (
    OpSpec("IsNaN", 1, "elementwise", _same_shape, _is_nan, _predicate_sample, dtype=boolean, onnx=("IsNaN",)),
)
