"""Explain why a rule does not apply at a node of a graph: match its pattern with the terms at the node, and evaluate its guard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from egraph.engine.analyses import number_of_array
from egraph.rewrite.terms import Pattern, Variable
from egraph.rule import Binding, MergeRule, Mismatch, Rule
from egraph.tensor import LEAVES, Attributes, Graph, Node, walk
from egraph.tensor.ops import OPS


@dataclass(frozen=True)
class Attempt:
    """One way to match a pattern with a term: how many operators agreed, and the reason if it failed, else ''."""

    operators: int
    problem: str
    nodes: Mapping[str, Node] = field(default_factory=dict)
    attributes: Mapping[str, Attributes] = field(default_factory=dict)


@dataclass(frozen=True)
class Explanation:
    """The result of trying a rule at a node."""

    rule: str
    applies: bool
    node: str
    matched_operators: int
    pattern_operators: int
    reason: str


def constants(graph: Graph) -> frozenset[Node]:
    """Return the nodes whose values depend only on constants."""
    constant_nodes: set[Node] = set()
    for node in walk(graph.roots):
        if node.op == "Constant" or (node.inputs and all(operand in constant_nodes for operand in node.inputs)):
            constant_nodes.add(node)
    return frozenset(constant_nodes)


def explain(rule: Rule | MergeRule, node: Node, graph: Graph) -> Explanation:
    """Try ``rule`` at ``node`` of the unchanged input model; the reason is that of the attempt that matched most operators."""
    pattern = rule.member.pattern if isinstance(rule, MergeRule) else rule.pattern
    constant_nodes = constants(graph)
    attempts = sorted(_match(pattern, node, Attempt(0, ""), constant_nodes, "the root"), key=lambda a: (bool(a.problem), -a.operators))
    total = _count(pattern)
    best = attempts[0]
    shown = f"{node.op} {node.type}"
    if best.problem:
        return Explanation(rule.name, False, shown, best.operators, total, best.problem)
    if isinstance(rule, MergeRule):
        applies, reason = _merge_reason(rule, node, best, graph, constant_nodes)
        return Explanation(rule.name, applies, shown, total, total, reason)
    reasons = []
    for attempt in (a for a in attempts if not a.problem):
        try:
            rule.programs(_binding(rule, attempt, graph))
        except Mismatch as mismatch:
            reasons.append(str(mismatch))
        else:
            return Explanation(rule.name, True, shown, total, total, "the pattern matches and the guard accepts")
    return Explanation(rule.name, False, shown, total, total, f"the guard refuses: {reasons[0]}")


def _binding(rule: Rule, attempt: Attempt, graph: Graph) -> Binding:
    numbers: dict[str, float] = {}
    for variable in rule.variables:
        node = attempt.nodes[variable.name]
        if variable.constant and node.op == "Constant":
            number = number_of_array(graph.tensors[node.string("digest")])
            if number is not None:
                numbers[variable.name] = number
    return Binding({name: node.type for name, node in attempt.nodes.items()}, attempt.attributes, numbers)


def _merge_reason(rule: MergeRule, node: Node, attempt_at_node: Attempt, graph: Graph, constant_nodes: frozenset[Node]) -> tuple[bool, str]:
    """Search partners that agree with the node in the rule's shared variables."""
    partners: list[Binding] = []
    for other in walk(graph.roots):
        for attempt in _match(rule.member.pattern, other, Attempt(0, ""), constant_nodes, "the root"):
            same = all(
                attempt.nodes.get(name) is attempt_at_node.nodes.get(name)
                and attempt.attributes.get(name) == attempt_at_node.attributes.get(name)
                for name in rule.shared
            )
            if not attempt.problem and same:
                partners.append(_binding(rule.member, attempt, graph))
                break
    if len(partners) < 2:
        return False, f"no other {node.op} shares {' and '.join(rule.shared)} with it"
    try:
        rule.apply(partners)
    except Mismatch as mismatch:
        return False, f"the guard refuses: {mismatch}"
    return True, f"the pattern matches together with {len(partners) - 1} others that share {' and '.join(rule.shared)}"


