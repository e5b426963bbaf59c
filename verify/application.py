"""Prove one application of a rule, or a derived program, at its own sizes: translation validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from egraph.errors import EinsatError
from egraph.rule import Binding, MergeRule, Rounding, Rule
from egraph.tensor import Node
from egraph.tensor.boxes import axis_names, restricted
from egraph.tensor.expr.scope import Scope
from egraph.tensor.ops.reference import fragment_expression
from egraph.tensor.ops.stitch import boxes_by_choice
from verify.assumptions import Assumptions
from verify.budget import Exhausted, at_most
from verify.disagreement import disagreement
from verify.equality import prove_equal
from verify.facts import Facts
from verify.outcome import Equal, Open, Outcome
from verify.random_binding import Refused
from verify.random_testing import instantiate
from verify.rounding import ONLY_ROUNDING
from verify.sampling import difference, drawn

MOST_WORK = 50_000
"""Most units of work of a proof at known sizes. A convolution in 45 blocks takes an eighth of it, most programs a hundredth."""
QUICK_WORK = 1_000
"""Most units of work of a proof attempt before random operands are tried, if the caller compares both sides on random operands too."""
MOST_BOXES = 32
"""Most boxes on which two programs are compared one after the other. A border on every side of two axes leaves nine."""
TO_LOCATE = 1_000
"""Most units of work to locate where the sides of a refused program differ."""


def objection(rule: Rule | MergeRule, bindings: Sequence[Binding]) -> str:
    """Return the obligation that stays open when both sides are compared at the sizes of this match; '' if they are proved equal."""
    try:
        instance = instantiate(rule, bindings)
    except (Refused, EinsatError) as error:
        return str(error)
    return objection_to(instance.left, instance.right, instance.numbers)


def objection_to(lefts: Sequence[Node], rights: Sequence[Node], numbers: Mapping[int, float]) -> str:
    """Return the obligation that stays open when fragments are compared at their own sizes; '' if they are proved equal."""
    try:
        for left, right in zip(lefts, rights, strict=True):
            outcome = _proof(fragment_expression(left, numbers), fragment_expression(right, numbers))
            if isinstance(outcome, Open):
                return located(outcome.obligation, left, right, numbers)
    except EinsatError as error:
        return str(error)
    return ""


def located(reason: str, left: Node, right: Node, numbers: Mapping[int, float]) -> str:
    """Return a reason of refusal; if the sides are equal at some positions, add where they differ."""
    differing = disagreement(fragment_expression(left, numbers), fragment_expression(right, numbers), TO_LOCATE)
    partly = differing is not None and differing.boxes and not differing.is_total
    return f"{reason}; {differing.describe(axis_names(left))}" if differing is not None and partly else reason


def _proof(left: Scope, right: Scope) -> Outcome:
    """Compare two expressions as a whole; if that stays open, compare them on every box on which a choice selects one operand."""
    whole = _within_budget([(left, right)])
    if isinstance(whole, Equal):
        return whole
    boxes = boxes_by_choice(right) or boxes_by_choice(left)
    if len(boxes) not in range(2, MOST_BOXES + 1):
        return whole
    by_boxes = _within_budget([(restricted(left, box), restricted(right, box)) for box in boxes])
    return by_boxes if isinstance(by_boxes, Equal) else whole


def _within_budget(pairs: Sequence[tuple[Scope, Scope]], most_work: int = MOST_WORK) -> Outcome:
    """Prove that the sides of every pair are equal, or return the outcome of the first pair that stays open."""
    facts: set[str] = set()
    try:
        with at_most(most_work):
            for left, right in pairs:
                outcome = prove_equal(left, right, Assumptions(facts=Facts(at_sizes=True)))
                if isinstance(outcome, Open):
                    return outcome
                facts |= outcome.facts
    except (Exhausted, RecursionError):
        return Open(f"not decided within {most_work} units of work")
    return Equal(frozenset(facts))


def equal_at_sizes(
    left: Node, right: Node, rounding: Rounding = "reassociates", numbers: Mapping[int, float] | None = None, *, is_compared: bool = False
) -> str:
    """Return what stays open when two fragments over the same placeholders are compared; '' if they are proved equal.

    They have to be equal for all contents of the operands, except that constants in ``numbers`` have these values. Random operands at a few
    positions refute; otherwise a proof decides. Laws that need more than the rounding class allows count as open. ``is_compared``: the
    caller compares both on random operands, too; a short proof is then tried first, and usually decides.
    """
    numbers = numbers or {}
    if left.type != right.type:
        return f"the left side is {left.type}, the right side {right.type}"
    try:
        sides = fragment_expression(left, numbers), fragment_expression(right, numbers)
        outcome = _within_budget([sides], QUICK_WORK) if is_compared else Open("")
        if isinstance(outcome, Open):
            reason = difference(*sides, drawn(left.type.sizes))
            if reason:
                return located(reason, left, right, numbers)
            outcome = _proof(*sides)
    except EinsatError as error:
        return str(error)
    if isinstance(outcome, Open):
        suspected = tuple(outcome.at.get(f"o{axis}", 0) for axis in range(left.type.rank))
        return located(difference(*sides, [suspected]) or outcome.obligation, left, right, numbers)
    needed = sorted(outcome.facts - set(ONLY_ROUNDING))
    return f"it holds under assumptions only: {', '.join(needed)}" if needed and rounding != "assumes finite" else ""
