"""Tiles that launch nothing (views), and tiles that onnxruntime runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from egraph.tensor import LEAVES, OPAQUE, TUPLE, VIEW, ENode, Node, make
from lower.candidates.tile import Tile, Tiling
from lower.views import VIEWS, contiguous, through

VIEWS_ABOVE = 3
"""Transposes and reshapes above a kernel that its tiles take in, at most."""


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


def tiles_above(tiling: Tiling, tiles: Mapping[int, Sequence[Tile]], fits: Callable[[Node], bool], most: int) -> Iterator[tuple[int, Tile]]:
    """Yield what transposes and reshapes make of tiles, at most ``most`` of a class, if the kernel ``fits`` the new fragment.

    A reshape yields nothing: a view of the tile below it computes the same for free.
    """
    for _ in range(VIEWS_ABOVE if tiling.fused else 0):
        grown: dict[int, list[Tile]] = {}
        for number in sorted({above for below in tiles for above in tiling.consumers[below]} - tiling.leaves):
            for node in tiling.frozen.classes[number]:
                for tile in tiles.get(node.children[0], ()) if node.op in ("Reshape", "Transpose") else ():
                    higher = Tile(tiling.build(number, node, [tile.fragment]), (node, *tile.covered), tile.implementation)
                    if len(grown.get(number, ())) < most and fits(tiling.canonical(higher.fragment)[0]):
                        grown.setdefault(number, []).append(higher)
                        if node.op == "Transpose":
                            yield number, higher
        tiles = grown


def opaque_tiles(tiling: Tiling, computed_from: Mapping[int, Sequence[frozenset[int]]]) -> Iterator[tuple[int, Tile]]:
    """Yield opaque nodes, and the input program's own e-nodes, which onnxruntime can always compute.

    The latter are spare if another kernel computes the class from their operands: that kernel may prove wrong, or fail. E-nodes that rules
    made are left to onnxruntime only if nothing else computes their class. An expression belongs to a derived program, and its class also
    has the operator, so an expression without a kernel is skipped.

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
