"""What is padded, and what comes of the padding."""

from __future__ import annotations

import math
from collections.abc import Callable

from egraph.rule import Attributes, Rounding, Steps, Tensor, Weight, require, require_number
from egraph.rule_operators import concat, exp, expand, pad, relu
from tests.xla_rules.claims import Claim, Truth, member


def by_joining(truth: Truth, name: str, text: str, *, in_front: bool) -> Claim:
    """concat(x, expand(0)) = pad(x)"""

    def law(x: Tensor, c: Weight, e: Attributes, a: Attributes) -> Steps:
        yield concat(x, expand(c, e), a=a)
        require_number(c, 0.0)
        more, none = tuple(size if i == a.axis else 0 for i, size in enumerate(e.shape)), (0,) * x.rank
        before, after = (more, none) if in_front else (none, more)
        yield pad(x, before=before, after=after, mode="constant", value=0.0)

    return member(truth, name, text, law, "reassociates")


def of_scaled(truth: Truth, name: str, text: str, rounding: Rounding, *, zeros: bool) -> Claim:
    """pad(x c) = pad(x) c, for one number c"""

    def law(x: Tensor, c: Weight, p: Attributes) -> Steps:
        yield pad(x * c, p)
        require(c.rank == 0 and p.mode == "constant" and (not zeros or p.value == 0.0), "zeros")
        require(c.number is not None and -math.inf < c.number < math.inf, "zero times the number is zero")
        yield pad(x, p) * c

    return member(truth, name, text, law, rounding)


def of_result(truth: Truth, name: str, text: str, operator: Callable[[Tensor], Tensor], accepts: Callable[[Attributes], bool]) -> Claim:
    """pad(operator(x)) = operator(pad(x))"""

    def law(x: Tensor, p: Attributes) -> Steps:
        yield pad(operator(x), p)
        require(accepts(p), "what pads is kept by the operator")
        yield operator(pad(x, p))

    return member(truth, name, text, law, "exact")


CLAIMS = (
    by_joining("true", "pad_by_joining", "concat(x, expand(0)) = pad(x)", in_front=False),
    by_joining("false", "pad_by_joining_on_the_other_side", "concat(x, expand(0)) = pad(x), but in front", in_front=True),
    of_scaled("true", "pad_of_scaled", "pad(x c) = pad(x) c, with zeros and one number", "assumes finite", zeros=True),
    of_scaled("false", "pad_of_wrongly_scaled", "pad(x c) = pad(x) c, but with any number", "reassociates", zeros=False),
    of_result("false", "pad_of_exponential", "pad(exp(x)) = exp(pad(x)), but the exponential of zero is one", exp,
              lambda p: p.mode == "constant" and p.value == 0.0),
    of_result("true", "pad_of_rectified", "pad(relu(x)) = relu(pad(x)), with nothing negative", relu,
              lambda p: p.mode != "constant" or p.value >= 0.0),
    of_result("false", "pad_of_wrongly_rectified", "pad(relu(x)) = relu(pad(x)), but the padding may be negative", relu, lambda p: True),
)  # fmt: skip
