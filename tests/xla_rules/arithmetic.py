"""Sums, quotients, powers, absolute values and whole numbers, element by element."""

from __future__ import annotations

from collections.abc import Callable

from egraph.rule import Equation, Rounding, Steps, Tensor, Weight, require, require_number
from egraph.rule_operators import absolute, exp, expand, log, power, reciprocal, sigmoid, sqrt, unary
from tests.xla_rules.claims import Claim, Truth, claim, equation, member


def floor(x: Tensor) -> Tensor:
    return unary("Floor", x)


def sign(x: Tensor) -> Tensor:
    return unary("Sign", x)


def filled(x: Tensor, c: Weight) -> Tensor:
    """The number c in every place of x."""
    return expand(c, shape=x.shape)


def with_number(
    truth: Truth, name: str, text: str, number: float | None,
    left: Callable[[Tensor, Weight], Tensor], right: Callable[[Tensor, Weight], Tensor], rounding: Rounding = "assumes finite",
) -> Claim:  # fmt: skip
    """left(x, c) = right(x, c), for one number c, whichever it is where ``number`` is none"""

    def law(x: Tensor, c: Weight) -> Steps:
        yield left(x, c)
        if number is not None:
            require_number(c, number)
        require(c.rank == 0, "a number")
        yield right(x, c)

    return member(truth, name, text, law, rounding)


@claim("false", "assumes finite")
def exponential_of_logarithm(x: Tensor, one: Weight) -> Equation:
    """x = exp(log(x)), but not below zero"""
    return x * one == exp(log(x * one))


@claim("false", "assumes finite")
def power_of_power_of_anything(x: Tensor, y: Weight, z: Weight) -> Steps:
    """(x ** 2) ** 0.5 = x"""
    yield power(power(x, y), z)
    require_number(y, 2.0)
    require_number(z, 0.5)
    yield x


