"""Rules that hold only at some positions, corrected at the others: at a match, the left side's operators compute the differing boxes.

The correction is not trusted: each program as a whole is proved equal to the left side, at the sizes of the match.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice

from egraph.errors import EinsatError
from egraph.partial.stitching import stitches
from egraph.rewrite.clock import OutOfTime, within
from egraph.rule import Rounding, Rule
from egraph.tensor import Node, format_fragment
from egraph.tensor.boxes import axis_names
from egraph.tensor.ops.reference import fragment_expression
from verify.application import equal_at_sizes
from verify.disagreement import Disagreement, disagreement
from verify.proof import Failure, Proof
from verify.prove import Effort, prove
from verify.random_testing import Instance, draws

BEYOND_CORRECTION: tuple[Failure, ...] = ("vacuous", "same sides", "missing guard", "raises", "rounding", "language")
"""Failures that a correction of differing positions does not repair."""
EFFORT = Effort()
DRAWN = 4
"""Random applications drawn for each one of ``Effort.applications``, because those without a position to correct show nothing."""


@dataclass(frozen=True)
class Corrected:
    """The result for one application: programs that are proved equal to the left side, or the reason why there are none."""

    programs: tuple[Node, ...]
    reason: str = ""
    where: Disagreement | None = None


def corrected(left: Node, right: Node, numbers: Mapping[int, float], rounding: Rounding) -> Corrected:
    """Return ``right`` with the operators of ``left`` at the positions where they differ, with a proof."""
    where = disagreement(fragment_expression(left, numbers), fragment_expression(right, numbers))
    if where is None:
        return Corrected((), "where the sides differ is not decided at these sizes")
    if where.is_total:
        return Corrected((), "the sides differ everywhere: there is nothing of the right side to keep", where)
    programs = stitches(left, right, where.boxes)
    if not programs:
        reason = f"{where.describe(axis_names(left))}, and no operator computes the left side there alone"
        return Corrected((), reason, where)
    judged = [(program, equal_at_sizes(left, program, rounding, numbers)) for program in programs]
    proved = tuple(program for program, reason in judged if not reason)
    return Corrected(proved, "" if proved else f"corrected, it could not be proved: {judged[0][1]}", where)


def prove_corrected(rule: Rule, effort: Effort = EFFORT) -> Proof:
    """Return the verdict on a rule that is corrected where its sides differ: proofs of random applications at their own sizes.

    A rule whose sides are equal everywhere is proved like any other rule.
    """
    start = time.thread_time()
    proof = prove(rule, effort)
    if proof.is_proved or proof.failure in BEYOND_CORRECTION:
        return proof
    judged: list[tuple[Instance, Corrected]] = []
    try:
        with within(effort.seconds):
            for instance in islice(draws(rule, effort.seed, effort.tries), DRAWN * effort.applications):
                judged.append((instance, _of(rule, instance)))
                if sum(bool(each.programs) and _differs(each) for _, each in judged) >= effort.applications:
                    break
    except OutOfTime as reached:
        if not judged:
            return replace(proof, failure="time", reason=f"time: {reached}")
    differing = [(instance, each) for instance, each in judged if _differs(each) or each.reason]
    proved = [(instance, each) for instance, each in differing if each.programs]
    if not proved:
        why = differing[0][1].reason if differing else "no random application differs at some positions and agrees at others"
        return replace(proof, verdict="unknown", failure="difference", reason=f"it cannot be corrected: {why}")
    instance, best = min(proved, key=lambda pair: _share(pair[1]))
    scope = f"each application at its own sizes, corrected where its sides differ, as {len(proved)} of {len(differing)} random ones"
    refused = next((each.reason for _, each in differing if not each.programs), "")
    return replace(
        proof, verdict="proved for these sizes", failure="", scope=scope, reason=f"of the others: {refused}" if refused else "",
        covers={"tree": False}, counterexample=None, obligations=(), where=described_at(best.where, instance),
        cases=len(proved), exact_cases=0, seconds=time.thread_time() - start,
    )  # fmt: skip


def described_at(where: Disagreement | None, instance: Instance) -> str:
    """Return ``equal except where h = 7 mod 8, for <left side> == <right side>``."""
    if where is None:
        return ""
    (left,), (right,) = instance.left, instance.right
    return f"{where.describe(axis_names(left))}, for {format_fragment(left)} == {format_fragment(right)}"


def _of(rule: Rule, instance: Instance) -> Corrected:
    (left,), (right,) = instance.left, instance.right
    try:
        return corrected(left, right, instance.numbers, rule.rounding)
    except (EinsatError, RecursionError) as error:
        return Corrected((), f"{type(error).__name__}: {error}")


def _differs(each: Corrected) -> bool:
    return each.where is not None and bool(each.where.boxes)


def _share(each: Corrected) -> float:
    """Return the share of the result that is corrected."""
    assert each.where is not None
    size = 1
    for length in each.where.shape:
        size *= length
    return each.where.cells / size
