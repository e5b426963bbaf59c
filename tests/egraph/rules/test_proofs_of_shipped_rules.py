"""Each of these shipped rules depends on one step of the prover, which must stay within its condition."""

from __future__ import annotations

import pytest

from egraph.rules import rule_named
from egraph.tensor.expr.index import Symbol, index
from egraph.tensor.expr.scope import Compare
from verify.assumptions import Assumptions
from verify.prove import Effort, prove


@pytest.mark.parametrize("name", ["reshape_twice", "pad_into_max_pool"])
def test_proved_in_general(name: str) -> None:
    proof = prove(rule_named(name), Effort(tests=8, tries=1600))
    assert (proof.verdict, proof.obligations) == ("proved", ())


@pytest.mark.parametrize(("minimum", "known"), [(1, True), (0, None)])
def test_a_common_factor_is_cancelled_where_it_is_positive(minimum: int, known: bool | None) -> None:
    """a b = c d and a e = c d imply b = e, unless a is zero."""
    a = index(Symbol("a", minimum))
    b, c, d, e = (index(Symbol(name, 0)) for name in "bcde")
    given = Assumptions().assume(Compare(a * b, "==", c * d), Compare(a * e, "==", c * d))
    assert given.decide(Compare(b, "==", e)) is known
