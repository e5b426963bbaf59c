"""Every shipped rule applies to drawn matches of its pattern of rank 1 to 5, through the optimiser's gate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from random import Random

import numpy as np
import pytest

from egraph.errors import EinsatError
from egraph.optimize.admission import admitted
from egraph.rule import Binding, MergeRule, Mismatch, Rule
from egraph.rules import RULES
from egraph.tensor import TensorType
from verify.random_binding import Refused, draw_binding
from verify.random_testing import CRASHES, OTHERS, Instance, instantiate
from verify.shapes import size

MATCHES = 3
TRIES = (20, 230)
"""Draws of one rank, in each round; most patterns need one or two, some combinations of windows and strides need a hundred."""


def matches(rule: Rule | MergeRule) -> Iterator[Instance]:
    """Yield one instance for each rank of the first variable, then instances of any rank; rare ranks are drawn again at the end.

    Constants are numbers if the rule requires it or by chance, rounded to float32 like constants of models.
    """
    random = Random(f"{rule.name} at the gate")
    pattern = rule.member if isinstance(rule, MergeRule) else rule
    waiting = [*random.sample(range(1, 6), 5), None, None, None]
    for tries in TRIES:
        for rank in tuple(waiting):
            for _ in range(tries):
                try:
                    drawn = instance(rule, pattern, rank, random)
                except (*CRASHES, Refused, Mismatch, EinsatError):
                    continue
                waiting.remove(rank)
                yield drawn
                break


def instance(rule: Rule | MergeRule, pattern: Rule, rank: int | None, random: Random) -> Instance:
    start = None
    if rank is not None and pattern.draw is None:
        shape = tuple(size(random) if rank < 4 else random.randint(1, 3) for _ in range(rank))
        start = Binding({pattern.variables[0].name: TensorType("float32", shape)}, {})
    bindings = [draw_binding(pattern, random, start)]
    if isinstance(rule, MergeRule):
        first = bindings[0]
        shared = Binding({name: first.types[name] for name in rule.shared if name in first.types}, first.attributes)
        bindings += [draw_binding(pattern, random, shared) for _ in range(random.choice(OTHERS[:3]))]
    drawn = instantiate(rule, tuple(bindings)).bindings  # the instance also has the numbers that the rule requires
    return instantiate(rule, [replace(each, numbers={name: float(np.float32(n)) for name, n in each.numbers.items()}) for each in drawn])


@cache
def admitted_rules() -> dict[str, Rule | MergeRule]:
    """Return the optimiser's rules, on demand because hashing the dependencies of their proofs takes a second."""
    return {rule.name: rule for rule in admitted(RULES)}


def test_every_shipped_rule_is_admitted() -> None:
    assert list(admitted_rules()) == [each.name for each in RULES]


@pytest.mark.parametrize("plain", RULES, ids=lambda rule: str(rule.name))
def test_a_rule_is_not_refused_for_want_of_a_proof(plain: Rule | MergeRule) -> None:
    rule = admitted_rules()[plain.name]
    used = 0
    for each in matches(plain):
        try:
            rule.apply(each.bindings[0]) if isinstance(rule, Rule) else rule.apply(each.bindings)
        except Mismatch as refusal:
            pytest.fail(refusal.reason)
        used += 1
        if used == MATCHES:
            return
    assert used, "no match was drawn"
