"""Judge generated rules: only what is proved is kept."""

from __future__ import annotations

from egraph.rule import Rule
from verify.proof import Proof
from verify.prove import Effort, prove

EFFORT = Effort(tests=16, tries=2000, open_cases=1)
"""Many a variant of a rule is tried with fewer guards: the first open case decides against it."""
BIT_BY_BIT = Effort(tests=96, tries=6000, open_cases=1)
"""For a rule that is to keep every bit: infinities and no-numbers are tested too, and not every draw tells them apart."""


def proved(rule: Rule) -> Proof | None:
    """Accept a rule that is proved for all sizes, with its proof."""
    proof = prove(rule, BIT_BY_BIT if rule.rounding == "exact" else EFFORT)
    return proof if proof.verdict == "proved" else None
