"""Estimate the cost of a program before anything is measured: arithmetic, memory traffic, and idle lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from egraph.derive.bilinear.convolutions import saving
from egraph.derive.trees import BALANCE
from egraph.tensor import Node, walk
from egraph.tensor.ops import OPS

LANES = 16
"""Output channels that a convolution computes side by side, needed or not: 32 to 3 channels at 224x224 take as long as 32 to 16."""


def estimate(*programs: Node) -> int:
    """Return the cost of all programs together, in operations: arithmetic, and 4 operations for every byte moved; constants are free."""
    return _estimate(programs, _arithmetic)


def attainable(program: Node) -> int:
    """Return the cost of a program if its convolutions need only the multiplications of the best fast algorithms."""
    return _estimate((program,), lambda node: round(_arithmetic(node) / saving(node)))


def _estimate(programs: Sequence[Node], arithmetic: Callable[[Node], int]) -> int:
    total = 0
    constant: dict[Node, bool] = {}
    for node in walk(programs):
        if node.op == "Placeholder":
            constant[node] = bool(node.attribute("constant"))
            continue
        constant[node] = all(constant[i] for i in node.inputs)
        if not constant[node] and OPS[node.op].category != "view":
            total += BALANCE * (node.type.size_bytes + sum(i.type.size_bytes for i in node.inputs)) + arithmetic(node)
    return total


def _arithmetic(node: Node) -> int:
    flops = OPS[node.op].flops
    operations = flops([i.type.sizes for i in node.inputs], dict(node.attributes)) if flops else 0
    if node.op not in ("Conv", "ConvTranspose"):
        return operations
    group = node.integer("group")
    outputs = node.type.sizes[1 if node.attribute("layout") == "NCHW" else -1]
    together = outputs if outputs == group else outputs // group  # in groups of one channel, the groups are computed side by side
    return operations * (-(-together // LANES) * LANES) // together
