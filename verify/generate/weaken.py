"""Find the weakest guards under which a generated equation still holds. Proofs, not forms, decide about generalisations.

An equation is found in one context, with its ranks, attributes and equal extents. First no condition of the context is a guard, then
some kinds of conditions are. The first rule that is accepted then loses guards one by one as long as it stays accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Generic, TypeAlias, TypeVar

import numpy as np

from egraph.errors import EinsatError
from egraph.rule import Binding, Mismatch, Rounding, Rule
from egraph.tensor import Node, walk
from egraph.tensor.ops.reference import evaluate
from verify.generate.enumeration import agree, field_of, lengths_of
from verify.generate.source import Draft, compile_rule
from verify.generate.terms import applications
from verify.generate.writer import Guard
from verify.random_binding import draw_binding

LADDER = (
    "", "equality", "equality implied", "equality attribute", "equality rank", "equality implied rank", "equality attribute rank",
    "equality implied attribute rank",
)  # fmt: skip
"""Kinds of guards that are tried together, weak sets first."""
EXTENTS = (1, 2, 3, 4, 5, 7)
Outcome = TypeVar("Outcome")
Judge: TypeAlias = Callable[[Rule], Outcome | None]
"""Returns the outcome for a rule that is accepted, None for one that is not."""


@dataclass(frozen=True)
class Accepted(Generic[Outcome]):
    """A rule with its weakest guards, its text, and the judge's outcome."""

    rule: Rule
    text: str
    guards: tuple[Guard, ...]
    outcome: Outcome
    draft: Draft


def weakest(draft: Draft, judge: Judge[Outcome]) -> Accepted[Outcome] | None:
    """Return the rule with the fewest guards that ``judge`` accepts; None if it does not accept the rule with all guards.

    The rule states the strictest rounding class that is accepted.
    """

    def attempt(guards: Sequence[Guard], rounding: Rounding = "assumes finite") -> Accepted[Outcome] | None:
        rule = compile_rule(draft, guards, rounding)
        rule = replace(rule, draw=partial(_draw, draft, rule))
        outcome = judge(rule) if _holds_in_context(draft, rule) else None
        return None if outcome is None else Accepted(rule, draft.text(guards, rounding), tuple(guards), outcome, draft)

    accepted = next((provable for guards in _ladder(draft.guards) if (provable := attempt(guards)) is not None), None)
    if accepted is None:
        return None
    for guard in sorted(accepted.guards, key=lambda guard: ("implied", "attribute", "rank", "equality").index(guard.kind)):
        if guard in accepted.guards and len(accepted.guards) > 1:
            accepted = attempt([kept for kept in accepted.guards if kept != guard]) or accepted
    return attempt(accepted.guards, "exact") or attempt(accepted.guards, "reassociates") or accepted


def _draw(draft: Draft, rule: Rule, random: Random) -> Binding:
    """Draw a binding for tests: with equal probability any that fits the left side, or the context's own with random extents."""
    if random.random() < 0.5:
        return draw_binding(rule, random)
    return draft.binding({name: random.choice(EXTENTS) for name in lengths_of(draft.equation.context, 0)})


def _ladder(guards: Sequence[Guard]) -> Iterator[tuple[Guard, ...]]:
    """Yield sets of guards, weak ones first, the full set last."""
    seen: set[tuple[Guard, ...]] = set()
    for kinds in LADDER:
        chosen = tuple(guard for guard in guards if guard.kind in kinds.split())
        if chosen not in seen:
            seen.add(chosen)
            yield chosen


def _holds_in_context(draft: Draft, rule: Rule) -> bool:
    """Return whether both sides, as the rule builds them, agree on random data for three choices of extents."""
    sides = draft.equation.left, draft.equation.right
    arithmetic = field_of([application.production for side in sides for application in applications(side)])
    for number in (0, 1, 2):
        try:
            left, right = rule.apply(draft.binding(lengths_of(draft.equation.context, number)))
        except (Mismatch, EinsatError, IndexError, ZeroDivisionError, ValueError):
            return False
        generator = np.random.default_rng(number)
        leaves = {node: _data(generator, node.type.sizes, exact=arithmetic == "prime") for node in _placeholders(left, right)}
        with np.errstate(all="ignore"):
            left_value, right_value = evaluate((left, right), leaves, arithmetic)
        if not agree(left_value, right_value, arithmetic):
            return False
    return True


def _placeholders(*roots: Node) -> list[Node]:
    return [node for node in walk(roots) if node.op == "Placeholder"]


def _data(generator: np.random.Generator, shape: tuple[int, ...], *, exact: bool) -> np.ndarray:
    return np.asarray(generator.integers(1, 2**31 - 1, shape) if exact else generator.standard_normal(shape))
