"""Rules that hold in part: at which positions the sides differ, at sizes at which they are equal elsewhere."""

from __future__ import annotations

from egraph.errors import EinsatError
from egraph.rule import MergeRule, Rule
from egraph.tensor import format_fragment
from egraph.tensor.boxes import axis_names
from egraph.tensor.ops.reference import fragment_expression
from verify.disagreement import LITTLE_WORK, disagreement
from verify.random_testing import draws

DRAWS = 40
"""Random instances of a rule at which it is looked."""


def partly_equal(rule: Rule | MergeRule, seed: int = 0) -> str:
    """Return ``equal except where h = 7 mod 8, for <left side>``, for the instance equal at most positions; '' where there is none."""
    best, text = 0.0, ""
    for instance in draws(rule, seed, DRAWS):
        for left, right in zip(instance.left, instance.right, strict=True):
            try:
                first, second = (fragment_expression(side, instance.numbers) for side in (left, right))
                difference = disagreement(first, second, LITTLE_WORK)
            except EinsatError:
                continue
            if difference is None or not difference.boxes or difference.is_total:
                continue
            share = 1 - difference.cells / left.type.elements
            if share > best:
                best, text = share, f"{difference.describe(axis_names(left))}, for {format_fragment(left)} == {format_fragment(right)}"
    return text
