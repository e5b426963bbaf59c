"""Operators of a program that one operator can compute together, and the programs that do so.

Members of a group are on one level (the longest path from the leaves; constants are on the lowest), so that none depends on another.
Merges that other rules find (operators of one input, of one window) are not offered.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence

from egraph.derive.derivation import GroupRule
from egraph.derive.matching.merging import along_batch, beside, group_signature, merged_correlations, merged_expressions, stacked
from egraph.tensor import Node

LARGEST_GROUP = 32
"""The most members that one operator computes, which bounds its operands and its compile time."""


def groups(rule: GroupRule, nodes: Iterable[Node], constants: Container[Node]) -> Iterator[tuple[Node, ...]]:
    """Yield the groups of nodes (operands before their users) that a rule may compute by one operator, in program order."""
    depth: dict[Node, int] = {}
    members_by_key: dict[tuple[int, object], list[Node]] = {}
    for node in nodes:
        depth[node] = 0 if node in constants else 1 + max((depth[operand] for operand in node.inputs), default=0)
        if node.op in rule.operators and depth[node] and all(n.type.is_static for n in (node, *node.inputs)):
            key = rule.key(node)
            if key is not None:
                members_by_key.setdefault((depth[node], key), []).append(node)
    for together in members_by_key.values():
        members = tuple(rule.choose(together))
        for start in range(0, len(members) - 1, LARGEST_GROUP):
            yield members[start : start + LARGEST_GROUP]


def _apart(nodes: Sequence[Node]) -> Sequence[Node]:
    """Keep the operators that share no operand; for the others, wider operators or larger batches are better."""
    return [n for n in nodes if not any(a is b for o in nodes if o is not n for a, b in zip(n.inputs, o.inputs, strict=True))]


def _of_windows(nodes: Sequence[Node]) -> Sequence[Node]:
    """Keep the operators unless all their windows are equal: those are one convolution with all filters."""
    return nodes if len({(node.inputs[1].type.sizes[1:], node.attributes) for node in nodes}) > 1 else ()


def _types(node: Node) -> object:
    return tuple(str(operand.type) for operand in node.inputs)


def _meaning(node: Node) -> object:
    """Return a key that is equal for nodes that differ only in the tensors they read, and may be merged as expressions."""
    return node.op, _types(node), node.attributes


def _weights(node: Node) -> object:
    """Return all operands but the first, with the operator and its attributes; None for products whose batches are not the rows."""
    data, weight = (operand.type for operand in node.inputs)
    if node.op == "MatMul" and (weight.rank != 2 or data.rank < 2):
        return None
    return node.op, data.sizes[1:], data.dtype, node.inputs[1].digest, node.attributes


def _grouped(node: Node) -> object:
    same = node.inputs[0].digest, node.inputs[1].type.sizes[1:], node.attributes
    return None if node.attribute("group") == 1 else same


def _windowed(node: Node) -> object:
    """Group ungrouped convolutions of one input that have a window: without a window they are products already."""
    plain = node.attribute("group") == 1 and set(node.inputs[1].type.sizes[2:]) != {1}
    return (node.inputs[0].digest, node.attribute("layout")) if plain else None


RULES: tuple[GroupRule, ...] = (
    GroupRule("merge_batches", ("MatMul", "Conv"), _weights, along_batch),
    GroupRule("stack_matmuls", ("MatMul",), _types, stacked, _apart),
    GroupRule("stack_convs", ("Conv",), group_signature, stacked, _apart),
    GroupRule("merge_grouped_convs", ("Conv",), _grouped, beside),
    GroupRule("merge_expressions", ("ConvTranspose", "Expression"), _meaning, merged_expressions),
    GroupRule("merge_conv_taps", ("Conv",), _windowed, merged_correlations, _of_windows),
)
"""Operators of different inputs are merged into a larger batch if they share weights, else they are batched or grouped.
Operators of one input are merged by groups or windows.

Merging by meaning covers the operators that no other rule covers.
"""
