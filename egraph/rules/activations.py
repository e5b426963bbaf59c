"""Activations recognised from the forms that exporters decompose them into, so that one library epilogue does them."""

from __future__ import annotations

import math

from egraph.rule import Attributes, Equation, Rule, Steps, Tensor, Weight, require, require_attribute, require_number, rule
from egraph.rule_operators import (
    absolute,
    clip,
    erf,
    exp,
    gelu,
    hard_sigmoid,
    hard_swish,
    leaky_relu,
    log,
    maximum,
    mish,
    power,
    prelu,
    reciprocal,
    relu,
    sigmoid,
    softplus,
    softsign,
    tanh,
)
from egraph.rules.family import named

# x * f(x) is written both ways round by exporters; a rule for each order keeps full commutativity out of the e-graph.


def _product(first: Tensor, second: Tensor, order: int) -> Tensor:
    return first * second if order == 0 else second * first


def _name(base: str, order: int) -> str:
    return base if order == 0 else f"{base}_other_order"


@rule(rounding="reassociates")
def hard_sigmoid_from_clip(x: Tensor, b: Weight, m: Weight, a: Attributes) -> Steps:
    """clip(x + b, 0, h) * (1 / h) = hard_sigmoid(x, 1 / h, b / h)"""
    yield clip(x + b, a) * m
    high = _unit_clip(a)
    require(b.number is not None and -math.inf < b.number < math.inf, "the offset must be one known finite number")
    require_number(m, 1 / high)
    yield hard_sigmoid(x, alpha=1 / high, beta=(b.number or 0.0) / high)


@rule(rounding="reassociates")
def hard_sigmoid_from_clip_divided(x: Tensor, b: Weight, d: Weight, a: Attributes) -> Steps:
    """clip(x + b, 0, h) / h = hard_sigmoid(x, 1 / h, b / h)"""
    yield clip(x + b, a) / d
    high = _unit_clip(a)
    require(b.number is not None and -math.inf < b.number < math.inf, "the offset must be one known finite number")
    require_number(d, high)
    yield hard_sigmoid(x, alpha=1 / high, beta=(b.number or 0.0) / high)


@rule(rounding="reassociates")
def hard_sigmoid_from_line(x: Tensor, m: Weight, b: Weight) -> Steps:
    """clip(x * m + b, 0, 1) = hard_sigmoid(x, m, b)"""
    yield clip(x * m + b, min=0.0, max=1.0)
    known = all(c.number is not None and -math.inf < c.number < math.inf for c in (m, b))
    require(known, "slope and offset must be one known finite number each")
    yield hard_sigmoid(x, alpha=m.number or 0.0, beta=b.number or 0.0)


def _unit_clip(a: Attributes) -> float:
    require_attribute(a, "min", 0.0)
    require(0 < a.max < math.inf, "the upper limit must be a positive number")
    high: float = a.max
    return high


def _hard_swish(order: int) -> Rule:
    def law(x: Tensor, a: Attributes) -> Steps:
        yield _product(x, hard_sigmoid(x, a), order)
        require_attribute(a, "alpha", 1 / 6)
        require_attribute(a, "beta", 0.5)
        yield hard_swish(x)

    equation = "x * hard_sigmoid(x, 1/6, 1/2) = hard_swish(x)"
    return named(law, _name("hard_swish_from_hard_sigmoid", order), equation, rounding="reassociates")


def _hard_swish_divided(order: int) -> Rule:
    def law(x: Tensor, three: Weight, six: Weight) -> Steps:
        yield _product(x, clip(x + three, min=0.0, max=6.0), order) / six
        require_number(three, 3.0)
        require_number(six, 6.0)
        yield hard_swish(x)

    return named(law, _name("hard_swish_divided_last", order), "(x * clip(x + 3, 0, 6)) / 6 = hard_swish(x)", rounding="reassociates")


def _hard_swish_scaled(order: int) -> Rule:
    def law(x: Tensor, three: Weight, sixth: Weight) -> Steps:
        yield _product(x, clip(x + three, min=0.0, max=6.0), order) * sixth
        require_number(three, 3.0)
        require_number(sixth, 1 / 6)
        yield hard_swish(x)

    return named(law, _name("hard_swish_scaled_last", order), "(x * clip(x + 3, 0, 6)) * (1/6) = hard_swish(x)", rounding="reassociates")


