"""Signed bytes that are only moved between a Quantize and a Dequantize, read as unsigned ones: value and zero point 128 greater.

(b - z) * s is the same for both, and both saturate at the same numbers. Zero points of -128, which quantisers choose for values that are
never negative, become 0: then nothing is subtracted, and padding is 0. Libraries have their best kernels for unsigned activations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from egraph.onnx.types import array_type, tensor_digest
from egraph.tensor import Graph, Node, TensorType, attributes, make, rewrite, walk

SIGN = 128
"""The difference between unsigned bytes and the signed bytes of the same order."""
MOVES: Mapping[str, int | None] = {
    **dict.fromkeys(("Reshape", "Transpose", "Slice", "Expand", "Gather", "Pad", "MaxPool"), 1), "Concat": None,
}  # fmt: skip
"""Operators that move bytes or choose among them by their order, with the number of operands that hold these bytes (None: all)."""
SCALES = ("Quantize", "Dequantize")
"""Operators whose last operand is the zero point."""


def as_unsigned(data: np.ndarray) -> np.ndarray:
    """Return signed bytes as unsigned ones, 128 greater."""
    return np.asarray(data.astype(np.int16) + SIGN, np.uint8)


def with_unsigned_bytes(graph: Graph) -> Graph:
    """Return the graph with every signed byte that stays between Quantize and Dequantize read as an unsigned one."""
    nodes = list(walk(graph.roots))
    chosen = _between_scales(nodes, set(graph.roots))
    if not chosen:
        return graph
    tensors = dict(graph.tensors)
    origins = dict(graph.origins)

    def shifted(constant: Node) -> Node:
        data = as_unsigned(graph.tensors[constant.string("digest")])
        digest = tensor_digest(data)
        tensors.setdefault(digest, data)
        node = make("Constant", (), attributes(digest=digest), array_type(data))
        if constant in graph.origins:
            origins.setdefault(node, graph.origins[constant])
        return node

    def change(old: Node, operands: tuple[Node, ...]) -> Node:
        if old not in chosen and not (old.op == "Dequantize" and old.inputs[0] in chosen):
            return make(old.op, operands, old.attributes, old.type)
        parts = _bytes_of(old) if old in chosen else old.inputs[:1]
        parts = (*parts, old.inputs[2]) if old.op in SCALES else parts
        operands = tuple(
            shifted(before) if before in parts and before.op == "Constant" else after
            for before, after in zip(old.inputs, operands, strict=True)
        )
        values = dict(old.attributes)
        if old.op == "Pad" and old.string("mode") == "constant":
            values["value"] = old.real("value") + SIGN
        dtype = "uint8" if old in chosen else old.type.dtype
        return make(old.op, operands, attributes(**values), TensorType(dtype, old.type.shape))

    new = rewrite(graph.roots, change)
    used = {node.string("digest") for node in walk(new[root] for root in graph.roots) if node.op == "Constant"}
    return replace(
        graph,
        outputs=tuple((name, new[node]) for name, node in graph.outputs),
        tensors={digest: data for digest, data in tensors.items() if digest in used},
        origins={new.get(node, node): names for node, names in origins.items()},
        names={new[node]: name for node, name in graph.names.items() if node in new},
    )


def _bytes_of(node: Node) -> tuple[Node, ...]:
    """Return the operands whose bytes a chosen node moves."""
    return node.inputs[: MOVES[node.op]] if node.op in MOVES else ()


def _between_scales(nodes: list[Node], roots: set[Node]) -> set[Node]:
    """Return the signed bytes that come from quantisers, go to dequantisers alone, and may be unsigned in all uses."""
    signed = {node for node in nodes if node.type.dtype == "int8" and node.op != "Constant" and node not in roots}
    chosen = {node for node in signed if node.op in MOVES or (node.op == "Quantize" and node.inputs[2].op == "Constant")}
    users: dict[Node, list[Node]] = defaultdict(list)
    for node in nodes:
        for operand in node.inputs:
            users[operand].append(node)
    refused = [node for node in signed if node not in chosen or not all(_takes(user, node, users) for user in users[node])]
    refused += [node for node in chosen if any(_is_signed(part) and part not in chosen for part in _bytes_of(node))]
    while refused:
        node = refused.pop()
        if node in chosen:
            chosen.remove(node)
            refused += [near for near in (*users[node], *_bytes_of(node)) if near in chosen]
    return chosen


def _is_signed(node: Node) -> bool:
    return node.type.dtype == "int8" and node.op != "Constant"


def _takes(user: Node, node: Node, users: Mapping[Node, list[Node]]) -> bool:
    """Return whether an operator may read unsigned bytes instead of a node's signed ones."""
    if user.op in MOVES:
        return all(operand is not node for operand in user.inputs[len(_bytes_of(user)) :])
    if user.op != "Dequantize" or user.inputs[2].op != "Constant" or user.inputs[0] is not node:
        return False
    return not _is_multiplied_by(user, users)


def _is_multiplied_by(node: Node, users: Mapping[Node, list[Node]]) -> bool:
    """Return whether numbers are moved to the second operand of a product, for which libraries accept only signed bytes."""
    stack, seen = [node], {node}
    while stack:
        below = stack.pop()
        for user in users[below]:
            if user.op in ("MatMul", "Conv") and user.inputs[1] is below:
                return True
            if user.op in MOVES and user not in seen:
                seen.add(user)
                stack.append(user)
    return False
