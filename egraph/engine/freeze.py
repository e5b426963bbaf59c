"""Take the read-only picture of an e-graph: only what the roots can reach, numbered by first appearance."""

from __future__ import annotations

from collections.abc import Mapping

from egraph.engine.eclasses import EClasses
from egraph.tensor import ENode, FrozenEGraph, Node


def freeze(classes: EClasses, roots: tuple[int, ...], source: Mapping[Node, int]) -> FrozenEGraph:
    """Return the classes below ``roots``; e-nodes in the order in which they were made, the input program's first."""
    members: dict[int, list[tuple[str, int, tuple[int, ...], str]]] = {}
    for (op, label, operands), entry in classes.nodes.items():
        handle = classes.find(entry.handle)
        if handle not in operands:  # x = x + 0 says nothing about how to compute x
            members.setdefault(handle, []).append((op, label, operands, entry.rule))
    numbers: dict[int, int] = {}
    queue = [classes.find(root) for root in roots]
    for handle in queue:
        if handle not in numbers:
            numbers[handle] = len(numbers)
            queue += [operand for _, _, operands, _ in members[handle] for operand in operands if operand not in numbers]
    attributes = classes.labels.attributes
    frozen = {
        number: tuple(
            ENode(op, attributes(label), tuple(numbers[operand] for operand in operands), rule)
            for op, label, operands, rule in members[handle]
        )
        for handle, number in numbers.items()
    }
    sources: dict[int, Node] = {}
    for node, handle in source.items():
        number = numbers.get(classes.find(handle))
        if number is not None:
            sources.setdefault(number, node)
    return FrozenEGraph(
        classes=frozen,
        types={number: classes.types[handle] for handle, number in numbers.items()},
        roots=tuple(numbers[classes.find(root)] for root in roots),
        constants=frozenset(numbers[handle] for handle in classes.constants if handle in numbers),
        source=sources,
    )
