"""Tiles for generated kernels: elementwise and movement trees, reductions with the operators before and after them.

Below each e-node the operands are inlined in a few ways: not at all; all the way down; all the way down, but reading across transposes
rather than repeating them; down to shared values; down to products; down to bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import accumulate
from operator import itemgetter, mul
from typing import TypeAlias

from egraph.tensor import Attributes, ENode, Implementation, Node
from egraph.tensor.expr.products import contracted_operations
from egraph.tensor.expr.scope import Scope, Tensor
from egraph.tensor.ops import OPS
from lower.candidates.tile import COSTLY, Tile, Tiling, contents
from lower.candidates.view_tiles import is_view

INLINED = ("elementwise", "view", "movement")
REDUCED = ("reduction", "normalization")
COMPARING = ("ArgMax", "ArgMin")
"""Operators that search for an element equal to the largest or least. Their operand is stored, so that it has the same bits at each
reading."""
Shapes: TypeAlias = tuple[tuple[int, ...], ...]
SHIFTED = ("Softmax", "LogSoftmax")
"""Operators that subtract the largest element from all. A kernel that computes both must round the operand the same way in every pass. Sums
do not: each pass adds in an order of its own, and exp turns the difference of two large sums into a factor. Products that are added to
something do not either: each pass decides whether the addition takes them unrounded."""


@dataclass(frozen=True)
class Style:
    """How far operands are inlined, and which e-node of an operand's class is preferred."""

    name: str
    across_transposes: bool = False
    stop_at_shared: bool = False
    stop_at_products: bool = False
    """Whether a value that a product computes stays an operand: its other e-nodes bypass the fast kernel."""
    stop_at_bytes: bool = False
    """Whether bytes stay operands: they take a quarter of the memory of the numbers that they were made from, and other kernels read
    them."""
    reductions: bool = False


STYLES = (
    Style("all"),
    Style("across transposes", across_transposes=True),
    Style("down to shared", stop_at_shared=True),
    Style("down to products", stop_at_products=True),
    Style("down to bytes", stop_at_bytes=True),
    Style("with reductions", reductions=True),
    Style("with reductions down to shared", stop_at_shared=True, reductions=True),
)


def eoperator_tiles(
    tiling: Tiling, supports: Callable[[Node], str | None], implementation: Implementation
) -> Iterator[tuple[int, Tile]]:
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
        variants: dict[frozenset[int], list[tuple[tuple[int, int], Tile]]] = {}
        for node in nodes:
            spec = OPS.get(node.op)
            if spec is None or is_view(tiling, number, node):
                continue  # a view is free, and so is a view of the kernel that computes its operand
            if not _is_root(tiling, number, node):
                continue
            for tile in _variants(tiling, orders, number, node, implementation):
                inside = contents(tile.fragment)
                variants.setdefault(inside.tensors, []).append(((inside.costly, inside.operators), tile))
        # Among tiles that read the same tensors only the shortest without powers is kept, because constants cost nothing.
        for tensors in sorted(variants, key=lambda t: (sum(tiling.size_bytes[i] for i in t), sorted(t)))[: tiling.policy.operand_sets]:
            for _, tile in sorted(variants[tensors], key=itemgetter(0)):
                if is_supported(tile.fragment):
                    yield number, tile
                    break


def _is_root(tiling: Tiling, number: int, node: ENode) -> bool:
    """Return whether a kernel may end in an e-node: it may if memory bounds the e-node."""
    spec = OPS[node.op]
    if node.op == "Expression":
        return _is_light(tiling, number, node)
    if node.op == "Conv":
        return _is_narrow(tiling, number, node)
    return spec.category in INLINED + REDUCED or (
        spec.category == "contraction" and "strides" not in spec.attributes and _is_light(tiling, number, node)
    )


def _is_narrow(tiling: Tiling, number: int, node: ENode) -> bool:
    """Return whether a convolution gets generated loops: it has one channel a group, or is bound by memory.

    Other windows are left to the library, which reads them once. For narrow ones the library often has only a fallback, which copies every
    window and multiplies matrices of one column. A convolution of one tap is a product.
    """
    if node.op != "Conv":
        return False
    weight = tiling.frozen.types[node.children[1]]
    is_windowed = weight.is_static and any(size > 1 for size in weight.sizes[2:])
    return is_windowed and tiling.frozen.types[number].is_static and (weight.sizes[1] == 1 or _is_light(tiling, number, node))


def _is_light(tiling: Tiling, number: int, node: ENode) -> bool:
    """Return whether an e-node computes so little for what it reads that memory bounds it.

    A row times a matrix of its own (banded attention) is light, and so is a sum over tables, which are applied one by one.
    """
    types = [tiling.frozen.types[child] for child in node.children]
    if not all(type.is_static for type in types):
        return False
    moved = sum(tiling.size_bytes[each] for each in {number, *node.children})
    operations = _operations(node.op, node.attributes, tuple(type.sizes for type in types))
    return operations is not None and operations <= tiling.policy.operations_a_byte * moved


