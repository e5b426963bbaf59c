"""Prove that two scopes are the same tensor for all sizes that the assumptions allow; never claim that they differ."""

from __future__ import annotations

from egraph.expr.index import Iterator, index
from egraph.expr.scope import Scope
from verify.assumptions import Assumptions
from verify.bijection import equal_values
from verify.definedness import differences
from verify.normal import normalise
from verify.normal.context import TooLarge
from verify.outcome import Equal, Open, Outcome

__all__ = ["Equal", "Open", "Outcome", "prove_equal"]


def prove_equal(left: Scope, right: Scope, assumptions: Assumptions) -> Outcome:
    """Normalise both at one generic output index and pair their terms."""
    if len(left.shape) != len(right.shape):
        return Open(f"the left side has {len(left.shape)} axes, the right side {len(right.shape)}", assumptions.conditions)
    for axis, (size, other) in enumerate(zip(left.shape, right.shape, strict=True)):
        if not assumptions.equal(size, other):
            return Open(f"axis {axis}: {index(size)} == {index(other)}", assumptions.conditions)
    output = tuple(index(0 if assumptions.equal(size, 1) else Iterator(f"o{axis}", 0, size)) for axis, size in enumerate(left.shape))
    facts: set[str] = set()
    try:
        first, second = (normalise(side, output, assumptions, facts) for side in (left, right))
    except TooLarge as reason:
        return Open(str(reason), assumptions.conditions)
    outcome = equal_values(first, second, assumptions)
    facts |= differences(left, right)
    return Equal(outcome.facts | facts) if isinstance(outcome, Equal) else outcome
