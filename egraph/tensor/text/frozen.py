"""Frozen e-graphs and selections as text: one line per class, with its e-nodes below it.

    egraph roots=(@0,) {
      @0 : float32[4] source=%2
        Relu(@1)
        Max(@1, @2) rule='relu_is_max'
      @1 : float32[4] source=%0
        Input{name='x'}()
      @2 : float32[] constant=True
        Constant{digest='5f0c...'}()
    }
    selection method='cp-sat' optimal=True seconds=0.25 cost_us=3.5 {
      @0 = Relu(%0:float32[4])(@1) by='onednn.eltwise' cost_us=3.5
    }

A class names its value in the graph above; a selection states which kernel computes a class. The e-nodes that a kernel covers are
not written. They are looked up in the e-graph, so that no text adds anything that the e-graph does not contain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from egraph.tensor.frozen import Candidate, ENode, FrozenEGraph, Selection
from egraph.tensor.graph import Graph
from egraph.tensor.implementation import Implementation
from egraph.tensor.node import Node, format_attributes, format_fragment
from egraph.tensor.text.graph import format_reasons, value_names
from egraph.tensor.text.reader import Reader
from egraph.tensor.types import TensorType


def format_egraph(frozen: FrozenEGraph, graph: Graph | None = None) -> str:
    """Return an e-graph as text; ``graph`` is the graph whose values its classes name."""
    names = value_names(graph) if graph else {}
    root_rules = f" root_rules={frozen.root_rules!r}" if frozen.root_rules else ""
    lines = [f"egraph roots={_classes(frozen.roots)}{root_rules} {{"]
    for number, nodes in frozen.classes.items():
        fields = " constant=True" if number in frozen.constants else ""
        fields += f" source={names[frozen.source[number]]}" if names and number in frozen.source else ""
        lines.append(f"  @{number} : {frozen.types[number]}{fields}")
        for node in nodes:
            operands = ", ".join(f"@{child}" for child in node.children)
            rule = f" rule={node.rule!r}" if node.rule else ""
            lines.append(f"    {node.op}{format_attributes(node.attributes)}({operands}){rule}{format_reasons(node)}")
    return "\n".join([*lines, "}"]) + "\n"


def format_selection(selection: Selection) -> str:
    """Return a selection as text."""
    head = f"method={selection.method!r} optimal={selection.optimal!r} seconds={selection.seconds!r} cost_us={selection.cost_us!r}"
    lines = [f"selection {head} {{"]
    for number, candidate in selection.chosen.items():
        operands = ", ".join(f"@{operand}" for operand in candidate.operands)
        kernel = f"{format_fragment(candidate.fragment)}({operands})"
        lines.append(f"  @{number} = {kernel} by={candidate.implementation.text!r} cost_us={candidate.cost_us!r}")
    return "\n".join([*lines, "}"]) + "\n"


def _classes(numbers: Sequence[int]) -> str:
    return f"({', '.join(f'@{number}' for number in numbers)}{',' * (len(numbers) == 1)})"


def parse_egraph(text: str, graph: Graph | None = None, name: str = "") -> FrozenEGraph:
    """Return the e-graph of a text; ``graph``: the one that it was formatted with."""
    reader = Reader(text, name)
    reader.nodes = {written: node for node, written in value_names(graph).items()} if graph else {}
    frozen = read_egraph(reader)
    reader.end()
    return frozen


def parse_selections(text: str, frozen: FrozenEGraph) -> tuple[Selection, ...]:
    """Return the selections of a text; kernels must consist of e-nodes of ``frozen``, and every class that is read must be computed."""
    reader = Reader(text)
    selections = []
    while not reader.at_end():
        selections.append(read_selection(reader, frozen))
    return tuple(selections)


def read_egraph(reader: Reader) -> FrozenEGraph:
    """Read an e-graph; every core e-node must produce a value of its class's type."""
    classes: dict[int, tuple[ENode, ...]] = {}
    types: dict[int, TensorType] = {}
    source: dict[int, Node] = {}
    constants: set[int] = set()
    made: list[tuple[int, ENode, int]] = []
    reader.expect("egraph")

    def number() -> int:
        reader.expect("@")
        return reader.integer("a class")

    start = reader.start()
    names = reader.tuple_of(reader.string)
    head = reader.fields(roots=reader.tuple_of(number), root_rules=reader.tuple_of(names))
    roots = head.get("roots", ())
    root_rules = head.get("root_rules", ())
    if root_rules and len(root_rules) != len(roots):
        raise reader.error(f"expected the rules of {len(roots)} roots", start)
    reader.expect("{")
    while not reader.accept("}"):
        if not reader.sees("@"):
            raise reader.expected("@CLASS or '}'")
        at = reader.position
        eclass = number()
        if eclass in classes:
            raise reader.error(f"@{eclass} is defined twice", at)
        reader.expect(":")
        types[eclass] = reader.type()
        fields = reader.fields(constant=reader.flag, source=reader.term)
        constants |= {eclass} if fields.get("constant") else set()
        source |= {eclass: fields["source"]} if "source" in fields else {}
        nodes = []
        while not reader.sees("@") and not reader.sees("}"):
            at = reader.start()
            op, attributes = reader.operator(), reader.attributes()
            reader.expect("(")
            children = tuple(reader.listed(")", number))
            nodes.append(ENode(op, attributes, children, **reader.fields(rule=reader.string, rules=names, steps=names)))
            made.append((eclass, nodes[-1], at))
        classes[eclass] = tuple(nodes)
    for eclass, node, at in made:
        if missing := [child for child in node.children if child not in types]:
            raise reader.error(f"there is no class @{missing[0]}", at)
        reader.result_type(node.op, [types[child] for child in node.children], node.attributes, types[eclass], at, at)
    if missing := [root for root in roots if root not in types]:
        raise reader.error(f"there is no class @{missing[0]}", start)
    return FrozenEGraph(classes, types, roots, frozenset(constants), source, root_rules)


