"""Softmax of what is scaled or moved."""

from __future__ import annotations

from collections.abc import Callable

from egraph.rule import Attributes, Steps, Tensor, Weight, require
from egraph.rule_operators import softmax
from tests.xla_rules.claims import Claim, Truth, member


def unmoved(
    truth: Truth, name: str, text: str, left: Callable[[Tensor, Tensor], Tensor], kind: type[Tensor],
    accepts: Callable[[Tensor, Tensor, Attributes], bool],
) -> Claim:  # fmt: skip
    """softmax(left(x, c)) = softmax(x)"""

    def law(x: Tensor, c: Tensor, a: Attributes) -> Steps:
        yield softmax(left(x, c), a)
        require(accepts(x, c, a), "this c")
        yield softmax(x, a)

    law.__annotations__["c"] = kind
    return member(truth, name, text, law, "assumes finite")


def constant_along(x: Tensor, c: Tensor, a: Attributes) -> bool:
    return c.rank == x.rank and c.shape[a.axis] == 1 and all(q in (1, p) for p, q in zip(x.shape, c.shape, strict=True))


CLAIMS = (
    unmoved("false", "softmax_of_scaled", "softmax(x c) = softmax(x)", lambda x, c: x * c, Weight, lambda x, c, a: c.rank == 0),
    unmoved("false", "softmax_of_varying", "softmax(x + c) = softmax(x), but c may vary along the axis",
            lambda x, c: x + c, Tensor, lambda x, c, a: c.shape == x.shape),
    unmoved("true", "softmax_of_number", "softmax(x + c) = softmax(x), for c that does not vary along the axis",
            lambda x, c: x + c, Tensor, constant_along),
)  # fmt: skip