def _gelu_divided(order: int) -> Rule:
    def law(x: Tensor, root: Weight, one: Weight, half: Weight) -> Steps:
        yield _product(x, erf(x / root) + one, order) * half
        require_number(root, math.sqrt(2))
        require_number(one, 1.0)
        require_number(half, 0.5)
        yield gelu(x, approximate="none")

    return named(law, _name("gelu_from_erf_divided", order), "(x * (erf(x / sqrt 2) + 1)) * 0.5 = gelu(x)", rounding="reassociates")


def _gelu_scaled(order: int) -> Rule:
    def law(x: Tensor, root: Weight, one: Weight, half: Weight) -> Steps:
        yield _product(x, erf(x * root) + one, order) * half
        require_number(root, math.sqrt(0.5))
        require_number(one, 1.0)
        require_number(half, 0.5)
        yield gelu(x, approximate="none")

    return named(law, _name("gelu_from_erf_scaled", order), "(x * (erf(x * sqrt 0.5) + 1)) * 0.5 = gelu(x)", rounding="reassociates")


def _gelu_tanh(order: int) -> Rule:
    def law(x: Tensor, three: Weight, c: Weight, root: Weight, one: Weight, half: Weight) -> Steps:
        yield _product(x, tanh((x + power(x, three) * c) * root) + one, order) * half
        for weight, wanted in ((three, 3.0), (c, 0.044715), (root, math.sqrt(2 / math.pi)), (one, 1.0), (half, 0.5)):
            require_number(weight, wanted)
        yield gelu(x, approximate="tanh")

    equation = "(x * (tanh((x + 0.044715 x ** 3) * sqrt(2 / pi)) + 1)) * 0.5 = gelu(x, tanh)"
    return named(law, _name("gelu_from_tanh", order), equation, rounding="reassociates")


def _mish(order: int) -> Rule:
    def law(x: Tensor) -> Equation:
        return _product(x, tanh(softplus(x)), order) == mish(x)

    return named(law, _name("mish_from_softplus", order), "x * tanh(softplus(x)) = mish(x)")


@rule(rounding="assumes finite")
def softplus_from_exp(x: Tensor, one: Weight) -> Steps:
    """log(exp(x) + 1) = softplus(x)

    The left side overflows for large x, the right does not."""
    yield log(exp(x) + one)
    require_number(one, 1.0)
    yield softplus(x)


@rule(rounding="reassociates")
def sigmoid_from_exp(x: Tensor, one: Weight) -> Steps:
    """1 / (exp(-x) + 1) = sigmoid(x)"""
    yield reciprocal(exp(-x) + one)
    require_number(one, 1.0)
    yield sigmoid(x)


@rule(rounding="reassociates")
def softsign_from_abs(x: Tensor, one: Weight) -> Steps:
    """x / (|x| + 1) = softsign(x)"""
    yield x / (absolute(x) + one)
    require_number(one, 1.0)
    yield softsign(x)


def _leaky_relu(order: int) -> Rule:
    def law(x: Tensor, c: Weight) -> Steps:
        """A slope above 1 or below 0 would make the maximum another function; 0 times infinity is NaN."""
        yield maximum(x, x * c) if order == 0 else maximum(x * c, x)
        require(c.number is not None and 0 < c.number <= 1, "the slope must be one known number above 0, up to 1")
        yield leaky_relu(x, alpha=c.number or 0.0)

    return named(law, _name("leaky_relu_from_maximum", order), "max(x, x * c) = leaky_relu(x, c),  0 < c <= 1")


@rule(rounding="assumes finite")
def prelu_from_relus(x: Tensor, slope: Weight) -> Equation:
    """relu(x) - relu(-x) * slope = prelu(x, slope)"""
    return relu(x) - relu(-x) * slope == prelu(x, slope)


@rule(rounding="assumes finite")
def prelu_from_relus_added(x: Tensor, slope: Weight) -> Equation:
    """relu(x) + relu(-x) * slope = prelu(x, -slope)"""
    return relu(x) + relu(-x) * slope == prelu(x, -slope)


RULES: tuple[Rule, ...] = (
    hard_sigmoid_from_clip, hard_sigmoid_from_clip_divided, hard_sigmoid_from_line,
    *(build(order) for build in (
        _hard_swish, _hard_swish_divided, _hard_swish_scaled, _gelu_divided, _gelu_scaled, _gelu_tanh, _mish, _leaky_relu,
    ) for order in (0, 1)),
    softplus_from_exp, sigmoid_from_exp, softsign_from_abs, prelu_from_relus, prelu_from_relus_added,
)
