"""Derive programs by converging search: best first towards each target, ordered by the number of iterators in conflict with it.

A state is a tree of scopes; its canonical text is the key by which it is visited once. The first conflict of a state is repaired in
every possible way. If no repair leads to a target, every rule is tried on the states nearest to it. The order of states does not
depend on the budget, so a larger budget finds everything that a smaller one finds.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations, permutations
from typing import TypeAlias

from egraph.derive.derivation import Derivation, DerivationRule, Step
from egraph.derive.digits import solved
from egraph.derive.emission import programs
from egraph.derive.estimating import attainable, estimate
from egraph.derive.matching.match import operators
from egraph.derive.repairs import repairs
from egraph.derive.rules.bodies import Refusal
from egraph.derive.rules.boundary import tighten
from egraph.derive.rules.expressions import split_terms
from egraph.derive.rules.substitution import Matrix, merge_iterators, split_iterator, unimodular
from egraph.derive.rules.summation import split_summation
from egraph.derive.targets import BAND, SMALL_WINDOW, TARGETS, Target, conflicts, distance, onward
from egraph.derive.trees import contractions, exchanged, normal, scopes
from egraph.derive.trees import estimate as tree_estimate
from egraph.tensor import Node, walk
from egraph.tensor.expr.bodies import reads_of
from egraph.tensor.expr.index import Iterator, length
from egraph.tensor.expr.laws import affine
from egraph.tensor.expr.printing import format_scope
from egraph.tensor.expr.scope import Scope
from egraph.tensor.ops.reference import meaning

NAME = "derivation"
MOST_STATES = 64
"""States that are expanded for one target. Exploration uses the rest of a larger budget; each state that it generates counts."""
PROPOSED_OF_A_TARGET = 3
MOST_PROGRAMS = 12
MOST_DIGITS = 3
"""Digits into which an iterator of a sum may be split: a stride's, a dilation's, a block's. States with more digits undo earlier splits."""
MOST_COSTLY = 1.15
"""Programs beyond this multiple of the operator's own estimate are not proposed: the e-graph grows by some hundred nodes for each.

Smaller windows are meant for fast algorithms, so there both estimates assume the arithmetic of such algorithms.
"""
MOST_SUMS = 5
"""The number of summation iterators up to which every subset is moved outward."""


@dataclass(frozen=True, slots=True)
class State:
    """A tree of scopes with the steps that led to it, and its target."""

    tree: Scope
    text: str
    steps: tuple[Step, ...]
    target: Target


@dataclass(frozen=True, slots=True)
class Effort:
    """The number of states that a search expanded and the number that it saw."""

    expanded: int
    seen: int


def search(start: Scope, target: Target, budget: int = MOST_STATES) -> tuple[tuple[State, ...], Effort]:
    """Return the states without conflicts with ``target`` that a search of ``budget`` states finds, in the order they were found."""
    apart = split_terms(start) if start.summation else start  # each summand of a sum of products is a contraction of its own
    tree = normal(start if isinstance(apart, Refusal) else apart)
    steps = () if isinstance(apart, Refusal) or apart is start else (Step("expression splitting", format_scope(tree)),)
    simplified = solved(tree)  # a window over an image of one position has one tap for each output
    if simplified is not tree:
        tree = normal(simplified)
        steps = (*steps, Step("guards solved", format_scope(tree)))
    frontier = _Frontier(MOST_DIGITS * _sums(tree))
    frontier.add(tree, steps, target)
    stuck: list[Entry] = []
    states: list[State] = []
    expanded, reached = 0, False
    while expanded < budget:
        if not frontier.queue and stuck and not reached:
            expanded = max(expanded, MOST_STATES)
            nearest = heapq.heappop(stuck)[-1]
            for rule, tree in _everything(nearest.tree):
                expanded += 1
                frontier.add(tree, nearest.steps, nearest.target, rule)
                if expanded == budget:
                    break
            continue
        if not frontier.queue:
            break
        entry = heapq.heappop(frontier.queue)
        state, goal = entry[-1], entry[-1].target
        expanded += 1
        if entry[0] == 0:
            reached = True
            further = onward(contractions(state.tree), goal)
            if further is None:
                states += [state] * (goal.taps is not None or not goal.smaller)
                continue
            goal = further
        else:
            heapq.heappush(stuck, entry)
        for rule, tree in _repaired(state.tree, goal):
            frontier.add(tree, state.steps, goal, rule)
    return tuple(states), Effort(expanded, len(frontier.seen))


Entry: TypeAlias = tuple[int, int, str, State]
"""Distance, number of steps, text (which is unique), state."""


@dataclass
class _Frontier:
    """A queue of states to be expanded, each text once; states with more than ``most_sums`` sums in one scope are dropped."""

    most_sums: int
    queue: list[Entry] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)

    def add(self, tree: Scope, steps: tuple[Step, ...], target: Target, rule: str = "") -> None:
        text = format_scope(tree)
        if text not in self.seen and _sums(tree) <= self.most_sums:
            self.seen.add(text)
            state = State(tree, text, (*steps, Step(rule, text)) if rule else steps, target)
            heapq.heappush(self.queue, (_distance(tree, target), len(state.steps), text, state))


def _sums(tree: Scope) -> int:
    """Return the largest number of summation iterators of one scope."""
    return max(len(scope.summation) for scope in scopes(tree))


def _distance(tree: Scope, target: Target) -> int:
    return sum(distance(contraction, target) for contraction in contractions(tree))


