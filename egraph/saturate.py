"""Grow an e-graph by rules until nothing is new or a budget ends.

Every iteration egglog finds the matches of each rule; Python builds the right sides (once for each combination of
types and attributes) and gives them back as unions. A rule may use a bounded number of matches an iteration, the
rest wait for the next one, so that no rule starves the others. Phases run one after another, each together with
the rules of the phases before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from egraph.applications import Application, Rewriting, RuleStatistics
from egraph.constant_values import value_of_array
from egraph.eclasses import EClasses
from egraph.encode import Labels, count_matches
from egraph.engine import Engine
from egraph.errors import RuleError
from egraph.freeze import freeze
from egraph.ir import FrozenEGraph, Graph, Node, walk
from egraph.merging import Merging
from egraph.rule import MergeRule, Rule
from egraph.uniform import number_of_array

StopReason: TypeAlias = Literal["saturated", "time", "e-nodes", "iterations", "matches", "interrupted"]
"""``matches``: nothing is new but what rules would find that have more matches than egglog can list in time."""

LARGEST_JOIN = 1_000_000
"""A rule sits an iteration out when it has more matches than this: egglog cannot be stopped inside a query."""


@dataclass(frozen=True)
class Limits:
    """Budgets of a saturation. ``matches``: how many of a rule's matches one iteration may use."""

    seconds: float = 10.0
    e_nodes: int = 50_000
    iterations: int = 40
    matches: int = 2_000


@dataclass(frozen=True)
class Iteration:
    """The e-graph after an iteration, and what the iteration took."""

    e_nodes: int
    e_classes: int
    matches: int
    seconds: float


@dataclass(frozen=True)
class Saturation:
    """The e-graph at the end, and how it got there."""

    frozen: FrozenEGraph
    iterations: tuple[Iteration, ...]
    statistics: tuple[RuleStatistics, ...]
    stop_reason: StopReason
    seconds: float


def saturate(
    graph: Graph,
    rules: Sequence[Rule | MergeRule],
    limits: Limits = Limits(),
    progress: Callable[[Iteration], None] | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Saturation:
    """Return the e-graph of ``graph`` under ``rules``; ``interrupted`` is polled often and ends the growth early."""
    names = [rule.name for rule in rules]
    for name in names:
        if names.count(name) > 1:
            raise RuleError(f"two rules are called {name!r}", fix="rename one of them")
    start = time.monotonic()
    engine = Engine()
    labels = Labels()
    classes = EClasses(labels)
    source = _insert_graph(classes, graph)
    applications: list[Application] = [
        Rewriting(rule, classes, engine, source, limits.matches)
        if isinstance(rule, Rule)
        else Merging(rule, classes, engine, source, limits.matches)
        for rule in rules
    ]
    history: list[Iteration] = []

    def stop() -> StopReason | None:
        if interrupted():
            return "interrupted"
        if time.monotonic() - start > limits.seconds:
            return "time"
        return "e-nodes" if len(classes.nodes) >= limits.e_nodes else None

    try:
        reason = _run_phases(engine, classes, applications, limits, history, stop, progress)
    finally:
        engine.close()
    statistics = tuple(application.statistics() for application in applications)
    classes.close(_names(applications))
    frozen = freeze(classes, tuple(source[root] for root in graph.roots), source)
    return Saturation(frozen, tuple(history), statistics, reason, time.monotonic() - start)


def _insert_graph(classes: EClasses, graph: Graph) -> dict[Node, int]:
    handles: dict[Node, int] = {}
    for node in walk(graph.roots):
        label = classes.labels.of_node(node)
        handles[node] = classes.add(node.op, label, [handles[operand] for operand in node.inputs], node.type, "")
        if node.op == "Constant":
            array = graph.tensors[str(node.attribute("digest"))]
            classes.set_number(handles[node], number_of_array(array))
            classes.set_value(handles[node], value_of_array(array))
    return handles


def _run_phases(
    engine: Engine,
    classes: EClasses,
    applications: list[Application],
    limits: Limits,
    history: list[Iteration],
    stop: Callable[[], StopReason | None],
    progress: Callable[[Iteration], None] | None,
) -> StopReason:
    phases = ["main", *dict.fromkeys(a.phase for a in applications if a.phase != "main")]
    for position in range(len(phases)):
        active = [a for a in applications if a.phase in phases[: position + 1]]
        while True:
            if len(history) >= limits.iterations:
                return "iterations"
            started = time.monotonic()
            engine.insert(*classes.take())
            operands = classes.operands_by_class()
            skipped = 0
            for application in active:
                count = count_matches(application.pattern.pattern, operands)
                if count > LARGEST_JOIN:
                    skipped += 1
                elif count:
                    application.search()
                if reason := stop():
                    return reason
            picture = engine.read()
            classes.follow(picture.classes, _names(active))
            for application in active:
                application.receive(picture.matches.get(application.rule.name, ()))
            used = sum(application.apply(stop) for application in active)
            seconds = time.monotonic() - started
            history.append(Iteration(len(classes.nodes), classes.class_count, used, seconds))
            if progress:
                progress(history[-1])
            if reason := stop():
                return reason
            if not classes.changed and not any(a.waiting for a in active):
                if skipped:
                    return "matches"
                break
    return "saturated"


def _names(applications: Sequence[Application]) -> str:
    grown = [a.rule.name for a in applications if a.unions]
    return ", ".join(grown) or "the input program"