def _count(pattern: Pattern | Variable) -> int:
    return 0 if isinstance(pattern, Variable) else 1 + sum(_count(operand) for operand in pattern.operands)


def _match(pattern: Pattern | Variable, node: Node, so_far: Attempt, constant_nodes: frozenset[Node], where: str) -> Iterator[Attempt]:
    """Yield every way to continue; a failed attempt carries its problem and is not continued."""
    if so_far.problem:
        yield so_far
        return
    if isinstance(pattern, Variable):
        yield _bind(pattern, node, so_far, constant_nodes, where)
        return
    if node.op != pattern.op:
        yield Attempt(so_far.operators, f"{where} must be {pattern.op}, it is {_shown(node)}")
        return
    attributes = dict(so_far.attributes)
    if isinstance(pattern.attributes, str):
        if attributes.setdefault(pattern.attributes, node.attributes) != node.attributes:
            yield Attempt(so_far.operators, f"{where} ({node.op}) must have the same attributes as the other {pattern.op}")
            return
    else:
        have_all = dict(node.attributes)
        wrong = [(name, want, have_all.get(name)) for name, want in pattern.attributes if have_all.get(name) != want]
        if wrong:
            name, want, have = wrong[0]
            yield Attempt(so_far.operators, f"{where} ({node.op}) must have {name}={want!r}, it has {have!r}")
            return
    if len(pattern.operands) != len(node.inputs):
        yield Attempt(so_far.operators, f"{where} ({node.op}) must have {len(pattern.operands)} operands, it has {len(node.inputs)}")
        return
    start = Attempt(so_far.operators + 1, "", so_far.nodes, attributes)
    orders: list[Sequence[Node]] = [node.inputs]
    if node.op in OPS and OPS[node.op].commutative and len(node.inputs) == 2:
        orders.append(node.inputs[::-1])
    for operands in orders:
        yield from _match_all(list(zip(pattern.operands, operands, strict=True)), 0, start, constant_nodes, node.op)


def _match_all(
    pairs: list[tuple[Pattern | Variable, Node]], position: int, so_far: Attempt, constant_nodes: frozenset[Node], op: str
) -> Iterator[Attempt]:
    if so_far.problem or position == len(pairs):
        yield so_far
        return
    pattern, node = pairs[position]
    for attempt in _match(pattern, node, so_far, constant_nodes, f"operand {position} of {op}"):
        yield from _match_all(pairs, position + 1, attempt, constant_nodes, op)


def _bind(variable: Variable, node: Node, so_far: Attempt, constant_nodes: frozenset[Node], where: str) -> Attempt:
    if variable.constant and node not in constant_nodes:
        return Attempt(so_far.operators, f"{where} must be a constant ({variable.name}), it is computed from the inputs: {_shown(node)}")
    if so_far.nodes.get(variable.name, node) is not node:
        return Attempt(so_far.operators, f"{where} must be the same value as the other {variable.name}")
    return Attempt(so_far.operators, "", {**so_far.nodes, variable.name: node}, so_far.attributes)


def _shown(node: Node) -> str:
    if node.op == "Input":
        return f"the input {node.attribute('name')!r}"
    return f"a constant {node.type}" if node.op == "Constant" else f"{node.op} {node.type}"


def nodes_named(graph: Graph, name: str) -> list[Node]:
    """Return the operators that represent a source node (by its name, or its output's name), users before operands."""
    nodes = [
        node
        for node in walk(graph.roots)
        if node.op not in LEAVES and (name in graph.origins.get(node, ()) or graph.names.get(node) == name)
    ]
    return nodes[::-1] + [node for output, node in graph.outputs if output == name and node not in nodes]