@lru_cache(maxsize=1 << 12)
def _operations(op: str, attributes: Attributes, shapes: Shapes) -> float | None:
    shared = contracted_operations(_scope(attributes, shapes)) if op == "Expression" else None
    flops = OPS[op].flops
    return shared if shared is not None or flops is None else float(flops(shapes, dict(attributes)))


@lru_cache(maxsize=1 << 12)
def _scope(attributes: Attributes, shapes: Shapes) -> Scope:
    return OPS["Expression"].meaning([Tensor(str(k), shape) for k, shape in enumerate(shapes)], dict(attributes))


def _variants(tiling: Tiling, orders: _Orders, number: int, node: ENode, implementation: Implementation) -> Iterator[Tile]:
    yield Tile(tiling.over_leaves(number, node), (node,), implementation)
    if node.op == "Conv" or node.op in COMPARING:
        return  # inlined operands would be computed again for each window, or be compared with another last bit
    expanded: set[int] | None = None
    for style in STYLES if tiling.fused else ():
        if expanded is not None and not any(orders.is_inlined_differently(each, style) for each in expanded):
            continue  # this style would give the same tile as the first
        growth = _Growth(tiling, style, orders, path={number}, shifted=int(node.op in SHIFTED), is_shift=node.op in SHIFTED)
        operands = []
        for position, child in enumerate(node.children):
            growth.most_sums = _most_sums(tiling, node, position)
            operands.append(growth.operand(child, once=growth.reads_once(number, node, child)))
        expanded = set(growth.done) if expanded is None else expanded
        yield Tile(tiling.build(number, node, operands), (node, *dict.fromkeys(growth.covered)), implementation)


def _most_sums(tiling: Tiling, node: ENode, position: int) -> float:
    """Return how many sums below an operand are computed once: one a row (column) of a product, none below windows, else all.

    Sums that differ along the axis that a product adds over would be computed again for each of its columns (rows).
    """
    if _reads_windows(node):
        return 0.0
    if OPS[node.op].category != "contraction":
        return math.inf
    left, right = (tiling.frozen.types[child].sizes for child in node.children)
    if (right[-1] if position == 0 else left[-2]) == 1:
        return math.inf
    return math.prod((left, right)[position]) // left[-1]


def _reads_windows(node: ENode) -> bool:
    """Return whether each result reads several places that others read too, some of them outside: a pool, an interpolation.

    Which mean or maximum such a place belongs to varies within a loop, so each tap would compute its own.
    """
    return "kernel_shape" in OPS[node.op].attributes or (node.op == "Resize" and dict(node.attributes)["mode"] != "nearest")


def _sums(node: ENode, sizes: tuple[int, ...]) -> int:
    """Return how many sums (or maxima) a reduction or normalisation computes; ``sizes`` are its result's."""
    if OPS[node.op].category == "reduction":
        return math.prod(sizes)
    axis = dict(node.attributes).get("axis")
    if node.op == "LayerNormalization" and isinstance(axis, int):
        return math.prod(sizes[: axis % len(sizes)])
    if node.op in SHIFTED and isinstance(axis, int):
        return math.prod(sizes) // sizes[axis]
    return math.prod(sizes[:2])


class _Orders:
    """The e-nodes of a class that may be inlined, in order of preference; computed once a class and kind of style."""

    def __init__(self, tiling: Tiling) -> None:
        self._tiling = tiling
        self._known: dict[tuple[int, bool, bool, bool], list[ENode]] = {}
        self._products: dict[int, bool] = {}
        self._inlined_differently: dict[str, dict[int, bool]] = {style.name: {} for style in STYLES}

    def of(self, number: int, style: Style) -> list[ENode]:
        """Return e-nodes that compute before those that move (but for transposes that the style crosses), then by the bytes read.

        Constants are not counted. If the style stops at products, e-nodes that read one come first.
        """
        key = (number, style.across_transposes, style.reductions, style.stop_at_products)
        if key not in self._known:
            options = [node for node in self._tiling.frozen.classes[number] if _may_inline(node, style)]
            self._known[key] = sorted(options, key=partial(self._rank, style))
        return self._known[key]

    def is_inlined_differently(self, number: int, style: Style) -> bool:
        """Return whether a style inlines a class in another way than the first style does."""
        differing = self._inlined_differently[style.name]
        if number not in differing:
            differing[number] = self._differs(number, style)
        return differing[number]

    def _differs(self, number: int, style: Style) -> bool:
        nodes = self._tiling.frozen.classes[number]
        if style.stop_at_products:
            return self.holds_product(number) or any(self.holds_product(child) for node in nodes for child in node.children)
        if style.stop_at_bytes:
            return self._tiling.holds_bytes(number)
        if style.stop_at_shared:
            return self._tiling.is_shared(number)
        return [*map(id, self.of(number, style))] != [*map(id, self.of(number, STYLES[0]))]

    def holds_product(self, number: int) -> bool:
        """Return whether the class has a contraction or an expression."""
        if number not in self._products:
            nodes = self._tiling.frozen.classes[number]
            self._products[number] = any(n.op == "Expression" or (n.op in OPS and OPS[n.op].category == "contraction") for n in nodes)
        return self._products[number]

    def _rank(self, style: Style, node: ENode) -> tuple[bool, bool, int, bool, bool, int]:
        constants = self._tiling.frozen.constants
        size = sum(self._tiling.size_bytes[child] for child in dict.fromkeys(node.children) if child not in constants)
        crossed = node.op == "Transpose" and style.across_transposes
        moves = OPS[node.op].category == "movement" and not crossed
        passes = style.stop_at_products and not any(map(self.holds_product, node.children))
        return passes, moves, size, not crossed and style.across_transposes, node.op in COSTLY, len(node.children)


