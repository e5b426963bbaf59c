"""Write a selection as a program: kernels in running order over the rebuilt graph."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Collection, Iterable, Mapping

from egraph.errors import ExtractError
from egraph.extract.schedule import schedule
from egraph.tensor import (
    INVERTIBLE_MOVES,
    LEAVES,
    Attributes,
    Candidate,
    ENode,
    FrozenEGraph,
    Graph,
    Kernel,
    Node,
    Program,
    Selection,
    TensorType,
    attributes,
    instantiate,
    make,
    walk,
)

MOST_ORIGINS = 8
"""Largest number of source nodes that a node made by a rule inherits from its users."""


def to_program(frozen: FrozenEGraph, selection: Selection, graph: Graph) -> Program:
    """Return the program of a selection; its nodes get the names of the source nodes whose classes they compute."""
    chosen = selection.chosen
    running = [number for number in schedule(frozen, chosen) if number in chosen]
    read_classes = running_operands(frozen, chosen)
    values, constant_rules = _constant_values(frozen, read_classes)
    values |= {number: _leaf(frozen, number) for number in read_classes if number not in values and number not in chosen}
    origins: dict[Node, dict[str, None]] = {}
    sources = _sources(frozen)
    kernels: list[Kernel] = []
    inside: dict[int, Node] = {}
    root_rules: dict[int, set[str]] = {}
    for number, named in zip(frozen.roots, frozen.root_rules, strict=False):
        root_rules.setdefault(number, set()).update(named)
    for number in running:
        candidate = chosen[number]
        inputs = tuple(values[operand] for operand in candidate.operands)
        built = instantiate(candidate.fragment, inputs)
        values[number] = built[candidate.fragment]
        for inner, at in _classes_inside(frozen, number, candidate):
            inside.setdefault(at, built[inner])
            _note(origins, built[inner], _names(sources, graph, at))
        rules = {rule for node in candidate.covered for rule in node.rules} | root_rules.get(number, set())
        rules |= {rule for operand in candidate.operands for rule in constant_rules.get(operand, ())}
        steps = candidate.covered[0].steps if candidate.covered else ()
        how = candidate.implementation
        kernels.append(Kernel(candidate.fragment, inputs, values[number], how, tuple(sorted(rules)), candidate.cost_us, steps))
    for number, node in values.items():
        _note(origins, node, _names(sources, graph, number))
    outputs = tuple((name, values[root]) for (name, _), root in zip(graph.outputs, frozen.roots, strict=True))
    _inherit(origins, outputs)
    rebuilt = dataclasses.replace(
        graph,
        outputs=outputs,
        origins={node: tuple(names) for node, names in origins.items() if names},
        names=_source_names(frozen, graph, inside | values),
    )
    outside = {rule for root in frozen.roots if root not in chosen for rule in _leaf_rules(frozen, root, constant_rules)}
    used = sorted(outside.union(*root_rules.values(), *(kernel.rules for kernel in kernels)))
    return Program(rebuilt, tuple(kernels), selection.cost_us, tuple(used))


def running_operands(frozen: FrozenEGraph, chosen: Mapping[int, Candidate]) -> tuple[int, ...]:
    """Return every class that a kernel reads or that is a root, in order of first use."""
    return tuple(dict.fromkeys([operand for candidate in chosen.values() for operand in candidate.operands] + list(frozen.roots)))


def _leaf(frozen: FrozenEGraph, number: int) -> Node:
    for node in frozen.classes[number]:
        if node.op in LEAVES:
            return make(node.op, (), node.attributes, frozen.types[number])
    raise ExtractError(f"class {number} ({frozen.types[number]}) is needed but was not selected")


def _leaf_rules(frozen: FrozenEGraph, number: int, constant_rules: Mapping[int, frozenset[str]]) -> Iterable[str]:
    """Return the rules by which a root equals an input or a constant."""
    if number in constant_rules:
        return constant_rules[number]
    return next((node.rules for node in frozen.classes[number] if node.op in LEAVES), ())


def _constant_values(frozen: FrozenEGraph, numbers: Iterable[int]) -> tuple[dict[int, Node], dict[int, frozenset[str]]]:
    """Return the smallest term of each of these constant classes, which is never cyclic, and the rules that it rests on."""
    sizes: dict[int, int] = {}
    best: dict[int, ENode] = {}
    grown = True
    while grown:
        grown = False
        for number in sorted(frozen.constants):
            for node in frozen.classes[number]:
                if all(child in sizes for child in node.children):
                    size = 1 + sum(sizes[child] for child in node.children)
                    if size < sizes.get(number, size + 1):
                        sizes[number], best[number], grown = size, node, True
    values: dict[int, Node] = {}
    rules: dict[int, frozenset[str]] = {}
    stack = [number for number in numbers if number in frozen.constants]
    while stack:
        number = stack[-1]
        missing = [child for child in best[number].children if child not in values]
        if missing:
            stack += missing
            continue
        stack.pop()
        node = best[number]
        values[number] = make(node.op, (values[child] for child in node.children), node.attributes, frozen.types[number])
        rules[number] = frozenset(node.rules).union(*(rules[child] for child in node.children))
    return values, rules


def _classes_inside(frozen: FrozenEGraph, number: int, candidate: Candidate) -> list[tuple[Node, int]]:
    """Return the classes that the nodes inside a fragment compute, as far as its e-nodes show them."""
    covered = set(candidate.covered)
    pairs = [(candidate.fragment, number)]
    for node, at in pairs:
        twins = [e for e in frozen.classes[at] if e in covered and e.op == node.op and e.attributes == node.attributes]
        if twins and len(twins[0].children) == len(node.inputs):
            pairs += [pair for pair in zip(node.inputs, twins[0].children, strict=True) if pair[0].op not in LEAVES and pair not in pairs]
    return pairs


def _sources(frozen: FrozenEGraph) -> Mapping[int, Node]:
    """Return the source node of each class that has one, or that is the transpose of such a class: the same value in another layout."""
    sources = dict(frozen.source)
    for number, nodes in frozen.classes.items():
        for node in nodes:
            if node.op == "Transpose":
                (child,) = node.children
                for eclass, other in ((number, child), (child, number)):
                    if eclass not in frozen.source and other in frozen.source:
                        sources.setdefault(eclass, frozen.source[other])
    return sources


def _source_names(frozen: FrozenEGraph, graph: Graph, values: Mapping[int, Node]) -> dict[Node, str]:
    """Return the names of the source model's values, also for nodes that compute them in another way or in another layout.

    If the program has a value only in another layout, the name belongs to a node that no kernel computes: the transposes and reshapes that
    give the value.
    """
    computed = ((node, frozen.source[number]) for number, node in values.items() if number in frozen.source)
    names = {node: graph.names[source] for node, source in computed if source in graph.names}
    taken = set(names.values())
    names |= {node: name for node, name in graph.names.items() if name not in taken}
    unnamed = {"", *taken}
    missing = {number: graph.names[source] for number, source in frozen.source.items() if graph.names.get(source, "") not in unnamed}
    moved = _moved(frozen, {number: node for number, node in values.items() if number not in frozen.leaves}, missing)
    return names | {node: missing[number] for number, node in moved.items() if node not in names}


def _moved(frozen: FrozenEGraph, values: Mapping[int, Node], targets: Collection[int]) -> dict[int, Node]:
    """Return the target classes that equal transposes and reshapes of the program's values, by the fewest moves."""
    ways: dict[int, list[tuple[int, str, Attributes]]] = {}
    for number, nodes in frozen.classes.items():
        for node in nodes:
            (child,) = node.children if node.op in INVERTIBLE_MOVES else (number,)
            if child != number and frozen.types[number].is_static and frozen.types[child].is_static:
                ways.setdefault(child, []).append((number, node.op, node.attributes))
                ways.setdefault(number, []).append((child, node.op, _inverse(node, frozen.types[child])))
    reached = dict(values)
    queue = deque(values)
    while queue:
        number = queue.popleft()
        for to, op, moves in ways.get(number, ()):
            if to not in reached and to not in frozen.leaves:
                reached[to] = make(op, (reached[number],), moves, frozen.types[to])
                queue.append(to)
    return {number: node for number, node in reached.items() if number in targets and number not in values}


