"""Algebra of elementwise operators: constants meet, identities go, clips compose."""

from __future__ import annotations

import math

from egraph.rule import Attributes, Equation, Rounding, Rule, Steps, Tensor, Weight, require, require_number, rule
from egraph.rule_operators import binary, clip, expand, leaky_relu, maximum, minimum, power, prelu, reciprocal, relu, sqrt
from egraph.rules.family import named, snake

# Constants go last and outwards, where they meet and fold. Full commutativity and associativity are left out on purpose:
# they multiply e-nodes without bound, and nothing downstream tells the forms apart.


def _constant_last(op: str) -> Rule:
    def law(c: Weight, x: Tensor) -> Equation:
        return binary(op, c, x) == binary(op, x, c)

    rounding: Rounding = "exact" if op in ("Add", "Mul") else "reassociates"  # of zeros of both signs a maximum is either
    return named(law, f"constant_last_in_{snake(op)}", f"{op}(c, x) = {op}(x, c)", rounding=rounding)


@rule(rounding="reassociates")
def add_constants(x: Tensor, a: Weight, b: Weight) -> Equation:
    """(x + a) + b = x + (a + b)"""
    return (x + a) + b == x + (a + b)


@rule(rounding="reassociates")
def multiply_constants(x: Tensor, a: Weight, b: Weight) -> Equation:
    """(x * a) * b = x * (a * b)"""
    return (x * a) * b == x * (a * b)


@rule(rounding="reassociates")
def add_sums_with_constants(x: Tensor, y: Tensor, a: Weight, b: Weight) -> Equation:
    """(x + a) + (y + b) = (x + y) + (a + b)"""
    return (x + a) + (y + b) == (x + y) + (a + b)


@rule(rounding="reassociates")
def constant_factor_outwards(x: Tensor, y: Tensor, c: Weight) -> Equation:
    """(x * c) * y = (x * y) * c"""
    return (x * c) * y == (x * y) * c


@rule(rounding="reassociates")
def constant_factor_outwards_from_the_right(x: Tensor, y: Tensor, c: Weight) -> Equation:
    """x * (y * c) = (x * y) * c"""
    return x * (y * c) == (x * y) * c


@rule
def subtract_constant(x: Tensor, c: Weight) -> Equation:
    """x - c = x + (-c)"""
    return x - c == x + (-c)


@rule(rounding="reassociates")
def divide_by_constant(x: Tensor, c: Weight) -> Equation:
    """x / c = x * (1 / c)"""
    return x / c == x * reciprocal(c)


@rule(rounding="reassociates")
def multiply_by_reciprocal_root(x: Tensor, y: Tensor) -> Equation:
    """x * (1 / sqrt(y)) = x / sqrt(y)

    Only for roots, as normalisations have them: for constants it would undo ``divide_by_constant`` for ever."""
    return x * reciprocal(sqrt(y)) == x / sqrt(y)


@rule
def one_over(one: Weight, x: Tensor) -> Steps:
    """1 / x = reciprocal(x)"""
    yield one / x
    require_number(one, 1.0)
    yield reciprocal(x)


@rule(rounding="reassociates")
def distribute_scale_over_bias(x: Tensor, b: Weight, s: Weight) -> Equation:
    """(x + b) * s = x * s + b * s"""
    return (x + b) * s == x * s + b * s


@rule(rounding="reassociates")
def collect_scales(x: Tensor, a: Weight, b: Weight) -> Equation:
    """x * a + x * b = x * (a + b)"""
    return x * a + x * b == x * (a + b)


@rule
def add_negated(x: Tensor, y: Tensor) -> Equation:
    """x + (-y) = x - y"""
    return x + (-y) == x - y


@rule
def negate_twice(x: Tensor) -> Equation:
    """-(-x) = x"""
    negated = -x
    return -negated == x


@rule
def scale_negated(x: Tensor, c: Weight) -> Equation:
    """(-x) * c = x * (-c)"""
    return (-x) * c == x * (-c)


def _neutral(op: str, number: float, symbol: str) -> Rule:
    def law(x: Tensor, c: Weight) -> Steps:
        """c must not widen x: the types of both sides are compared."""
        yield binary(op, x, c)
        require_number(c, number)
        yield x

    rounding: Rounding = "reassociates" if op in ("Add", "Sub") else "exact"  # -0.0 + 0.0 is 0.0
    return named(law, f"neutral_in_{snake(op)}", f"x {symbol} {number:g} = x", rounding=rounding)


@rule
def relu_twice(x: Tensor) -> Equation:
    """relu(relu(x)) = relu(x)"""
    return relu(relu(x)) == relu(x)


@rule
def clip_at_zero(x: Tensor) -> Equation:
    """clip(x, 0, inf) = relu(x)"""
    return clip(x, min=0.0, max=math.inf) == relu(x)


