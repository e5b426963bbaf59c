"""The derivation rule of partial equivalence: mutants of an operator, each stitched with its corrections."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from egraph.derive.derivation import Derivation, DerivationRule, Step
from egraph.derive.estimating import estimate
from egraph.partial.mutants import Agreement, Mutant, Where, mutants
from egraph.partial.stitching import stitches
from egraph.tensor import Node
from egraph.tensor.boxes import axis_names, describe_boxes

NAME = "partial equivalence"
MOST_PROPOSED = 4
"""Programs of one operator: each is nodes of the e-graph, and kernels to measure."""
MOST_COSTLY = 1.5
"""Programs beyond this multiple of the operator's own estimate are not proposed: what estimates miss is hardly more."""


def partial_rule(agreement: Agreement, where: Where) -> DerivationRule:
    """Return the rule that finds mutants by how they agree, and corrects them where they differ."""
    return DerivationRule(NAME, ("Conv",), lambda node: stitched(node, lambda: mutants(node, agreement, where)), rounds=0)


def stitched(node: Node, find: Callable[[], Iterable[Mutant]]) -> Iterable[Derivation]:
    """Yield programs equal to an operator: mutants with their corrections, those estimated the cheapest first."""
    names = axis_names(node)
    derivations: list[Derivation] = []
    for mutant in find():
        for program in stitches(node, mutant.program, mutant.boxes):
            corrected = describe_boxes(mutant.boxes, node.type.sizes, names) if mutant.boxes else ""
            kind = "corrected" if corrected else "exact"
            steps = (Step("mutation", "; ".join(mutant.moves)), *((Step("correction", f"where {corrected}"),) if corrected else ()))
            derivations.append(Derivation(f"{NAME}: {kind}, {' and '.join(mutant.moves)}", program, steps))
    limit = MOST_COSTLY * estimate(node)
    cheap = [each for each in derivations if estimate(each.program) <= limit]
    yield from sorted(cheap, key=lambda each: (estimate(each.program), each.program.digest))[:MOST_PROPOSED]
