"""Find equations that other rules already show: a saturation with those rules puts their two sides into one e-class."""

from __future__ import annotations

import math
from collections.abc import Sequence

from egraph.engine.saturate import Limits, saturate
from egraph.rule import Rule
from egraph.tensor import Graph, Node
from verify.generate.contexts import Context
from verify.generate.enumeration import lengths_of
from verify.generate.terms import Application, Equation, Term, leaves, to_node

LIMITS = Limits(seconds=math.inf, e_nodes=20_000, iterations=5, matches=4_000)
"""Only counts limit a saturation here, so that the generated rules do not depend on the machine."""


def derivable(equations: Sequence[Equation], rules: Sequence[Rule], limits: Limits = LIMITS) -> tuple[bool, ...]:
    """Return for each equation whether the rules show it, that is, its sides are in one e-class after a saturation."""
    if not equations or not rules:
        return (False,) * len(equations)
    inputs: dict[Context, tuple[Node, ...]] = {}
    outputs: list[tuple[str, Node]] = []
    for equation in equations:
        lengths = lengths_of(equation.context, 0)
        if equation.context not in inputs:
            inputs[equation.context] = leaves(equation.context, lengths, f"c{len(inputs)}x")
        for side in (equation.left, equation.right):
            outputs.append((f"y{len(outputs)}", to_node(side, equation.context, lengths, inputs[equation.context])))
    graph = Graph("equations", tuple(node for nodes in inputs.values() for node in nodes), tuple(outputs), {})
    roots = saturate(graph, rules, limits).frozen.roots
    return tuple(roots[i] == roots[i + 1] for i in range(0, len(roots), 2))


def is_instance(equation: Equation, of: Equation) -> bool:
    """Return whether an equation results from another one, in either direction, by substituting terms for its variables."""
    sides = (equation.left, equation.right)
    return any(_matches((of.left, of.right), (sides[a], sides[b]), {}) for a, b in ((0, 1), (1, 0)))


def _matches(patterns: tuple[Term, Term], terms: tuple[Term, Term], bound: dict[int, Term]) -> bool:
    return all(_match(pattern, term, bound) for pattern, term in zip(patterns, terms, strict=True))


def _match(pattern: Term, term: Term, bound: dict[int, Term]) -> bool:
    if isinstance(pattern, int):
        return bound.setdefault(pattern, term) == term
    if not isinstance(term, Application) or pattern.production != term.production:
        return False
    return all(_match(inner, operand, bound) for inner, operand in zip(pattern.operands, term.operands, strict=True))