def _may_inline(node: ENode, style: Style) -> bool:
    spec = OPS.get(node.op)
    if spec is None:
        return False
    # Overlapping windows would be reduced again and again; whole axes and rows are reduced once.
    reduces_whole_axes = spec.category == "normalization" or (spec.category == "reduction" and spec.attributes == ("axes",))
    return spec.category in INLINED or node.op in ("Expression", "Conv") or (style.reductions and reduces_whole_axes)


@dataclass
class _Growth:
    """One inlining from a root: in the whole tile, every class is inlined by one e-node or stays an operand."""

    tiling: Tiling
    style: Style
    orders: _Orders
    path: set[int]
    shifted: int
    """The number of operators of ``SHIFTED`` above."""
    is_shift: bool
    """Whether the root is one of these: it keeps its exponentials, so that their quotients by their sum are right however they round."""
    covered: list[ENode] = field(default_factory=list)
    done: dict[int, Node] = field(default_factory=dict)
    most_sums: float = math.inf
    """The number of sums that the generated loops compute only once."""
    cut: tuple[int, ...] = ()
    """The sizes that a reshape above gives the axes here; empty if an operator between moves them."""

    def operand(self, number: int, *, once: bool) -> Node:
        """Return an operand as a fragment; ``once``: each of its elements is read for one element of the result."""
        if number not in self.done:
            self.done[number] = self._inline(number, once=once)
        return self.done[number]

    def reads_once(self, number: int, node: ENode, child: int) -> bool:
        """Return whether an e-node reads each element of an operand for one element of its result, in the same order."""
        types = self.tiling.frozen.types
        return OPS[node.op].category == "elementwise" and types[number].shape == types[child].shape

    def _inline(self, number: int, *, once: bool) -> Node:
        leaf = self.tiling.leaf(number)
        if number in self.tiling.stops or number in self.path or len(self.covered) >= self.tiling.policy.operators:
            return leaf
        if self.style.stop_at_shared and self.tiling.is_shared(number):
            return leaf
        if self.style.stop_at_products and self.orders.holds_product(number):
            return leaf
        if self.style.stop_at_bytes and self.tiling.holds_bytes(number):
            return leaf
        node = next((node for node in self.orders.of(number, self.style) if self._fits(number, node, once=once)), None)
        if node is None:
            return leaf
        self.covered.append(node)
        self.path.add(number)
        self.shifted += node.op in SHIFTED
        if node.op == "Conv":
            operands = [self.tiling.leaf(child) for child in node.children]  # inlined ones would be computed again for each window
        else:
            above = self.most_sums, self.cut
            if _reads_windows(node):
                self.most_sums = 0.0
            if node.op == "Reshape":
                self.cut = self.tiling.frozen.types[number].sizes
            elif OPS[node.op].category != "elementwise":
                self.cut = ()
            operands = [self.operand(child, once=once and self.reads_once(number, node, child)) for child in node.children]
            self.most_sums, self.cut = above
        self.shifted -= node.op in SHIFTED
        self.path.discard(number)
        return self.tiling.build(number, node, operands)

    def _is_cut(self, number: int, node: ENode) -> bool:
        """Return whether a reshape above leaves no loop over a normalisation's rows, so that each element would compute its row's sums."""
        sizes = self.tiling.frozen.types[number].sizes
        if not self.cut or OPS[node.op].category != "normalization":
            return False
        if node.op in SHIFTED and dict(node.attributes)["axis"] != len(sizes) - 1:
            return False
        return _sums(node, sizes) not in accumulate(self.cut, mul, initial=1)

    def _fits(self, number: int, node: ENode, *, once: bool) -> bool:
        if not self.path.isdisjoint(node.children):
            return False
        if OPS[node.op].category in REDUCED and _sums(node, self.tiling.frozen.types[number].sizes) > self.most_sums:
            return False
        if self._is_cut(number, node):
            return False
        if not self.most_sums and _reads_windows(node):
            return False  # windows below would be computed again for each tap: two linear interpolations take sixteen terms an element
        if self.shifted and (OPS[node.op].category in REDUCED or (node.op == "Mul" and not self.is_shift)):
            return False
        if node.op == "Conv":
            return once and _is_narrow(self.tiling, number, node)
        if node.op != "Expression":
            return True
        shapes = tuple(self.tiling.frozen.types[child].sizes for child in node.children)
        # A sum is computed where it is read: it must be short, and read once.
        return not _scope(node.attributes, shapes).summation or (once and _is_light(self.tiling, number, node))