def _repaired(tree: Scope, target: Target) -> Iterable[tuple[str, Scope]]:
    """Repair the first conflict of the first contraction that has one, and the conflicts of the others in the same way."""
    repaired = [(c.scope, dict(repairs(c, conflicting[0], target))) for c in contractions(tree) if (conflicting := conflicts(c, target))]
    for rule in repaired[0][1] if repaired else ():
        yield rule, exchanged(tree, ((scope, repairs_by_rule[rule]) for scope, repairs_by_rule in repaired if rule in repairs_by_rule))


def _everything(tree: Scope) -> Iterable[tuple[str, Scope]]:
    """Apply every rule to every contraction."""
    for contraction in contractions(tree):
        for rule, scope in explored(contraction.scope):
            yield rule, exchanged(tree, ((contraction.scope, scope),))


def derive(node: Node, budget: int = MOST_STATES) -> tuple[Derivation, ...]:
    """Return distinct programs equal to an operator over placeholders, cheapest estimate first.

    Several states may result from the same rules in another order or along another axis. The cheapest of them that has a program
    represents all.
    """
    start = meaning(node)
    leaves = {str(k): operand for k, operand in enumerate(node.inputs)}
    constants = frozenset(name for name, leaf in leaves.items() if leaf.attribute("constant"))
    derivations: dict[Node, Derivation] = {}
    for operator in operators(start, node.inputs) if node.op == "Expression" else ():
        derivations[operator] = Derivation(f"{NAME}: operator matching", operator, (Step("operator matching", f"{operator.type}"),))
    kinds: set[tuple[str, frozenset[str]]] = set()
    for target in TARGETS if node.op == "Expression" else [t for t in TARGETS if t is not BAND]:
        for state in sorted(search(start, target, budget)[0], key=lambda s: (tree_estimate(s.tree, constants), s.text)):
            kind = target.operator, frozenset(step.rule for step in state.steps)
            program = None if kind in kinds else programs(state.tree, leaves, target.operator, free=target is BAND)
            if program is None or program is node or program in derivations or all(each.op != target.operator for each in walk((program,))):
                continue
            kinds.add(kind)
            rules = ", ".join(step.rule for step in state.steps) or "as it stands"
            steps = (*state.steps, Step("operator matching", f"{target.operator} {program.type}"))
            derivations[program] = Derivation(f"{NAME} to a {target.name}: {rules}", program, steps)
    return tuple(sorted(derivations.values(), key=lambda d: (estimate(d.program), d.program.digest)))[:MOST_PROGRAMS]


def _proposed(node: Node) -> Iterable[Derivation]:
    """Yield the cheapest programs of each target, unless their estimate exceeds the operator's by too much."""
    proposed_of: dict[str, int] = {}
    for derivation in derive(node):
        target = derivation.name.split(":")[0]
        proposed_of[target] = proposed_of.get(target, 0) + 1
        cost = attainable if target.endswith(SMALL_WINDOW.name) else estimate
        if proposed_of[target] <= PROPOSED_OF_A_TARGET and cost(derivation.program) <= MOST_COSTLY * cost(node):
            yield derivation


def explored(scope: Scope) -> Iterable[tuple[str, Scope]]:
    """Yield the results of single rules on a scope: sums moved outward, iterators merged, split, mapped, ranges tightened."""
    for name, result in _ways(scope):
        if isinstance(result, Scope):
            yield name, result


def _ways(scope: Scope) -> Iterable[tuple[str, Scope | Refusal]]:
    for group in (scope.summation, scope.traversal):
        for major, minor in permutations(group, 2):
            yield f"merging {major.name} and {minor.name}", merge_iterators(scope, major, minor)
    for iterators, matrix in maps_of(scope):
        yield f"substitution of {iterators[0].name}", unimodular(scope, iterators, matrix)
    for iterator in scope.traversal + scope.summation:
        yield f"tightening {iterator.name}", tighten(scope, iterator)
        for factor in range(2, length(iterator)):
            if length(iterator) % factor == 0:
                yield f"splitting {iterator.name} by {factor}", split_iterator(scope, iterator, factor)
    if len(scope.summation) <= MOST_SUMS:
        for count in range(1, len(scope.summation)):
            for outer in combinations(scope.summation, count):
                yield f"summation splitting of {', '.join(i.name for i in outer)}", split_summation(scope, outer)


def maps_of(scope: Scope) -> Iterable[tuple[tuple[Iterator, ...], Matrix]]:
    """Yield the unimodular maps that indices suggest: y = c1 x1 + c2 x2 + ..., with 1 or -1 before x1, for iterators of one kind."""
    seen: set[tuple[tuple[Iterator, ...], tuple[int, ...]]] = set()
    for read in reads_of(scope.body):
        for coordinate in map(affine, read.indices):
            for group in (scope.traversal, scope.summation):
                terms = {i: coordinate[1][i] for i in group if i in coordinate[1]} if coordinate is not None else {}
                for first in (i for i, c in terms.items() if abs(c) == 1 and len(terms) > 1):
                    iterators = (first, *(i for i in terms if i != first))
                    row = tuple(terms[i] for i in iterators)
                    if (iterators, row) not in seen:
                        seen.add((iterators, row))
                        unit_rows = [[int(k == at) for k in range(len(row))] for at in range(1, len(row))]
                        yield iterators, (row, *unit_rows)


DERIVATION = DerivationRule(NAME, ("Conv", "ConvTranspose", "MatMul", "Expression"), _proposed, rounds=0)
RULES: tuple[DerivationRule, ...] = (DERIVATION,)
