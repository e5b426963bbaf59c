"""Use the matches of a rule: build right sides in Python, and cache the combinations of types that were refused, with the reason."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from egraph.engine.eclasses import EClasses, Matched, Template, UnsoundRule, compile_template
from egraph.engine.egglog import Engine
from egraph.engine.encode import compile_pattern
from egraph.engine.explanations import needed
from egraph.errors import RuleError
from egraph.rewrite.clock import OutOfTime
from egraph.rewrite.terms import Pattern, Variable
from egraph.rule import Binding, MergeRule, Mismatch, Rule
from egraph.tensor import Node

Row: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""A match as egglog returns it: classes (the root's, then one per variable) and labels (one per attributes variable)."""

BROKEN = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""Exceptions that a mistake in a rule's own code raises."""


UNBOUND = -1
"""Represents the vertex of a variable that the pattern has not bound yet."""


@dataclass(frozen=True)
class Refusal:
    """A reason why a rule did not apply, with its count, the first such match, and the source nodes of such matches."""

    reason: str
    count: int
    example: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class RuleStatistics:
    """The effects of one rule: matches used, unions of different classes, e-nodes made, matches refused by reason.

    ``built``: number of right sides that were built. Every other match had the types and attributes of an earlier one, as in equal layers
    of a model, so its right side was only instantiated.
    """

    rule: str
    matches: int
    unions: int
    e_nodes: int
    refusals: tuple[Refusal, ...]
    built: int = 0


@dataclass(frozen=True, slots=True)
class Match:
    """A match of a rewrite: classes of roots, each to be joined with a program, and the classes that programs' placeholders stand for."""

    roots: tuple[int, ...]
    operands: Sequence[int]
    lefts: Callable[[], tuple[Sequence[Matched], Sequence[int]]]
    """Returns the left sides, one per root, and the e-nodes that placeholders stand for in them; empty if these are each class's first."""
    text: Callable[[], str]
    """Returns the text that describes it if it is refused."""


Proposal: TypeAlias = tuple[str, "Template | Mismatch"]
"""Programs, one per root, under the name that explains the unions, or a refusal."""


class Throttle:
    """Counts and limits the programs that rewrites join to each class."""

    def __init__(self, most: int) -> None:
        self._most, self._programs = most, Counter[int]()

    def objection(self, root: int) -> str:
        """Return why a class gets no other program, or '' if it may."""
        return f"its class has {self._most} programs already" if self._programs[root] >= self._most else ""

    def note(self, root: int) -> None:
        self._programs[root] += 1


class Rewrite:
    """A rewrite in one e-graph: a rule, a merge rule, or a derivation rule of any kind.

    Each searches in its own way, and proposes programs for its matches. ``use`` is the only place where matches are counted and throttled,
    unions are made, and refusals are recorded.
    """

    def __init__(self, name: str, classes: EClasses, source: Mapping[Node, int], throttle: Throttle | None = None) -> None:
        self.name, self.classes, self.source, self._throttle = name, classes, source, throttle
        self.matches = self.unions = self.e_nodes = self.built = 0
        self._refusals: dict[str, tuple[int, str, list[int]]] = {}

    def use(self, match: Match, proposals: Iterable[Proposal]) -> int:
        """Join the programs proposed for a match, or record the refusal; return the number of proposals that added anything new."""
        self.matches += 1
        return sum(self._join(match, name, outcome) for name, outcome in proposals)

    def _join(self, match: Match, name: str, outcome: Template | Mismatch) -> bool:
        full = self._throttle.objection(match.roots[0]) if self._throttle else ""
        if isinstance(outcome, Mismatch) or full:
            self._refuse(outcome.reason if isinstance(outcome, Mismatch) else f"{name}: {full}", match)
            return False
        count = len(self.classes.nodes)
        lefts, terms = match.lefts()
        times = len(outcome.results) // len(match.roots)
        changed = self.classes.instantiate(name, outcome, match.operands, match.roots * times, tuple(lefts) * times, terms)
        self.unions += changed
        self.e_nodes += len(self.classes.nodes) - count
        if changed and self._throttle:
            self._throttle.note(match.roots[0])
        return changed

    def _refuse(self, reason: str, match: Match) -> None:
        """Record a refused match with its roots, for about the first thousand per reason."""
        count, first, noted = self._refusals.get(reason, (0, "", []))
        if len(noted) < 1_000:
            noted += match.roots
        self._refusals[reason] = (count + 1, first if count else match.text(), noted)

    def statistics(self) -> RuleStatistics:
        nodes = {self.classes.find(handle): node for node, handle in reversed(list(self.source.items()))} if self._refusals else {}
        refusals = tuple(
            Refusal(reason, count, example, tuple(nodes[r] for r in dict.fromkeys(map(self.classes.find, roots)) if r in nodes))
            for reason, (count, example, roots) in sorted(self._refusals.items(), key=lambda item: (-item[1][0], item[0]))
        )
        return RuleStatistics(self.name, self.matches, self.unions, self.e_nodes, refusals, self.built)