def _inverse(node: ENode, operand: TensorType) -> Attributes:
    """Return the attributes of the move that undoes a transpose or a reshape of a value of this type."""
    if node.op == "Reshape":
        return attributes(shape=operand.sizes)
    perm = dict(node.attributes)["perm"]
    assert isinstance(perm, tuple)
    return attributes(perm=tuple(perm.index(axis) for axis in range(len(perm))))


def _names(sources: Mapping[int, Node], graph: Graph, number: int) -> tuple[str, ...]:
    source = sources.get(number)
    return graph.origins.get(source, ()) if source is not None else ()


def _note(origins: dict[Node, dict[str, None]], node: Node, names: Iterable[str]) -> None:
    origins.setdefault(node, {}).update(dict.fromkeys(names))


def _inherit(origins: dict[Node, dict[str, None]], outputs: Iterable[tuple[str, Node]]) -> None:
    """Name nodes that rules made after the source nodes that need them."""
    for node in reversed(list(walk(node for _, node in outputs))):
        for operand in node.inputs:
            if operand.op not in LEAVES and len(origins.setdefault(operand, {})) < MOST_ORIGINS:
                inherited = [] if origins.get(operand) else list(origins.get(node, {}))
                _note(origins, operand, inherited[: MOST_ORIGINS - len(origins[operand])])