def read_selection(reader: Reader, frozen: FrozenEGraph) -> Selection:
    """Read a selection from an e-graph."""
    reader.expect("selection")
    start = reader.position
    head = reader.fields(method=reader.string, optimal=reader.flag, seconds=reader.real, cost_us=reader.real)
    reader.expect("{")
    chosen: dict[int, Candidate] = {}

    def reference() -> int:
        at = reader.position
        reader.expect("@")
        eclass = reader.integer("a class")
        if eclass not in frozen.classes:
            raise reader.error(f"there is no class @{eclass}", at)
        return eclass

    while not reader.accept("}"):
        at = reader.start()
        computed = reference()
        if computed in chosen:
            raise reader.error(f"@{computed} is computed twice", at)
        reader.expect("=")
        reader.nodes = {}
        fragment = reader.term(frozen.types[computed])
        reader.expect("(")
        operands = tuple(reader.listed(")", reference))
        fields = reader.fields(by=reader.string, cost_us=reader.real)
        covered = covered_by(fragment, operands, computed, frozen)
        if not covered:
            raise reader.error(f"the kernel does not consist of e-nodes of class @{computed}", at)
        implementation = Implementation.parse(fields.get("by", ""))
        chosen[computed] = Candidate(fragment, operands, covered, implementation, fields.get("cost_us", 0.0))
    if (missing := _uncomputed(frozen, chosen)) is not None:
        raise reader.error(f"no kernel computes @{missing}, or only from itself", start)
    return Selection(chosen, head.get("cost_us", 0.0), head.get("optimal", False), head.get("method", ""), head.get("seconds", 0.0))


def covered_by(fragment: Node, operands: Sequence[int], number: int, frozen: FrozenEGraph) -> tuple[ENode, ...]:
    """Return the e-nodes, of class ``number`` and below, that make up a fragment over classes, root first; empty if none do."""
    made: dict[tuple[Node, int], ENode | None] = {}

    def fits(node: Node, at: int) -> bool:
        if node.op == "Placeholder":
            index = node.integer("index")
            return index < len(operands) and operands[index] == at and node.type == frozen.types[at]
        if (node, at) not in made:
            made[node, at] = None
            attributes = repr(node.attributes)
            made[node, at] = next(
                (
                    member
                    for member in frozen.classes[at]
                    if member.op == node.op and len(member.children) == len(node.inputs) and repr(member.attributes) == attributes
                    and all(fits(operand, child) for operand, child in zip(node.inputs, member.children, strict=True))
                ),
                None,
            )  # fmt: skip
        return made[node, at] is not None

    if not fits(fragment, number):
        return ()
    covered: dict[ENode, None] = {}
    stack = [(fragment, number)]
    while stack:
        pair = stack.pop()
        if (member := made.get(pair)) is not None and member not in covered:
            covered[member] = None
            stack += zip(pair[0].inputs, member.children, strict=True)
    return tuple(covered)


def _uncomputed(frozen: FrozenEGraph, chosen: Mapping[int, Candidate]) -> int | None:
    """Return a class that the roots need and that no kernel computes, or only from itself; None if there is none."""
    order: TopologicalSorter[int] = TopologicalSorter()
    needed = list(frozen.roots)
    for number in needed:
        if number not in frozen.leaves:
            if number not in chosen:
                return number
            order.add(number, *chosen[number].operands)
            needed += [operand for operand in dict.fromkeys(chosen[number].operands) if operand not in needed]
    try:
        order.prepare()
    except CycleError as error:
        return int(error.args[1][0])
    return None
