"""Tiles that launch nothing (views), and tiles that onnxruntime runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from egraph.ir import TUPLE, ENode, make
from lower.candidates.tile import LEAVES, Tile, Tiling
from lower.views import VIEWS, contiguous, through


def view_tiles(tiling: Tiling) -> Iterator[tuple[int, Tile]]:
    """Yield e-nodes whose result lies contiguously inside their operand: reshapes, slices of the outer axis."""
    for number, nodes in tiling.frozen.classes.items():
        for node in nodes:
            if node.op == "OpaqueOutput" or is_view(tiling, number, node):
                yield number, Tile(tiling.over_leaves(number, node), (node,), "view")


def is_view(tiling: Tiling, number: int, node: ENode) -> bool:
    """Return whether an e-node's result lies contiguously inside its operand."""
    types = tiling.frozen.types
    if node.op not in VIEWS or not types[number].is_static or not types[node.children[0]].is_static:
        return False
    window = through(tiling.over_leaves(number, node), contiguous(types[node.children[0]].sizes))
    return not isinstance(window, str) and window.is_contiguous and not window.repeats


def opaque_tiles(tiling: Tiling, covered: Callable[[int], frozenset[ENode]]) -> Iterator[tuple[int, Tile]]:
    """Yield opaque nodes, and every core e-node that nothing else runs alone: onnxruntime always can."""
    for number, nodes in tiling.frozen.classes.items():
        done = covered(number)
        for node in nodes:
            if node.op == "Opaque":
                fragment = make("Opaque", [tiling.leaf(child) for child in node.children], node.attributes, TUPLE)
                yield number, Tile(fragment, (node,), "opaque")
            elif node.op not in (*LEAVES, "OpaqueOutput") and node not in done:
                yield number, Tile(tiling.over_leaves(number, node), (node,), "opaque")
