"""Grow an e-graph by rules until nothing is new or a budget ends.

Every iteration egglog finds the matches of each rule; Python builds the right sides (once for each combination of
types and attributes) and gives them back as unions. A rule may use a bounded number of matches an iteration, the
rest wait for the next one, so that no rule starves the others. Phases run one after another, each together with
the rules of the phases before it. Derivations come last: where the rules have settled, single operators get derived
programs, and the rules go on with those.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from egraph.applications import Application, Rewriting, RuleStatistics
from egraph.constant_values import value_of_array
from egraph.deriving import Derivations, Deriving
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

BEFORE_DERIVATIONS = 0.6
"""Part of the budgets that rules may spend before derivations run, so that derivations always do."""
GROWTH_BY_DERIVATIONS, LEAST_GROWTH = 4, 2_000
"""E-nodes may grow by this factor, and at least by this number, once derivations have run: programs of many views could be moved
about without end, and what is worth having is found early."""
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
    derivations: Derivations | None = None,
) -> Saturation:
    """Return the e-graph of ``graph`` under ``rules``; ``interrupted`` is polled often and ends the growth early."""
    names = [rule.name for rule in (*rules, *(derivations.rules if derivations else ()))]
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
    deriving = Deriving(derivations, classes, source) if derivations else None
    growth = _Growth(engine, classes, applications, deriving, limits, start, progress, interrupted)
    try:
        reason = growth.run()
    finally:
        engine.close()
    statistics = tuple(application.statistics() for application in applications) + (deriving.statistics() if deriving else ())
    classes.close(_names(applications))
    frozen = freeze(classes, tuple(source[root] for root in graph.roots), source)
    return Saturation(frozen, tuple(growth.history), statistics, reason, time.monotonic() - start)


def _insert_graph(classes: EClasses, graph: Graph) -> dict[Node, int]:
    handles: dict[Node, int] = {}
    for node in walk(graph.roots):
        label = classes.labels.of_node(node)
        handles[node] = classes.add(node.op, label, [handles[operand] for operand in node.inputs], node.type, "")
        if node.op == "Constant":
            array = graph.tensors[node.string("digest")]
            classes.set_number(handles[node], number_of_array(array))
            classes.set_value(handles[node], value_of_array(array))
    return handles


@dataclass
class _Growth:
    """The growth of one e-graph within its limits."""

    engine: Engine
    classes: EClasses
    applications: list[Application]
    deriving: Deriving | None
    limits: Limits
    start: float
    progress: Callable[[Iteration], None] | None
    interrupted: Callable[[], bool]
    history: list[Iteration] = field(default_factory=list)
    share: float = 1.0
    """Part of the budgets that may be spent now."""
    most_e_nodes: float = math.inf

    def stop(self) -> StopReason | None:
        if self.interrupted():
            return "interrupted"
        if time.monotonic() - self.start > self.share * self.limits.seconds:
            return "time"
        return "e-nodes" if len(self.classes.nodes) >= min(self.share * self.limits.e_nodes, self.most_e_nodes) else None

    def run(self) -> StopReason:
        """Run the rules, phase by phase; then, round by round, the derivations and all rules again."""
        phases = ["main", *dict.fromkeys(a.phase for a in self.applications if a.phase != "main")]
        self.share = BEFORE_DERIVATIONS if self.deriving is not None and self.deriving.has_work else 1.0
        stages = [[a for a in self.applications if a.phase in phases[: k + 1]] for k in range(len(phases))]
        reason = self._run_phases(stages)
        self.share = 1.0
        if self.deriving is not None:
            self.most_e_nodes = GROWTH_BY_DERIVATIONS * len(self.classes.nodes) + LEAST_GROWTH
        while self.deriving is not None and self.deriving.has_work and reason != "interrupted" and self._has_iterations:
            started = time.monotonic()
            used = self.deriving.apply(self.stop)
            self._note(used, started)  # also where nothing was new: a search that is repeated ends after as many iterations
            if stopped := self.stop():
                return stopped
            if not used and reason not in ("time", "e-nodes"):
                break
            reason = self._run_phases(stages if reason in ("time", "e-nodes") else [self.applications])
        return reason

    @property
    def _has_iterations(self) -> bool:
        return len(self.history) < self.limits.iterations

    def _note(self, used: int, started: float) -> None:
        self.history.append(Iteration(len(self.classes.nodes), self.classes.class_count, used, time.monotonic() - started))
        if self.progress:
            self.progress(self.history[-1])

    def _run_phases(self, phases: Sequence[list[Application]]) -> StopReason:
        engine, classes = self.engine, self.classes
        for active in phases:
            while True:
                if not self._has_iterations:
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
                    if reason := self.stop():
                        return reason
                picture = engine.read()
                classes.follow(picture.classes, _names(active))
                for application in active:
                    application.receive(picture.matches.get(application.rule.name, ()))
                self._note(sum(application.apply(self.stop) for application in active), started)
                if reason := self.stop():
                    return reason
                if not classes.changed and not any(a.waiting for a in active):
                    if skipped:
                        return "matches"
                    break
        return "saturated"


def _names(applications: Sequence[Application]) -> str:
    grown = [a.rule.name for a in applications if a.unions]
    return ", ".join(grown) or "the input program"
