"""Maxima, comparisons and choices, element by element."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from egraph.rule import Rounding, Steps, Tensor, require
from egraph.rule_operators import binary, maximum, minimum, unary, where
from tests.xla_rules.claims import Claim, Truth, equation, member


def greater(x: Tensor, y: Tensor) -> Tensor:
    return binary("Greater", x, y)


def negation(condition: Tensor) -> Tensor:
    return unary("Not", condition)


def of_one_shape(
    truth: Truth, name: str, text: str, left: Callable[..., Tensor], right: Callable[..., Tensor], rounding: Rounding = "assumes finite"
) -> Claim:
    """left(x, ..) = right(x, ..), where all have one shape"""

    def of_one(x: Tensor) -> Steps:
        yield left(x)
        yield right(x)

    def of_two(x: Tensor, y: Tensor) -> Steps:
        yield left(x, y)
        require(x.shape == y.shape, "one shape")
        yield right(x, y)

    def of_three(x: Tensor, y: Tensor, z: Tensor) -> Steps:
        yield left(x, y, z)
        require(x.shape == y.shape and y.shape == z.shape, "one shape")
        yield right(x, y, z)

    law = (of_one, of_two, of_three)[len(inspect.signature(left).parameters) - 1]
    return member(truth, name, text, law, rounding)


CLAIMS = (
    equation("true", "largest_twice", "max(max(x, y), y) = max(x, y)", lambda x, y: maximum(maximum(x, y), y) == maximum(x, y), "exact"),
    of_one_shape("true", "smallest_of_largest", "min(max(x, y), y) = y", lambda x, y: minimum(maximum(x, y), y), lambda x, y: y),
    of_one_shape("not exact", "smallest_of_largest_exactly", "min(max(x, y), y) = y, but x may be no number",
                 lambda x, y: minimum(maximum(x, y), y), lambda x, y: y, "exact"),
    of_one_shape("false", "smallest_of_largest_wrongly", "min(max(x, y), y) = x", lambda x, y: minimum(maximum(x, y), y), lambda x, y: x),
    equation("true", "negated_maximum", "-max(x, y) = min(-x, -y)", lambda x, y: -maximum(x, y) == minimum(-x, -y), "exact"),
    equation("false", "negated_maximum_wrongly", "-max(x, y) = max(-x, -y)", lambda x, y: -maximum(x, y) == maximum(-x, -y), "exact"),
    equation("true", "sum_of_maxima", "max(x, y) + z = max(x + z, y + z)",
             lambda x, y, z: maximum(x, y) + z == maximum(x + z, y + z), "reassociates"),
    equation("false", "sum_of_maxima_wrongly", "max(x + y, z + w) = max(x, z) + max(y, w)",
             lambda x, y, z, w: maximum(x + y, z + w) == maximum(x, z) + maximum(y, w), "reassociates"),
    equation("false", "product_of_maxima", "max(x, y) z = max(x z, y z), but z may be negative",
             lambda x, y, z: maximum(x, y) * z == maximum(x * z, y * z)),
    equation("true", "choose_by_negation", "where(not p, a, b) = where(p, b, a)",
             lambda x, y, a, b: where(negation(greater(x, y)), a, b) == where(greater(x, y), b, a), "exact"),
    equation("false", "choose_by_negation_wrongly", "where(not p, a, b) = where(p, a, b)",
             lambda x, y, a, b: where(negation(greater(x, y)), a, b) == where(greater(x, y), a, b), "exact"),
    equation("true", "not_greater", "not (x > y) = x <= y", lambda x, y: negation(greater(x, y)) == binary("LessOrEqual", x, y)),
    equation("not exact", "not_greater_exactly", "not (x > y) = x <= y, but either may be no number",
             lambda x, y: negation(greater(x, y)) == binary("LessOrEqual", x, y)),
    equation("false", "not_greater_wrongly", "not (x > y) = x < y, but they may be equal",
             lambda x, y: negation(greater(x, y)) == binary("Less", x, y)),
    of_one_shape("false", "maximum_is_at_least", "max(x, y) > y = x >= y, but not where they are equal",
                 lambda x, y: greater(maximum(x, y), y), lambda x, y: binary("GreaterOrEqual", x, y)),
    equation("true", "greater_is_less", "x > y = y < x", lambda x, y: greater(x, y) == binary("Less", y, x), "exact"),
    of_one_shape("not exact", "choose_equal", "where(x = x, a, b) = a, but not for no number",
                 lambda x, a, b: where(binary("Equal", x, x), a, b), lambda x, a, b: a, "exact"),
    equation("not exact", "maximum_by_choice", "where(x > y, x, y) = max(x, y), but not where x is no number",
             lambda x, y: where(greater(x, y), x, y) == maximum(x, y)),
    equation("true", "maximum_by_finite_choice", "where(x > y, x, y) = max(x, y)",
             lambda x, y: where(greater(x, y), x, y) == maximum(x, y)),
    equation("false", "minimum_by_choice", "where(x > y, x, y) = min(x, y)", lambda x, y: where(greater(x, y), x, y) == minimum(x, y)),
)  # fmt: skip
