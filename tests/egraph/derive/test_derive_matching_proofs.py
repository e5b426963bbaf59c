"""Matched programs are proved at their own sizes, and are found again after derivation rules."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from egraph.derive.matching.form import form
from egraph.derive.matching.match import match
from egraph.derive.rules.bodies import Refusal
from egraph.derive.rules.boundary import relax
from egraph.derive.rules.substitution import reverse, split_iterator
from egraph.derive.rules.summation import split_summation
from egraph.tensor import Node, TensorType, placeholder
from egraph.tensor.expr.canonical import canonical
from egraph.tensor.expr.scope import Scope
from egraph.tensor.ops import apply
from egraph.tensor.ops.reference import fragment_expression
from tests.egraph.derive.test_derive_matching_operators import CONTRACTIONS, MOVEMENTS, WINDOWS, samples
from verify.assumptions import Assumptions
from verify.equality import prove_equal
from verify.outcome import Open


@pytest.mark.parametrize("operator", CONTRACTIONS + WINDOWS + MOVEMENTS)
def test_every_match_is_proved(operator: str) -> None:
    proved = 0
    for node in samples(operator, 12):
        scope = fragment_expression(node)
        for program in match(scope, node.inputs):
            proved += 1
            outcome = prove_equal(scope, fragment_expression(program), Assumptions())
            assert not isinstance(outcome, Open), (program, outcome)
    assert proved >= 12


def conv5x5() -> Node:
    data, weight = (placeholder(k, TensorType("float32", shape)) for k, shape in enumerate(((1, 16, 24, 24), (64, 16, 6, 5))))
    return apply("Conv", data, weight, strides=(1, 1), dilations=(1, 1), group=1, pads=(2, 2, 3, 2), layout="NCHW")


RULES: dict[str, Callable[[Scope], Scope | Refusal]] = {
    "RangeMagnify": lambda scope: relax(scope, scope.summation[1], 0, 1),
    "both ends": lambda scope: relax(scope, scope.summation[2], 2, 1),
    "reversed taps": lambda scope: reverse(scope, scope.summation[1]),
    "split taps": lambda scope: split_iterator(scope, next(i for i in scope.summation if i.high == 6), 3),
    "split channels": lambda scope: split_iterator(scope, next(i for i in scope.summation if i.high == 16), 4),
    "taps summed outside": lambda scope: split_summation(scope, [i for i in scope.summation if i.high != 16]),
    "channels summed outside": lambda scope: split_summation(scope, [i for i in scope.summation if i.high == 16]),
}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_of_derivation_does_not_hide_the_operator(name: str) -> None:
    node = conv5x5()
    start = canonical(fragment_expression(node))
    changed = RULES[name](start)
    assert isinstance(changed, Scope) and canonical(changed) != start
    assert form(changed).text == form(start).text
    assert match(changed, node.inputs)[0] is node
