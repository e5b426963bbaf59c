"""Judge generated rules: only what is proved is kept."""

from __future__ import annotations

from egraph.rule import Rule
from verify.random_testing import RuleTest, check_rule

CASES, TRIES = 24, 1500


def judged(rule: Rule) -> RuleTest | None:
    """Accept a rule that holds on random shapes, attributes and data."""
    test = check_rule(rule, cases=CASES, tries=TRIES)
    return test if test.passed else None