class Application(Rewrite, ABC):
    """A rule that is matched by egglog; ``Rewriting`` and ``Merging`` define how its matches are used."""

    def __init__(self, rule: Rule | MergeRule, classes: EClasses, engine: Engine, source: Mapping[Node, int], limit: int) -> None:
        super().__init__(rule.name, classes, source)
        self.rule, self.limit = rule, limit
        self.pattern = rule if isinstance(rule, Rule) else rule.member
        self.operators = operator_count(self.pattern.pattern)
        self.phase = self.pattern.phase
        self.waiting: list[Row] = []
        self._seen: set[Row] = set()
        self._version = 0
        self._templates: dict[object, Template | Mismatch] = {}
        self._engine = engine
        self._declared = False

    def search(self) -> None:
        """Let egglog search for new matches; the pattern is declared when it can first match, because most patterns never can."""
        if not self._declared:
            self._declared = True
            self._engine.query(self.rule.name, compile_pattern(self.pattern, self.classes.labels, self._engine.operator))
        self._engine.match(self.rule.name)

    @abstractmethod
    def apply(self, stop: Callable[[], object]) -> int:
        """Use waiting matches up to the limit until ``stop`` returns true; return how many were used."""

    def receive(self, matches: Iterable[Row]) -> None:
        """Queue new matches in an order that does not depend on egglog's numbers."""
        if self._version != self.classes.version:
            self._version = self.classes.version
            self._seen = set(map(self._settled, self._seen))
            self.waiting = list(dict.fromkeys(map(self._settled, self.waiting)))
        for match in sorted(map(self._settled, matches)):
            if match not in self._seen:
                self._seen.add(match)
                self.waiting.append(match)

    def _settled(self, match: Row) -> Row:
        """Return what ``canonical`` does, but faster; valid if nothing was joined since the last read-out."""
        return tuple(map(self.classes.settled.__getitem__, match[0])), match[1]

    def canonical(self, match: Row) -> Row:
        return tuple(self.classes.find(handle) for handle in match[0]), match[1]

    def binding(self, match: Row) -> Binding:
        """Return the binding of a match: types, attributes and numbers by name."""
        (_, *operands), labels = match
        types = {v.name: self.classes.types[handle] for v, handle in zip(self.pattern.variables, operands, strict=True)}
        values = {name: self.classes.labels.attributes(label) for name, label in zip(self.pattern.attribute_variables, labels, strict=True)}
        numbers = {
            v.name: self.classes.numbers[handle]
            for v, handle in zip(self.pattern.variables, operands, strict=True)
            if v.constant and handle in self.classes.numbers
        }
        return Binding(types, values, numbers)

    def template(self, matches: Sequence[Row], variables: int) -> Template | Mismatch:
        """Return the right sides for matches with these types and attributes, or the reason why there are none (memoised)."""
        numbers, types = self.classes.numbers, self.classes.types
        key = tuple((tuple((types[handle], numbers.get(handle)) for handle in operands), labels) for (_, *operands), labels in matches)
        if key not in self._templates:
            self.built += 1
            self._templates[key] = self._build([self.binding(match) for match in matches], [match[0][0] for match in matches], variables)
        return self._templates[key]

    def template_in_time(self, matches: Sequence[Row], variables: int, stop: Callable[[], object]) -> Template | Mismatch | None:
        """Return what ``template`` does, or None if time was up before it was known.

        A new right side may need a proof, which reads the clock itself. ``stop`` is asked after it, not before: if a search is repeated,
        the proof that was cut short in the first run then finishes, but is not used either.
        """
        built = self.built
        try:
            template = self.template(matches, variables)
        except OutOfTime:
            stop()
            return None
        return None if self.built > built and stop() else template

    def _build(self, bindings: Sequence[Binding], roots: Sequence[int], variables: int) -> Template | Mismatch:
        unknown = [str(t) for binding in bindings for t in binding.types.values() if not t.is_static]
        if unknown:
            return Mismatch(f"sizes are not known: {unknown[0]}")
        for variable in self.pattern.variables:
            other = next((b.types[variable.name].dtype for b in bindings if b.types[variable.name].dtype != variable.dtype), None)
            if variable.dtype is not None and other is not None:
                return Mismatch(f"{variable.name} must be of {variable.dtype}, not {other}")
        try:
            if isinstance(self.rule, Rule):
                left, several = self.rule.programs(bindings[0])
                lefts, rights = [left], list(several)
            else:
                lefts, rights = map(list, self.rule.apply(bindings))
        except Mismatch as mismatch:
            return mismatch
        except BROKEN as error:
            where = "; ".join(_describe(binding) for binding in bindings)
            raise RuleError(f"rule {self.rule.name} raised {type(error).__name__}: {error}", where=where) from error
        for root, side in zip(roots, lefts, strict=True):
            if self.classes.types[root] != side.type:
                raise UnsoundRule(f"rule {self.rule.name} reads a {self.classes.types[root]} as a {side.type}")
        return compile_template(rights, variables, self.classes.labels)

    def matched(self, match: Row) -> tuple[Matched, list[int]]:
        """Return the e-node that a match found, with the equalities that make it the left side, and each variable's e-node.

        Until congruence is closed, the current classes may lead to an e-node that is not yet in the root's class, or to none. The classes
        that egglog saw then lead to the e-node that it found. If that is gone, too, the class's first e-node is used.
        """
        classes = self.classes
        for settle in (classes.find, int):
            place = self._found(match, settle)
            if place is not None and classes.find(place[0]) == classes.find(match[0][0]):
                return place[1], place[2]
        (root, *operands), _ = match
        return Matched(classes.vertices[root]), [classes.vertices[handle] for handle in operands]

    def _found(self, match: Row, settle: Callable[[int], int]) -> tuple[int, Matched, list[int]] | None:
        """Return the class, the e-node and each variable's e-node of a match, its classes looked up by ``settle``."""
        (_, *operands), labels = match
        classes, forest = self.classes, self.classes.forest
        handles = {v.name: settle(handle) for v, handle in zip(self.pattern.variables, operands, strict=True)}
        by_name = dict(zip(self.pattern.attribute_variables, labels, strict=True))
        needs: list[tuple[int, int]] = []
        bound: dict[str, int] = {}

        def vertex_of(term: Pattern) -> tuple[int, int] | None:
            """Return the class and the vertex of a term of the pattern."""
            below: list[tuple[int, int]] = []
            for operand in term.operands:
                inner = (handles[operand.name], UNBOUND) if isinstance(operand, Variable) else vertex_of(operand)
                if inner is None:
                    return None
                below.append(inner)
            label = by_name[term.attributes] if isinstance(term.attributes, str) else classes.labels.number(term.attributes)
            entry = classes.nodes.get((term.op, label, tuple(handle for handle, _ in below)))
            if entry is None:
                return None
            for operand, (_, vertex), made_over in zip(term.operands, below, forest.operands[entry.vertex], strict=True):
                if isinstance(operand, Variable):
                    vertex = bound.setdefault(operand.name, made_over)
                needs.append((vertex, made_over))
            return settle(entry.handle), entry.vertex

        whole = vertex_of(self.pattern.pattern)
        if whole is None:
            return None
        terms = [bound.get(v.name, classes.vertices[handle]) for v, handle in zip(self.pattern.variables, operands, strict=True)]
        return whole[0], Matched(whole[1], needed(needs)), terms

    def described(self, matches: Sequence[Row]) -> str:
        return "; ".join(_describe(self.binding(match)) for match in matches)


