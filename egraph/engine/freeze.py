"""Take the read-only picture of an e-graph: only what the roots can reach, numbered by first appearance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from egraph.engine.eclasses import EClasses, Entry, Key
from egraph.tensor import ENode, FrozenEGraph, Node


def freeze(classes: EClasses, graph_roots: Sequence[Node], source: Mapping[Node, int]) -> FrozenEGraph:
    """Return the classes below the roots; e-nodes in the order in which they were made, the input program's first."""
    roots = [source[root] for root in graph_roots]
    members: dict[int, list[tuple[Key, Entry]]] = {}
    for key, entry in classes.nodes.items():
        handle = classes.find(entry.handle)
        if handle not in key[2]:  # x = x + 0 says nothing about how to compute x
            members.setdefault(handle, []).append((key, entry))
    numbers: dict[int, int] = {}
    queue = [classes.find(root) for root in roots]
    for handle in queue:
        if handle not in numbers:
            numbers[handle] = len(numbers)
            queue += [operand for (_, _, operands), _ in members[handle] for operand in operands if operand not in numbers]
    sources: dict[int, Node] = {}
    first = {handle: classes.vertices[handle] for handle in numbers}
    for node, original in source.items():
        handle = classes.find(original)
        if handle in numbers and numbers[handle] not in sources:
            sources[numbers[handle]], first[handle] = node, classes.vertices[original]
    forest = classes.forest
    rules_by_edge, names = forest.rules_by_edge()

    @cache
    def named(bits: int) -> tuple[str, ...]:
        return tuple(sorted(name for bit, name in enumerate(names) if bits >> bit & 1))

    def e_node(handle: int, key: Key, entry: Entry) -> ENode:
        op, label, operands = key
        rests = forest.rules_between(first[handle], entry.vertex, rules_by_edge)
        for operand, made_over in zip(operands, forest.operands[entry.vertex], strict=True):
            rests |= forest.rules_between(first[operand], made_over, rules_by_edge)
        steps = forest.steps(first[handle], entry.vertex)
        children = tuple(numbers[operand] for operand in operands)
        return ENode(op, classes.labels.attributes(label), children, entry.rule, named(rests), steps)

    frozen = {number: tuple(e_node(handle, *member) for member in members[handle]) for handle, number in numbers.items()}
    return FrozenEGraph(
        classes=frozen,
        types={number: classes.types[handle] for handle, number in numbers.items()},
        roots=tuple(numbers[classes.find(root)] for root in roots),
        constants=frozenset(numbers[handle] for handle in classes.constants if handle in numbers),
        source=sources,
        root_rules=tuple(
            named(forest.rules_between(classes.vertices[root], first[classes.find(root)], rules_by_edge)) for root in roots
        ),
    )