@rule
def clip_of_relu(x: Tensor, a: Attributes) -> Steps:
    """clip(relu(x), low, high) = clip(x, max(low, 0), high)"""
    yield clip(relu(x), a)
    require(a.min < math.inf, "the lower limit must be finite")
    require(a.max >= 0, "the upper limit must not be negative: the lower would pass it")
    yield clip(x, min=max(a.min, 0.0), max=a.max)


@rule
def relu_of_clip(x: Tensor, a: Attributes) -> Steps:
    """relu(clip(x, low, high)) = clip(x, max(low, 0), high)"""
    yield relu(clip(x, a))
    require(a.min < math.inf, "the lower limit must be finite")
    require(a.max >= 0, "the upper limit must not be negative: the lower would pass it")
    yield clip(x, min=max(a.min, 0.0), max=a.max)


@rule
def clip_twice(x: Tensor, a: Attributes, b: Attributes) -> Steps:
    """clip(clip(x, a), b) = clip(x, both),  where the ranges overlap"""
    yield clip(clip(x, a), b)
    low, high = max(a.min, b.min), min(a.max, b.max)
    require(low <= high and low < math.inf and -math.inf < high, "the ranges must overlap")
    yield clip(x, min=low, max=high)


@rule(rounding="reassociates")
def maximum_is_clip(x: Tensor, c: Weight) -> Steps:
    """max(x, c) = clip(x, c, inf),  c one number"""
    yield maximum(x, c)
    require(c.number is not None, "c must be one known number")
    yield clip(x, min=c.number or 0.0, max=math.inf)


@rule(rounding="reassociates")
def minimum_is_clip(x: Tensor, c: Weight) -> Steps:
    """min(x, c) = clip(x, -inf, c),  c one number"""
    yield minimum(x, c)
    require(c.number is not None, "c must be one known number")
    yield clip(x, min=-math.inf, max=c.number or 0.0)


@rule(rounding="reassociates")
def prelu_of_one_slope(x: Tensor, c: Weight) -> Steps:
    """prelu(x, c) = leaky_relu(x, c),  c one number"""
    yield prelu(x, c)
    require(c.number is not None, "the slope must be one known number")
    yield leaky_relu(x, alpha=c.number or 0.0)


@rule(rounding="reassociates")
def square(x: Tensor, two: Weight) -> Steps:
    """x ** 2 = x * x"""
    yield power(x, two)
    require_number(two, 2.0)
    yield x * x


@rule(rounding="reassociates")
def cube(x: Tensor, three: Weight) -> Steps:
    """x ** 3 = (x * x) * x"""
    yield power(x, three)
    require_number(three, 3.0)
    yield (x * x) * x


@rule(rounding="assumes finite")
def power_of_one_half(x: Tensor, half: Weight) -> Steps:
    """x ** 0.5 = sqrt(x)"""
    yield power(x, half)
    require_number(half, 0.5)
    yield sqrt(x)


@rule(rounding="assumes finite")
def power_of_minus_one_half(x: Tensor, minus_half: Weight) -> Steps:
    """x ** -0.5 = 1 / sqrt(x)"""
    yield power(x, minus_half)
    require_number(minus_half, -0.5)
    yield reciprocal(sqrt(x))


def _expand_into(op: str, side: int) -> Rule:
    def law(x: Tensor, y: Tensor, a: Attributes) -> Equation:
        """Broadcasting repeats by itself; y must have the full shape, which the comparison of types checks."""
        wide, narrow = expand(x, a), x
        if side == 0:
            return binary(op, wide, y) == binary(op, narrow, y)
        return binary(op, y, wide) == binary(op, y, narrow)

    equation = f"{op}(expand(x), y) = {op}(x, y)" if side == 0 else f"{op}(y, expand(x)) = {op}(y, x)"
    return named(law, f"expand_into_{snake(op)}_{('left', 'right')[side]}", equation)


RULES: tuple[Rule, ...] = (
    *(_constant_last(op) for op in ("Add", "Max", "Min", "Mul")),
    add_constants, multiply_constants, add_sums_with_constants, constant_factor_outwards,
    constant_factor_outwards_from_the_right, subtract_constant, divide_by_constant, multiply_by_reciprocal_root, one_over,
    distribute_scale_over_bias, collect_scales, add_negated, negate_twice, scale_negated,
    _neutral("Add", 0.0, "+"), _neutral("Sub", 0.0, "-"), _neutral("Mul", 1.0, "*"), _neutral("Div", 1.0, "/"), _neutral("Pow", 1.0, "**"),
    relu_twice, clip_at_zero, clip_of_relu, relu_of_clip, clip_twice, maximum_is_clip, minimum_is_clip, prelu_of_one_slope,
    square, cube, power_of_one_half, power_of_minus_one_half,
    *(_expand_into(op, side) for op in ("Add", "Div", "Mul", "Sub") for side in (0, 1)),
)