def operator_count(pattern: Pattern | Variable) -> int:
    """Return the number of operators in a pattern."""
    return 0 if isinstance(pattern, Variable) else 1 + sum(map(operator_count, pattern.operands))


class Rewriting(Application):
    """A rule of one equation; every match is used on its own."""

    def apply(self, stop: Callable[[], object]) -> int:
        used = 0
        batch, self.waiting = self.waiting[: self.limit], self.waiting[self.limit :]
        for position, match in enumerate(batch):
            root, *slots = match[0]
            template = self.template_in_time((match,), len(slots), stop)
            if template is None or (position % 64 == 63 and stop()):
                self.waiting = batch[position:] + self.waiting
                break
            constant = self.classes.find(root) in self.classes.constants
            if constant and (isinstance(template, Mismatch) or len(template.steps) >= self.operators):
                continue  # constants are computed once, at compile time: only fewer operators are better
            used += 1
            self.use(Match((root,), slots, partial(self._left, match), partial(self.described, (match,))), [(self.name, template)])
        return used

    def _left(self, match: Row) -> tuple[Sequence[Matched], Sequence[int]]:
        left, terms = self.matched(match)
        return (left,), terms


def _describe(binding: Binding) -> str:
    types = [f"{name}: {type}" for name, type in binding.types.items()]
    values = [f"{key}={value!r}" for bundle in binding.attributes.values() for key, value in bundle]
    return ", ".join(types + values)