CLAIMS = (
    equation("true", "divide_a_quotient", "(x / y) / z = x / (y z)", lambda x, y, z: x / y / z == x / (y * z)),
    equation("false", "divide_a_quotient_wrongly", "(x / y) / z = x / (y / z)", lambda x, y, z: x / y / z == x / (y / z)),
    equation("true", "divide_by_a_quotient", "x / (y / z) = (x z) / y", lambda x, y, z: x / (y / z) == x * z / y),
    equation("false", "divide_by_a_sum", "x / (y + z) = x / y + x / z", lambda x, y, z: x / (y + z) == x / y + x / z),
    equation("true", "multiply_exponentials", "exp(x) exp(y) = exp(x + y)", lambda x, y: exp(x) * exp(y) == exp(x + y)),
    equation("not exact", "multiply_exponentials_exactly", "exp(x) exp(y) = exp(x + y), which overflows elsewhere",
             lambda x, y: exp(x) * exp(y) == exp(x + y)),
    equation("false", "add_exponentials", "exp(x) + exp(y) = exp(x + y)", lambda x, y: exp(x) + exp(y) == exp(x + y)),
    equation("true", "divide_by_exponential", "x / exp(y) = x exp(-y)", lambda x, y: x / exp(y) == x * exp(-y)),
    equation("false", "divide_by_exponential_wrongly", "x / exp(y) = x exp(y)", lambda x, y: x / exp(y) == x * exp(y)),
    equation("true", "logarithm_of_exponential", "log(exp(x)) = x", lambda x: log(exp(x)) == x),
    equation("not exact", "logarithm_of_exponential_exactly", "log(exp(x)) = x, infinite where exp overflows", lambda x: log(exp(x)) == x),
    exponential_of_logarithm,
    equation("true", "power_of_exponential", "exp(x) ** y = exp(x y)", lambda x, y: power(exp(x), y) == exp(x * y)),
    equation("true", "power_of_power", "(exp(x) ** y) ** z = exp(x) ** (y z)",
             lambda x, y, z: power(power(exp(x), y), z) == power(exp(x), y * z)),
    power_of_power_of_anything,
    equation("true", "logarithm_of_power", "log(exp(x) ** y) = y x", lambda x, y: log(power(exp(x), y)) == y * x),
    equation("false", "logarithm_of_square", "log(x x) = log(x) + log(x)", lambda x: log(x * x) == log(x) + log(x)),
    equation("true", "root_of_square", "sqrt(x x) = |x|", lambda x: sqrt(x * x) == absolute(x)),
    equation("false", "root_of_square_wrongly", "sqrt(x x) = x", lambda x: sqrt(x * x) == x),
    equation("false", "root_of_sum", "sqrt(x x + y y) = |x| + |y|", lambda x, y: sqrt(x * x + y * y) == absolute(x) + absolute(y)),
    equation("true", "reciprocal_of_exponential", "1 / exp(x) = exp(-x)", lambda x: reciprocal(exp(x)) == exp(-x)),
    equation("true", "absolute_of_square", "|x x| = x x", lambda x: absolute(x * x) == x * x, "exact"),
    equation("false", "absolute_of_cube", "|x x x| = x x x", lambda x: absolute(x * x * x) == x * x * x),
    equation("true", "absolute_of_negated", "|-x| = |x|", lambda x: absolute(-x) == absolute(x), "exact"),
    equation("true", "absolute_of_product", "|x| |y| = |x y|", lambda x, y: absolute(x) * absolute(y) == absolute(x * y)),
    equation("false", "absolute_of_sum", "|x| + |y| = |x + y|", lambda x, y: absolute(x) + absolute(y) == absolute(x + y)),
    with_number("not exact", "zero_times", "x 0 = 0, but not for infinities", 0.0, lambda x, c: x * c, filled, "exact"),
    with_number("not exact", "subtract_itself", "(x - x) + c = c, but not for infinities", None, lambda x, c: (x - x) + c, filled, "exact"),
    with_number("not exact", "divide_by_itself", "(x / x) c = c, but not for zero", None, lambda x, c: (x / x) * c, filled, "exact"),
    equation("not exact", "add_in_another_order", "(x + y) + z = x + (y + z), but not in floating point",
             lambda x, y, z: (x + y) + z == x + (y + z)),
    equation("false", "subtract_in_another_order", "x - (y - z) = (x - y) - z", lambda x, y, z: x - (y - z) == (x - y) - z, "reassociates"),
    equation("true", "subtract_a_difference", "x - (y - z) = (x - y) + z", lambda x, y, z: x - (y - z) == (x - y) + z, "reassociates"),
    with_number("true", "logistic", "1 / (1 + exp(-x)) = sigmoid(x)", 1.0,
                lambda x, c: reciprocal(exp(-x) + c), lambda x, c: sigmoid(x)),
    with_number("false", "logistic_wrongly", "1 / (1 + exp(x)) = sigmoid(x)", 1.0,
                lambda x, c: reciprocal(exp(x) + c), lambda x, c: sigmoid(x)),
    with_number("false", "double_of_half", "floor(x / 2) 2 = x, but not for odd x", 2.0, lambda x, c: floor(x / c) * c, lambda x, c: x),
    equation("false", "floor_of_sum", "floor(x) + floor(y) = floor(x + y)", lambda x, y: floor(x) + floor(y) == floor(x + y)),
    equation("false", "floor_of_negated", "-floor(x) = floor(-x), but only for whole x", lambda x: -floor(x) == floor(-x)),
    equation("true", "ceiling_of_negated", "-floor(x) = ceil(-x)", lambda x: -floor(x) == unary("Ceil", -x)),
    with_number("false", "ceiling_is_next", "ceil(x) = floor(x) + 1, but not for whole x", 1.0,
                lambda x, c: unary("Ceil", x * c), lambda x, c: floor(x) + c),
    with_number("false", "round_is_floor", "round(x + 0.5) = floor(x) + 1 ... at every half it goes to the even one", 0.5,
                lambda x, c: floor(x + c), lambda x, c: unary("Round", x)),
    with_number("false", "square_of_sign", "sign(x) sign(x) = 1, but not at zero", 1.0, lambda x, c: sign(x) * sign(x) * c, filled),
    equation("true", "sign_times_absolute", "sign(x) |x| = x", lambda x: sign(x) * absolute(x) == x),
)  # fmt: skip
