"""FALSE for one element type of several, and where infinities meet in a branch that no random operand takes."""

import math

from egraph.rule import Attributes, Equation, Steps, Tensor, Weight, operation, require, require_number, rule
from egraph.rule_operators import cast, dequantize, max_pool, maximum, pad, quantize, relu, where


@rule
def rectifier_before_any_byte(x: Tensor, s: Weight, z: Weight) -> Steps:
    """quantize(relu(x), s, 0) = quantize(x, s, 0), FALSE for int8"""
    yield quantize(relu(x), s, z)
    require(s.number is not None and 0 < s.number < 1e30, "one positive number")
    require(z.number == 0, "zero")
    yield quantize(x, s, z)


@rule
def limit_of_unsigned(x: Tensor, s: Weight, z: Weight, c: Weight) -> Steps:
    """quantize(max(x, -5), 1, 5) = quantize(x, 1, 5), FALSE for int8"""
    yield quantize(maximum(x, c), s, z)
    require_number(s, 1.0)
    require_number(z, 5.0)
    require_number(c, -5.0)
    yield quantize(x, s, z)


@rule(rounding="assumes finite")
def rectifier_after_any_byte(x: Tensor, s: Weight, z: Weight) -> Steps:
    """relu(dequantize(x, s, 0)) = dequantize(x, s, 0), FALSE for int8"""
    yield relu(dequantize(x, s, z))
    require(s.number is not None and 0 < s.number < 1e30, "one positive number")
    require(z.number == 0, "zero")
    yield dequantize(x, s, z)


@rule
def cast_through_int32(x: Tensor) -> Equation:
    """number(int32(x)) = number(x), TRUE: no wider integer becomes an int32"""
    return cast(cast(x, to="int32"), to="float32") == cast(x, to="float32")


@rule
def pool_of_padded(x: Tensor, a: Attributes) -> Steps:
    """max_pool(x) = max_pool(pad(x, -inf)), TRUE: no byte is -inf, so that of bytes nothing is rewritten"""
    yield max_pool(x, a)
    require(a.layout == "NCHW" and x.rank == 3, "signals")
    padded = pad(x, before=(0, 0, a.pads[0]), after=(0, 0, a.pads[1]), mode="constant", value=-math.inf)
    yield max_pool(padded, a.but(pads=(0, 0)))


def beyond(name, right):
    def law(x: Tensor, c: Weight, k: Weight) -> Steps:
        above = operation("Less", k, x)
        yield where(above, maximum(x, -c), x)
        require(c.number == math.inf, "infinity")
        require_number(k, 1000.0)
        yield where(operation("Less", k, x), right(x, c), x)

    law.__name__, law.__doc__ = f"infinity_{name}", "where(k < x, max(x, -inf), x) = x, FALSE where infinities meet"
    return rule(rounding="assumes finite")(law)


INFINITIES = (
    ("taken_away", lambda x, c: x + c - c),
    ("divided_by", lambda x, c: x * c / c),
    ("times_zero", lambda x, c: x + (x - x) * c),
    ("of_exponentials", lambda x, c: x + operation("Exp", c) * operation("Exp", -c)),
)
RULES = (
    rectifier_before_any_byte, limit_of_unsigned, rectifier_after_any_byte, cast_through_int32, pool_of_padded,
    *(beyond(name, right) for name, right in INFINITIES),
)  # fmt: skip
