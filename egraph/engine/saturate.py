"""Grow an e-graph by rules until nothing is new or a budget ends.

In every iteration, egglog finds the matches of each rule. Python builds the right sides (once for each combination of types and attributes)
and returns them as unions. A rule may use a bounded number of matches per iteration; the rest wait for the next one, so that no rule
starves the others. Phases run one after another, each together with the rules of the phases before it. Derivations come last: once the
rules have settled, single operators get derived programs, and the rules continue with those. At the end the e-graph is frozen: only the
classes that the roots reach are kept, numbered by first appearance.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Literal, TypeAlias

from egraph.engine.applications import Application, Rewriting, RuleStatistics
from egraph.engine.deriving import Derivations, Deriving
from egraph.engine.eclasses import EClasses, Entry, Key
from egraph.engine.egglog import Engine
from egraph.engine.encode import Labels, MatchCounts
from egraph.engine.merging import Merging
from egraph.errors import RuleError
from egraph.policy import SaturationPolicy
from egraph.rewrite.clock import within
from egraph.rule import MergeRule, Rule
from egraph.tensor import ENode, FrozenEGraph, Graph, Node, walk

StopReason: TypeAlias = Literal["saturated", "time", "e-nodes", "iterations", "matches", "interrupted"]
"""``matches``: nothing is new, except for rules with more matches than egglog can list in time."""

NEVER = 0


@dataclass(frozen=True)
class Limits:
    """Budgets of a saturation. ``matches``: how many of a rule's matches one iteration may use.

    ``looks`` repeats an earlier saturation without a clock: the numbers of looks at the clock after which time was over in each part, the
    rules and then the derivations.
    """

    seconds: float = 10.0
    e_nodes: int = 50_000
    iterations: int = SaturationPolicy.iterations
    matches: int = SaturationPolicy.matches
    looks: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Iteration:
    """The size of the e-graph after an iteration, and the matches and the time of the iteration."""

    e_nodes: int
    e_classes: int
    matches: int
    seconds: float


@dataclass(frozen=True)
class Saturation:
    """The final e-graph, and how it grew."""

    frozen: FrozenEGraph
    iterations: tuple[Iteration, ...]
    statistics: tuple[RuleStatistics, ...]
    stop_reason: StopReason
    seconds: float
    by_rules: FrozenEGraph | None = None
    """The e-graph by rules alone, if derivations ran after them."""
    looks: tuple[int, ...] = ()
    """The look at the clock at which time was over in each part; with these as a limit, the same e-graph grows again."""


def saturate(
    graph: Graph,
    rules: Sequence[Rule | MergeRule],
    limits: Limits = Limits(),
    progress: Callable[[Iteration], None] | None = None,
    interrupted: Callable[[], bool] = lambda: False,
    derivations: Derivations | None = None,
    policy: SaturationPolicy = SaturationPolicy(),
    most_growth: Callable[[FrozenEGraph], float] = lambda by_rules: math.inf,
) -> Saturation:
    """Return the e-graph of ``graph`` under ``rules``; ``interrupted`` is polled often and ends the growth early.

    ``most_growth`` is called with the rules' e-graph before derivations run. It returns how many times as many e-nodes there is time for,
    or 0 if nothing is to be derived. Its own time does not count.
    """
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
        else Merging(rule, classes, engine, source, limits.matches, policy.largest_merge)
        for rule in rules
    ]
    deriving = Deriving(derivations, classes, source, policy) if derivations else None
    growth = _Growth(engine, classes, applications, deriving, limits, policy, start, progress, interrupted)
    by_rules: FrozenEGraph | None = None
    frozen: FrozenEGraph | None = None

    def picture() -> FrozenEGraph:
        classes.close(_names(applications))
        return freeze(classes, graph.roots, source)

    try:
        reason = growth.run_rules()
        if growth.can_derive(reason):
            by_rules = picture()
            if times := growth.most_growth(partial(most_growth, by_rules)):
                reason = growth.run_derivations(reason, times)
            else:
                frozen, by_rules, reason = by_rules, None, "time"
    finally:
        engine.close()
    statistics = tuple(application.statistics() for application in applications) + (deriving.statistics() if deriving else ())
    seconds = time.monotonic() - growth.start
    return Saturation(frozen or picture(), tuple(growth.history), statistics, reason, seconds, by_rules, tuple(growth.over))


def _insert_graph(classes: EClasses, graph: Graph) -> dict[Node, int]:
    handles: dict[Node, int] = {}
    for node in walk(graph.roots):
        array = graph.tensors[node.string("digest")] if node.op == "Constant" else None
        handles[node] = classes.insert(node, [handles[operand] for operand in node.inputs], array)
    return handles


@dataclass
class _Growth:
    """The growth of one e-graph within its limits."""

    engine: Engine
    classes: EClasses
    applications: list[Application]
    deriving: Deriving | None
    limits: Limits
    policy: SaturationPolicy
    start: float
    progress: Callable[[Iteration], None] | None
    interrupted: Callable[[], bool]
    history: list[Iteration] = field(default_factory=list)
    most_e_nodes: float = math.inf
    seconds: float = math.inf
    """Time since the start at which this part is over."""
    foreseen_e_nodes: float = math.inf
    """Size of the e-graph from which laying its candidates would take too long: known after the first round of derivations."""
    looks: int = 0
    over: list[int] = field(default_factory=list)
    """The look at the clock that ended each part, or NEVER."""

    def stop(self) -> StopReason | None:
        """Return a reason to stop, from the clock and the e-graph's size.

        Nothing else depends on time, and a repeated saturation looks at the same places, so the number of looks tells where time was over.
        """
        if self.interrupted():
            return "interrupted"
        self.looks += 1
        if self.over[-1] == NEVER and self.is_late():
            self.over[-1] = self.looks
        if self.over[-1] != NEVER:
            return "time"
        return "e-nodes" if len(self.classes.nodes) >= self.most_e_nodes else None

    def is_late(self) -> bool:
        """Return whether the time of this part is over, without counting as a look, for callers that are not repeated identically."""
        if self.limits.looks is None:
            return time.monotonic() - self.start > self.seconds or len(self.classes.nodes) > self.foreseen_e_nodes
        part = len(self.over) - 1
        return part < len(self.limits.looks) and self.looks >= self.limits.looks[part] != NEVER

    def run_rules(self) -> StopReason:
        """Run the rules phase by phase."""
        derives = self.deriving is not None and self.deriving.has_work
        self.seconds = self.limits.seconds
        most = max(self.policy.rules_growth * len(self.classes.nodes), self.policy.rules_least_growth)
        self.most_e_nodes = min(most, (self.policy.rules_share if derives else 1.0) * self.limits.e_nodes)
        self.over.append(NEVER)
        with within(self.seconds):
            return self._run_phases(self._stages())

    def can_derive(self, reason: StopReason) -> bool:
        """Return whether derivations have operators and iterations left."""
        return self.deriving is not None and self.deriving.has_work and reason != "interrupted" and self._has_iterations

    def most_growth(self, ask: Callable[[], float]) -> float:
        """Return the largest growth by derivations, by ``ask``, whose time does not count; a repeated saturation knows where they ended."""
        if self.limits.looks:
            return math.inf if len(self.limits.looks) > 1 else 0.0
        started = time.monotonic()
        try:
            return ask()
        finally:
            self.start += time.monotonic() - started

    def run_derivations(self, reason: StopReason, times: float) -> StopReason:
        """Run the derivations and all rules again, round by round; ``reason`` is why the rules stopped.

        The rules end once the e-graph has ``times`` as many e-nodes as before, but may always add ``saturation.varied_growth``.
        """
        by_time_e_nodes = times * len(self.classes.nodes)
        assert self.deriving is not None
        spent_seconds = time.monotonic() - self.start
        self.seconds = max(self.limits.seconds, spent_seconds + self.policy.derivations_share * self.limits.seconds)
        most = self.policy.derivations_growth * len(self.classes.nodes) + self.policy.derivations_least_growth
        self.most_e_nodes = min(self.limits.e_nodes, most)
        self.over.append(NEVER)
        with within(self.seconds - spent_seconds):
            return self._derived(reason, by_time_e_nodes)

    def _derived(self, reason: StopReason, by_time_e_nodes: float) -> StopReason:
        assert self.deriving is not None
        while self.can_derive(reason):
            started = time.monotonic()
            used = self.deriving.apply(self.stop, self.is_late)
            self.foreseen_e_nodes = max(by_time_e_nodes, self.policy.varied_growth * len(self.classes.nodes))
            self._note(used, started)  # recorded even if nothing was new, because a repeated search ends after as many iterations
            if stopped := self.stop():
                return stopped
            if not used and reason not in ("time", "e-nodes"):
                break
            reason = self._run_phases(self._stages() if reason in ("time", "e-nodes") else [self.applications])
        return reason

    def _stages(self) -> list[list[Application]]:
        """Return the rules that run together: those of each phase with those of the phases before it."""
        phases = ["main", *dict.fromkeys(a.phase for a in self.applications if a.phase != "main")]
        return [[a for a in self.applications if a.phase in phases[: k + 1]] for k in range(len(phases))]

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
                counts = MatchCounts(classes.operands_by_class(), self.policy.largest_join)
                skipped = 0
                for application in active:
                    count = counts.of(application.pattern.pattern)
                    if count > self.policy.largest_join:
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


def freeze(classes: EClasses, graph_roots: Sequence[Node], source: Mapping[Node, int]) -> FrozenEGraph:
    """Return the classes below the roots, with e-nodes in the order in which they were made, the input program's first."""
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
