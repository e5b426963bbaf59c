"""Tiles that launch nothing (views), and tiles that onnxruntime runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from egraph.tensor import LEAVES, OPAQUE, TUPLE, VIEW, ENode, make
from lower.candidates.tile import Tile, Tiling
from lower.views import VIEWS, contiguous, through


def view_tiles(tiling: Tiling) -> Iterator[tuple[int, Tile]]:
    """Yield e-nodes whose result lies contiguously inside their operand: reshapes, slices of the outer axis."""
    for number, nodes in tiling.frozen.classes.items():
        for node in nodes:
            if node.op == "OpaqueOutput" or is_view(tiling, number, node):
                yield number, Tile(tiling.over_leaves(number, node), (node,), VIEW)


def is_view(tiling: Tiling, number: int, node: ENode) -> bool:
    """Return whether an e-node's result lies contiguously inside its operand."""
    types = tiling.frozen.types
    if node.op not in VIEWS or not types[number].is_static or not types[node.children[0]].is_static:
        return False
    window = through(tiling.over_leaves(number, node), contiguous(types[node.children[0]].sizes))
    return not isinstance(window, str) and window.is_contiguous and not window.repeats


def opaque_tiles(tiling: Tiling, computed_from: Mapping[int, Sequence[frozenset[int]]]) -> Iterator[tuple[int, Tile]]:
    """Yield opaque nodes, and the input program's own e-nodes: onnxruntime always can compute them.

    These are spare where something else computes the class from their operands: its kernel may prove wrong, or fail. E-nodes that
    rules made are left to onnxruntime only where nothing else computes their class at all.
    An expression is part of a derived program, beside which the class has its operator: without a kernel it is not worth having.

    ``computed_from``: for every class, the tensors that each of its other tiles reads.
    """
    for number, nodes in tiling.frozen.classes.items():
        if number in tiling.leaves:
            continue
        done = computed_from.get(number, ())
        for node in nodes:
            if node.op == "Opaque":
                fragment = make("Opaque", [tiling.leaf(child) for child in node.children], node.attributes, TUPLE)
                yield number, Tile(fragment, (node,), OPAQUE)
            elif node.op not in (*LEAVES, "OpaqueOutput", "Expression"):
                is_spare = any(tensors <= set(node.children) for tensors in done)
                if not node.rule or not done:
                    yield number, Tile(tiling.over_leaves(number, node), (node,), OPAQUE, is_spare)
