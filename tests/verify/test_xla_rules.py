"""Rules of XLA's simplifier are proved with their guards, and are not proved if anything in them is wrong."""

from __future__ import annotations

import pytest

from egraph.rule import Rule
from tests.xla_rules import FALSE, NOT_EXACT, TRUE
from verify.budget import Exhausted, at_most
from verify.proof import Proof
from verify.prove import Effort, prove

UNDECIDED = {"power_of_exponential", "power_of_power", "logarithm_of_power", "average_of_constant_window", "pad_of_rectified"}
"""True rules that are not proved: powers with unknown exponents, an average over the inner part of a window; or slow proofs."""
NEVER_DRAWN = {"reverse_twice", "even_elements_of_interleaved"}
"""Rules whose guards no random draw passes, so that only the symbolic cases decide."""


def by_cases(rule: Rule) -> Proof | None:
    """Return the verdict of the symbolic cases; None if they take too long."""
    try:
        with at_most(20_000):
            return prove(rule, Effort(tests=0, open_cases=2, applications=0))
    except Exhausted:
        return None


def named(rule: Rule) -> str:
    return rule.name


@pytest.mark.parametrize("rule", [rule for rule in TRUE if rule.name not in UNDECIDED], ids=named)
def test_true_rules_are_proved(rule: Rule) -> None:
    if rule.name in NEVER_DRAWN:
        outcome = by_cases(rule)
        assert outcome is not None and outcome.verdict == "proved", outcome
    else:
        proof = prove(rule, Effort(tests=4, open_cases=2, applications=0))
        assert proof.verdict == "proved", proof
        assert proof.cases > 0


@pytest.mark.parametrize("rule", FALSE, ids=named)
def test_false_rules_are_not_proved_even_without_tests(rule: Rule) -> None:
    proof = by_cases(rule)
    assert proof is None or proof.verdict not in ("proved", "proved for these sizes"), proof


@pytest.mark.parametrize("rule", NOT_EXACT, ids=named)
def test_what_holds_of_real_numbers_alone_is_not_exact(rule: Rule) -> None:
    proof = prove(rule, Effort(tests=24, applications=0))
    assert proof.verdict in ("refuted", "unknown"), proof


def test_there_are_many() -> None:
    assert len(TRUE) >= 40 and len(FALSE) + len(NOT_EXACT) >= 60
