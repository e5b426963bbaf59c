"""Operators of a program that can be computed by one, and the programs that do it.

Members of a group stand on one level (the longest way from the leaves, what is constant on the lowest), so that none depends
on another. What merge rules do already (operators of one input, of one window) is not offered.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence

from egraph.derive.derivation import GroupRule
from egraph.derive.matching.merging import along_batch, beside, group_signature, merged_correlations, merged_expressions, stacked
from egraph.tensor import Node

LARGEST_GROUP = 32
"""The most members that one operator computes, which bounds its operands and its compile time."""


def groups(rule: GroupRule, nodes: Iterable[Node], constants: Container[Node]) -> Iterator[tuple[Node, ...]]:
    """Yield the groups of a program's nodes (operands before their users) that a rule may compute by one, in their order."""
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
    """Keep those that share no operand: wide operators, or larger batches, are for the others."""
    return [n for n in nodes if not any(a is b for o in nodes if o is not n for a, b in zip(n.inputs, o.inputs, strict=True))]


def _of_windows(nodes: Sequence[Node]) -> Sequence[Node]:
    """Keep all but where the windows are the same: those are one convolution with all filters."""
    return nodes if len({(node.inputs[1].type.sizes[1:], node.attributes) for node in nodes}) > 1 else ()


def _types(node: Node) -> object:
    return tuple(str(operand.type) for operand in node.inputs)


def _meaning(node: Node) -> object:
    """Return what nodes share that differ in the tensors they read alone, and may be merged as expressions."""
    return node.op, _types(node), node.attributes


def _weights(node: Node) -> object:
    """Return the operands but the first, and what the operator is besides: None for products whose batches are not the rows."""
    data, weight = (operand.type for operand in node.inputs)
    if node.op == "MatMul" and (weight.rank != 2 or data.rank < 2):
        return None
    return node.op, data.sizes[1:], data.dtype, node.inputs[1].digest, node.attributes


def _grouped(node: Node) -> object:
    same = node.inputs[0].digest, node.inputs[1].type.sizes[1:], node.attributes
    return None if node.attribute("group") == 1 else same


def _windowed(node: Node) -> object:
    """Group convolutions of one input, ungrouped and with a window: without one it is a product already."""
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
"""Of different inputs: with the same weights as one of a larger batch, else batched or grouped. Of one input: groups, windows.

What no other rule covers is merged by its meaning.
"""
