"""Elementwise operators of one operand: scalar functions and activations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from random import Random
from typing import Any

from egraph.tensor.expr.scope import ONE, ZERO, Scalar, Scope, Tensor, number
from egraph.tensor.expr.scope import apply as call
from egraph.tensor.ops.sampling import Sample, draw_float, draw_shape
from egraph.tensor.ops.scopes import add, multiply, pointwise, read
from egraph.tensor.ops.sizes import one_of, refuse
from egraph.tensor.ops.spec import OpSpec, Shape, Values

Body = Callable[[Scalar, Values], Scalar]


def _activation(name: str, body: Body, *, draws: Mapping[str, tuple[float, float]] | None = None, one_to_one: bool = True) -> OpSpec:
    """Return the specification of f(x; attributes) with float attributes drawn from ``draws``."""
    ranges = draws or {}

    def shape(shapes: Sequence[Shape], _: Values) -> Shape:
        return shapes[0]

    def meaning(operands: Sequence[Tensor], attributes: Values) -> Scope:
        return pointwise("i", operands[0].shape, lambda indices: body(read(operands[0], indices), attributes))

    def sample(random: Random) -> Sample:
        values: dict[str, Any] = {key: draw_float(random, *ranges[key]) for key in ranges}
        return (draw_shape(random),), values

    return OpSpec(
        name, 1, "elementwise", shape, meaning, sample, attributes=tuple(sorted(ranges)), onnx=(name,) if one_to_one else ()
    )


def _named(name: str, function: str) -> OpSpec:
    return _activation(name, lambda x, _: call(function, x))


def sigmoid(x: Scalar) -> Scalar:
    """1 / (1 + exp(-x))"""
    return call("reciprocal", add(ONE, call("exp", call("neg", x))))


def softplus(x: Scalar) -> Scalar:
    """log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|)), which does not overflow"""
    return add(call("max", x, ZERO), call("log", add(ONE, call("exp", call("neg", call("abs", x))))))


def clip(x: Scalar, low: float, high: float) -> Scalar:
    """min(max(x, low), high)"""
    lower = x if low == -math.inf else call("max", x, number(low))
    return lower if high == math.inf else call("min", lower, number(high))


def _expm1(x: Scalar) -> Scalar:
    """exp(x) - 1 for x <= 0, and 0 above, which does not overflow"""
    return call("sub", call("exp", call("min", x, ZERO)), ONE)


def _elu(x: Scalar, a: Values) -> Scalar:
    """x where x >= 0, else alpha (exp(x) - 1)"""
    return call("where", call("less", x, ZERO), multiply(number(a["alpha"]), _expm1(x)), x)


def _celu(x: Scalar, a: Values) -> Scalar:
    """x where x >= 0, else alpha (exp(x / alpha) - 1)"""
    alpha = number(a["alpha"])
    return call("where", call("less", x, ZERO), multiply(alpha, _expm1(call("div", x, alpha))), x)


def _selu(x: Scalar, a: Values) -> Scalar:
    """gamma x where x > 0, else gamma alpha (exp(x) - 1)"""
    negative = multiply(number(a["alpha"]), _expm1(x))
    return multiply(number(a["gamma"]), call("where", call("less", ZERO, x), x, negative))


def _gelu(x: Scalar, a: Values) -> Scalar:
    """x/2 (1 + erf(x / sqrt 2)), or its tanh approximation"""
    if a["approximate"] == "none":
        inner = call("erf", multiply(x, call("sqrt", number(Fraction(1, 2)))))
    else:
        cubic = add(x, multiply(number(Fraction(44715, 1000000)), x, x, x))
        inner = call("tanh", multiply(number(math.sqrt(2 / math.pi)), cubic))
    return multiply(number(Fraction(1, 2)), x, add(ONE, inner))


def _gelu_shape(shapes: Sequence[Shape], attributes: Values) -> Shape:
    one_of(attributes["approximate"], ("none", "tanh"), "approximate")
    return shapes[0]


def _gelu_meaning(operands: Sequence[Tensor], attributes: Values) -> Scope:
    return pointwise("i", operands[0].shape, lambda indices: _gelu(read(operands[0], indices), attributes))


def _gelu_sample(random: Random) -> Sample:
    return (draw_shape(random),), {"approximate": random.choice(("none", "tanh"))}


def _celu_shape(shapes: Sequence[Shape], attributes: Values) -> Shape:
    if not attributes["alpha"] > 0:
        refuse(f"alpha must be positive, got {attributes['alpha']}")
    return shapes[0]


def _celu_spec() -> OpSpec:
    spec = _activation("Celu", _celu, draws={"alpha": (0.25, 2)})
    return OpSpec("Celu", 1, "elementwise", _celu_shape, spec.meaning, spec.sample, attributes=("alpha",), onnx=("Celu",))


ACTIVATIONS: tuple[OpSpec, ...] = (
    _named("Tanh", "tanh"),
    _named("Exp", "exp"),
    _named("Log", "log"),
    _named("Sqrt", "sqrt"),
    _named("Neg", "neg"),
    _named("Abs", "abs"),
    _named("Erf", "erf"),
    _named("Reciprocal", "reciprocal"),
    _named("Sign", "sign"),
    _named("Floor", "floor"),
    _named("Ceil", "ceil"),
    _named("Round", "round"),
    _named("Sin", "sin"),
    _named("Cos", "cos"),
    _activation("Relu", lambda x, _: call("max", x, ZERO)),
    _activation("Sigmoid", lambda x, _: sigmoid(x)),
    _activation("Softplus", lambda x, _: softplus(x)),
    _activation("Softsign", lambda x, _: call("div", x, add(ONE, call("abs", x)))),
    _activation("HardSwish", lambda x, _: multiply(x, clip(add(multiply(number(Fraction(1, 6)), x), number(Fraction(1, 2))), 0, 1))),
    _activation("Mish", lambda x, _: multiply(x, call("tanh", softplus(x)))),
    _activation(
        "LeakyRelu",
        lambda x, a: call("where", call("less", x, ZERO), multiply(number(a["alpha"]), x), x),
        draws={"alpha": (-0.5, 1.5)},
    ),
    _activation("Elu", _elu, draws={"alpha": (-0.5, 2)}),
    _celu_spec(),
    _activation("Selu", _selu, draws={"alpha": (0.5, 2), "gamma": (1, 2)}),
    _activation(
        "HardSigmoid",
        lambda x, a: clip(add(multiply(number(a["alpha"]), x), number(a["beta"])), 0, 1),
        draws={"alpha": (0.125, 1), "beta": (0, 1)},
    ),
    _activation(
        "ThresholdedRelu",
        lambda x, a: call("where", call("less", number(a["alpha"]), x), x, ZERO),
        draws={"alpha": (-1, 1)},
    ),
    _activation("Clip", lambda x, a: clip(x, a["min"], a["max"]), draws={"min": (-2, 0), "max": (-0.5, 2)}, one_to_one=False),
    OpSpec(
        "Gelu", 1, "elementwise", _gelu_shape, _gelu_meaning, _gelu_sample, attributes=("approximate",), onnx=("Gelu",)
    ),
)  # fmt: skip
