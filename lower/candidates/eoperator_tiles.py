"""Tiles for generated kernels: elementwise and movement trees, reductions with what stands before and after them.

Below each e-node the operands are inlined in a few ways: not at all; all the way down; all the way down, but reading
across transposes rather than repeating them; down to values that others need as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from egraph.ir import ENode, Node
from egraph.ops import OPS
from lower.candidates.tile import Tile, Tiling, contents
from lower.candidates.view_tiles import is_view

INLINED = ("elementwise", "view", "movement")
REDUCED = ("reduction", "normalization")
LARGEST = 24
"""Operators in one tile, at most."""
BEAM = 8
"""Sets of tensors to compute one class from, at most: those with the fewest bytes."""
INTENSITY = 4.0
"""Operations a byte of operands and result up to which a product is bound by memory (the threshold of EinNet, OSDI 2023)."""


@dataclass(frozen=True)
class Style:
    """How far operands are inlined, and which e-node of an operand's class is preferred."""

    name: str
    across_transposes: bool = False
    stop_at_shared: bool = False
    reductions: bool = False


STYLES = (
    Style("all"),
    Style("across transposes", across_transposes=True),
    Style("down to shared", stop_at_shared=True),
    Style("with reductions", reductions=True),
)


def eoperator_tiles(tiling: Tiling, supports: Callable[[Node], str | None]) -> Iterator[tuple[int, Tile]]:
    """Yield the tiles that the generator supports, the smallest of each e-node first."""
    verdicts: dict[Node, bool] = {}

    def is_supported(fragment: Node) -> bool:
        canonical, _ = tiling.canonical(fragment)
        if canonical not in verdicts:
            verdicts[canonical] = supports(canonical) is None
        return verdicts[canonical]

    orders = _Orders(tiling)
    for number, nodes in tiling.frozen.classes.items():
        if number in tiling.leaves:
            continue
        variants: dict[frozenset[int], list[tuple[int, Tile]]] = {}
        for node in nodes:
            spec = OPS.get(node.op)
            if spec is None or is_view(tiling, number, node):
                continue  # a view is free, and so is a view of the kernel that computes its operand
            if spec.category not in INLINED + REDUCED and not _is_light_product(tiling, number, node):
                continue
            for tile in _variants(tiling, orders, number, node):
                length, tensors = contents(tile.fragment)
                variants.setdefault(tensors, []).append((length, tile))
        # Of the tiles that read the same tensors only the shortest is worth having: constants cost nothing.
        for tensors in sorted(variants, key=lambda t: (sum(tiling.size_bytes[i] for i in t), sorted(t)))[:BEAM]:
            for _, tile in sorted(variants[tensors], key=lambda pair: pair[0]):
                if is_supported(tile.fragment):
                    yield number, tile
                    break


def _is_light_product(tiling: Tiling, number: int, node: ENode) -> bool:
    """Return whether an e-node multiplies so little for what it reads that making its operands in place beats a library call.

    A row times a matrix of its own (banded attention) is; sliding windows are left to the library, which reads them once."""
    spec = OPS[node.op]
    if spec.category != "contraction" or spec.flops is None or "strides" in spec.attributes:
        return False
    types = [tiling.frozen.types[child] for child in node.children]
    if not all(type.is_static for type in types):
        return False
    moved = sum(tiling.size_bytes[each] for each in {number, *node.children})
    return spec.flops([type.sizes for type in types], dict(node.attributes)) <= INTENSITY * moved


def _variants(tiling: Tiling, orders: _Orders, number: int, node: ENode) -> Iterator[Tile]:
    yield Tile(tiling.over_leaves(number, node), (node,), "tvm")
    for style in STYLES if tiling.fused else ():
        growth = _Growth(tiling, style, orders, path={number})
        operands = [growth.operand(child) for child in node.children]
        yield Tile(tiling.build(number, node, operands), (node, *dict.fromkeys(growth.covered)), "tvm")


class _Orders:
    """The e-nodes of a class that may be inlined, the preferred first; worked out once a class and kind of style."""

    def __init__(self, tiling: Tiling) -> None:
        self._tiling = tiling
        self._known: dict[tuple[int, bool, bool], list[ENode]] = {}

    def of(self, number: int, style: Style) -> list[ENode]:
        """Prefer what reads the fewest bytes; between equals, go across or around transposes as the style says."""
        key = (number, style.across_transposes, style.reductions)
        if key not in self._known:
            options = [node for node in self._tiling.frozen.classes[number] if _may_inline(node, style)]
            self._known[key] = sorted(options, key=partial(self._rank, style))
        return self._known[key]

    def _rank(self, style: Style, node: ENode) -> tuple[int, bool, int]:
        size = sum(self._tiling.size_bytes[child] for child in dict.fromkeys(node.children))
        return size, (node.op == "Transpose") != style.across_transposes, len(node.children)


def _may_inline(node: ENode, style: Style) -> bool:
    spec = OPS.get(node.op)
    if spec is None:
        return False
    # Overlapping windows would be reduced again and again; whole axes and rows are reduced once.
    whole = spec.category == "normalization" or (spec.category == "reduction" and spec.attributes == ("axes",))
    return spec.category in INLINED or (style.reductions and whole)


@dataclass
class _Growth:
    """One inlining from a root; every class is inlined by one e-node or stays an operand, in the whole tile."""

    tiling: Tiling
    style: Style
    orders: _Orders
    path: set[int]
    covered: list[ENode] = field(default_factory=list)
    done: dict[int, Node] = field(default_factory=dict)

    def operand(self, number: int) -> Node:
        if number not in self.done:
            self.done[number] = self._inline(number)
        return self.done[number]

    def _inline(self, number: int) -> Node:
        leaf = self.tiling.leaf(number)
        if number in self.tiling.leaves or number in self.path or len(self.covered) >= LARGEST:
            return leaf
        if self.style.stop_at_shared and self.tiling.is_shared(number):
            return leaf
        node = next((node for node in self.orders.of(number, self.style) if self.path.isdisjoint(node.children)), None)
        if node is None:
            return leaf
        self.covered.append(node)
        self.path.add(number)
        operands = [self.operand(child) for child in node.children]
        self.path.discard(number)
        return self.tiling.build(number, node, operands)
