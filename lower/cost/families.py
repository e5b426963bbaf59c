"""Families: kernels around one costly operator take about the same time, whatever is fused above it.

A family's first measurement tells what its other members cost, give or take the operands that they read besides.
"""

from __future__ import annotations

from typing import TypeAlias

from egraph.tensor import Candidate, Implementation, Node, make, placeholder, rewrite, walk
from egraph.tensor.ops import OPS

Family: TypeAlias = tuple[Implementation, Node, tuple[object, ...]]
"""Implementation, the costly operator over what it reads, and the transposes above it."""

CHEAP = ("elementwise", "view", "movement")


def family(candidate: Candidate) -> Family | None:
    """Return the family of a candidate, None where no single operator decides what it costs."""
    nodes = [node for node in walk((candidate.fragment,)) if node.op != "Placeholder"]
    costly = [node for node in nodes if node.op not in OPS or OPS[node.op].category not in CHEAP]
    if len(costly) != 1:
        return None
    below = set(walk(costly))
    moved = tuple(node.attributes for node in nodes if node.op == "Transpose" and node not in below)
    return candidate.implementation, _renumbered(costly[0]), moved


def _renumbered(root: Node) -> Node:
    """Return a part of a fragment as a fragment of its own: placeholders numbered by first use."""
    count = 0

    def change(old: Node, operands: tuple[Node, ...]) -> Node:
        nonlocal count
        if old.op != "Placeholder":
            return make(old.op, operands, old.attributes, old.type)
        count += 1
        return placeholder(count - 1, old.type, constant=bool(old.attribute("constant")))

    return rewrite((root,), change)[root]
