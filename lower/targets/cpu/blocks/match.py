"""Match products by weights of four or eight bits with scales in blocks, and offer them as tiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from egraph.tensor import ENode, Node
from lower.calls.call import Argument
from lower.candidates.tile import Tile, Tiling
from lower.views import Reason, Window, contiguous, lying

WEIGHT_BITS = (4, 8)
LEAST_LANES = 4
"""The least number of bytes of a block that vectors hold: blocks are whole vectors."""


@dataclass(frozen=True)
class BlocksCall:
    """A complete call: its operands, the bias last if there is one, and where the result is written."""

    arguments: tuple[Argument, ...]
    destination: Window
    bits: int
    has_bias: bool

    def spec(self) -> dict[str, object]:
        """Return the call as a plan step's recipe."""
        return {"function": "blocks_matmul", "integers": [self.bits, int(self.has_bias)]}


def match(fragment: Node, *, bases: Mapping[int, Window] | None = None, destination: Window | None = None) -> BlocksCall | Reason:
    """Return the call that computes ``fragment``, x W' or x W' + bias with W dequantised, or why there is none."""
    product, biases = fragment, tuple[Node, ...]()
    if fragment.op == "Add":
        product, *others = sorted(fragment.inputs, key=lambda node: node.op != "MatMul")
        biases = tuple(others)
        if any(bias.op != "Placeholder" or bias.type.sizes != fragment.type.sizes[-1:] for bias in biases):
            return "what is added is no operand with a number for each column"
    if product.op != "MatMul" or product.type.sizes != fragment.type.sizes:
        return f"{fragment.op} is no product"
    x, transposed = product.inputs
    if transposed.op != "Transpose" or transposed.integers("perm") != (1, 0) or transposed.inputs[0].op != "DequantizeBlocks":
        return "the weights are not dequantised by columns"
    weight = transposed.inputs[0]
    operands = (x, *weight.inputs, *biases)
    if any(operand.op != "Placeholder" for operand in operands):
        return "an operand is computed"
    if x.type.dtype != "float32" or weight.integer("bits") not in WEIGHT_BITS or weight.inputs[0].type.sizes[-1] % LEAST_LANES:
        return f"{x.type} by {weight.integer('bits')} bits in blocks of {weight.inputs[0].type.sizes[-1]} bytes"
    arguments = tuple(Argument("", operand.integer("index"), lying(bases)(operand)) for operand in operands)
    return BlocksCall(arguments, destination or contiguous(fragment.type.sizes), weight.integer("bits"), bool(biases))


def blocks_tiles(tiling: Tiling) -> Iterator[tuple[int, Tile]]:
    """Yield each product by weights that are dequantised in blocks, alone and with a bias."""
    for number, nodes in tiling.frozen.classes.items():
        for node in nodes:
            if node.op == "MatMul" and number not in tiling.leaves:
                for tile in _products(tiling, number, node):
                    yield number, tile
                    yield from _with_bias(tiling, number, tile) if tiling.fused else ()


def _products(tiling: Tiling, number: int, node: ENode) -> Iterator[Tile]:
    left, right = node.children
    for transpose in tiling.frozen.classes[right]:
        for weight in tiling.frozen.classes[transpose.children[0]] if transpose.op == "Transpose" else ():
            if weight.op == "DequantizeBlocks":
                transposed = tiling.build(right, transpose, [tiling.over_leaves(transpose.children[0], weight)])
                fragment = tiling.build(number, node, [tiling.leaf(left), transposed])
                tile = Tile(fragment, (node, transpose, weight), tiling.implementation("blocks.matmul"))
                if _fits(tiling, tile):
                    yield tile


def _with_bias(tiling: Tiling, number: int, tile: Tile) -> Iterator[tuple[int, Tile]]:
    for above in sorted(tiling.consumers[number] - tiling.leaves):
        for node in tiling.frozen.classes[above]:
            if node.op == "Add" and node.children.count(number) == 1:
                operands = [tile.fragment if child == number else tiling.leaf(child) for child in node.children]
                biased = Tile(tiling.build(above, node, operands), (node, *tile.covered), tile.implementation)
                if _fits(tiling, biased):
                    yield above, biased


def _fits(tiling: Tiling, tile: Tile) -> bool:
    return isinstance(match(tiling.canonical(tile.fragment)[0]), BlocksCall)
