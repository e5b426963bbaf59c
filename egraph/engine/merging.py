"""Merge rules: compute n applications of one operator by one, without enumerating pairs.

Members are e-nodes of the input program, up to the order of commutative operands, on the same level (longest path from the leaves). A
member can thus not depend on another, and merged operators are not merged again. All members of a group are merged at once. If the rule
refuses that, subsets that it accepts are merged. Members of equal types are also offered as a group of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from egraph.engine.applications import Application, Match, Row
from egraph.engine.eclasses import EClasses, Matched, Template
from egraph.engine.egglog import Engine
from egraph.engine.explanations import needed
from egraph.policy import SaturationPolicy
from egraph.rewrite.clock import OutOfTime
from egraph.rewrite.terms import Pattern, Variable
from egraph.rule import MergeRule, Mismatch
from egraph.tensor import Node, walk
from egraph.tensor.ops import OPS


class Merging(Application):
    """A merge rule in one e-graph."""

    rule: MergeRule

    def __init__(
        self, rule: MergeRule, classes: EClasses, engine: Engine, source: Mapping[Node, int], limit: int,
        largest: int = SaturationPolicy.largest_merge,
    ) -> None:  # fmt: skip
        super().__init__(rule, classes, engine, source, limit)
        self._largest = largest
        self._members: list[Row] = []
        self._offered: set[tuple[Row, ...]] = set()
        self._levels: dict[tuple[str, int, tuple[int, ...]], tuple[int, int, int]] = {}
        self._levels_version = -1

    def apply(self, stop: Callable[[], object]) -> int:
        if not self.waiting:
            return 0
        self._members = list(dict.fromkeys(map(self.canonical, self._members + self.waiting)))
        self.waiting = []
        used = 0
        try:
            for group in self._groups():
                for offer in self._offers(group):
                    if stop():
                        return used
                    if offer not in self._offered:
                        template = self.template_in_time(offer, self._width(offer), stop)
                        if template is None:
                            return used
                        self._offered.add(offer)
                        used += 1
                        self._merge(offer, template)
        except OutOfTime:
            stop()
        return used

    def _positions(self) -> dict[tuple[str, int, tuple[int, ...]], tuple[int, int, int]]:
        """Return level, position and handle of every e-node of the input program."""
        if self._levels_version != self.classes.version:
            self._levels_version = self.classes.version
            level: dict[Node, int] = {}
            self._levels = {}
            for position, node in enumerate(walk(self.source)):
                fixed = self.classes.find(self.source[node]) in self.classes.constants  # computed before everything else
                level[node] = 0 if fixed else 1 + max((level[operand] for operand in node.inputs), default=-1)
                key = self._key(node.op, self.classes.labels.of_node(node), [self.source[operand] for operand in node.inputs])
                self._levels.setdefault(key, (level[node], position, self.source[node]))
        return self._levels

    def _key(self, op: str, label: int, operands: Iterable[int]) -> tuple[str, int, tuple[int, ...]]:
        """Return an e-node's operator, attributes and operands, those that commute in one order.

        Patterns of members say ``x W + b``; some exporters write ``b + x W``.
        """
        handles = [self.classes.find(handle) for handle in operands]
        is_commutative = op in OPS and OPS[op].commutative
        return op, label, tuple(sorted(handles) if is_commutative else handles)

    def _position(self, match: Row) -> tuple[int, int] | None:
        """Return level and position of the e-node that a member matched, or None if a rule made it."""
        (_, *operands), labels = match
        handles = {v.name: handle for v, handle in zip(self.pattern.variables, operands, strict=True)}
        numbers = dict(zip(self.pattern.attribute_variables, labels, strict=True))
        position_in_graph: tuple[int, int] | None = None

        def handle_of(pattern: Pattern | Variable) -> int | None:
            nonlocal position_in_graph
            if isinstance(pattern, Variable):
                return handles[pattern.name]
            inner = [handle_of(operand) for operand in pattern.operands]
            present = [handle for handle in inner if handle is not None]
            by = pattern.attributes
            label = numbers[by] if isinstance(by, str) else self.classes.labels.number(by)
            position = self._positions().get(self._key(pattern.op, label, present)) if len(present) == len(inner) else None
            position_in_graph = None if position is None else position[:2]
            return None if position is None else self.classes.find(position[2])

        handle_of(self.pattern.pattern)
        return position_in_graph

    def _groups(self) -> Iterator[list[Row]]:
        shared = [i for i, v in enumerate(self.pattern.variables) if v.name in self.rule.shared]
        groups: dict[object, list[tuple[int, Row]]] = {}
        for match in self._members:
            position_in_graph = self._position(match)
            if position_in_graph is not None and match[0][0] not in self.classes.constants:
                key = (position_in_graph[0], tuple(match[0][1 + i] for i in shared), match[1])
                groups.setdefault(key, []).append((position_in_graph[1], match))
        for group in groups.values():
            if len(group) > 1:
                ordered = [match for _, match in sorted(group)]
                for start in range(0, len(ordered) - 1, self._largest):
                    yield ordered[start : start + self._largest]

    def _offers(self, group: Sequence[Row]) -> Iterator[tuple[Row, ...]]:
        together: list[list[Row]] = [list(group)]
        if isinstance(self.template(group, self._width(group)), Mismatch):
            yield tuple(group)  # so that the refusal is recorded
            together = []
            for match in group:
                for other in together:
                    if isinstance(self.template((*other, match), self._width((*other, match))), Template):
                        other.append(match)
                        break
                else:
                    together.append([match])
        equal: dict[object, list[Row]] = {}
        for match in group:
            equal.setdefault(tuple(self.classes.types[handle] for handle in match[0]), []).append(match)
        for offer in (*together, *equal.values()):
            if len(offer) > 1:
                yield tuple(offer)

    def _shared(self) -> list[int]:
        index = {v.name: 1 + i for i, v in enumerate(self.pattern.variables)}
        return [index[name] for name in self.rule.shared if name in index]

    def _own(self) -> list[int]:
        return [1 + i for i, v in enumerate(self.pattern.variables) if v.name not in self.rule.shared]

    def _width(self, group: Sequence[Row]) -> int:
        unshared = len(self._own())
        return len(self.pattern.variables) - unshared + unshared * len(group)

    def _merge(self, group: Sequence[Row], template: Template | Mismatch) -> None:
        shared, unshared = self._shared(), self._own()
        slots = [group[0][0][i] for i in shared] + [match[0][i] for match in group for i in unshared]
        match = Match(tuple(match[0][0] for match in group), slots, partial(self._lefts, group), partial(self.described, group))
        self.use(match, [(self.name, template)])

    def _lefts(self, group: Sequence[Row]) -> tuple[Sequence[Matched], Sequence[int]]:
        """Return the members, which also need the equality of the rule's shared variables, and the variables' e-nodes."""
        shared, unshared = self._shared(), self._own()
        lefts, terms = zip(*map(self.matched, group), strict=True)
        same = tuple((terms[0][i - 1], each[i - 1]) for each in terms for i in shared)
        vertices = [terms[0][i - 1] for i in shared] + [each[i - 1] for each in terms for i in unshared]
        return [Matched(left.vertex, needed((*left.needs, *same))) for left in lefts], vertices
