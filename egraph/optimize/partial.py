"""Partial equivalence at work: its rule, given the prover."""

from __future__ import annotations

from collections.abc import Callable

from egraph.partial.stitching import partial_rule
from egraph.tensor import Node
from egraph.tensor.boxes import Box
from egraph.tensor.ops.reference import fragment_expression


def _agreement(original: Node) -> Callable[[Node], float]:
    from verify.disagreement import agreement

    share = agreement(fragment_expression(original))
    return lambda program: share(fragment_expression(program))


def _where(original: Node, program: Node) -> tuple[Box, ...] | None:
    from verify.disagreement import LITTLE_WORK, disagreement

    difference = disagreement(fragment_expression(original), fragment_expression(program), LITTLE_WORK)
    return None if difference is None else difference.boxes


PARTIAL = (partial_rule(_agreement, _where),)
"""Joined to the derivation rules where they are asked for."""
