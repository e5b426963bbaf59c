"""Derivations in an e-graph: proved programs of single operators, which are joined to the class of the operator.

Rules match patterns, which egglog finds. A derivation needs only one operator over its operands, so the record of classes is enough.
Derivations run in rounds after the rules have settled, and the rules continue with the results of a round. Groups of operators that one
operator can compute are searched in the first round, and only in the input program: the operators of a level do not depend on each other,
and the result of a group is not grouped again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

from egraph.derive.derivation import AnyRule, DerivationRule, GroupRule, RegionRule, Step
from egraph.derive.matching.proposals import groups
from egraph.engine.applications import Match, Proposal, Rewrite, RuleStatistics, Throttle
from egraph.engine.eclasses import EClasses, Key, Template, compile_template
from egraph.engine.regions import Region, regions
from egraph.policy import SaturationPolicy
from egraph.rule import Mismatch
from egraph.tensor import Node, format_fragment, make, placeholder

Stop: TypeAlias = Callable[[], object]


@dataclass(frozen=True)
class Judged:
    """A derived program over placeholders, with the steps that lead to it; ``reason`` says why it may not be used, or is ''."""

    name: str
    program: Node
    steps: tuple[Step, ...] = ()
    reason: str = ""
    error_bound: float = 0.0


@dataclass(frozen=True)
class Derivations:
    """Derivation rules, and a function that derives and judges programs for operators over shared placeholders.

    ``programs`` depends only on the rule and the operators, and is called once per signature and run. It returns alternatives one after the
    other, each with one program per operator, or nothing if ``stop`` returns true.
    """

    rules: tuple[AnyRule, ...]
    programs: Callable[[AnyRule, Sequence[Node], Stop], Sequence[Judged]]


def signature(roots: Sequence[Node]) -> str:
    """Return the text of fragments over shared placeholders."""
    return "; ".join(map(format_fragment, roots))


class Deriving:
    """The derivation rules in one e-graph."""

    def __init__(
        self, derivations: Derivations, classes: EClasses, source: Mapping[Node, int], policy: SaturationPolicy = SaturationPolicy()
    ) -> None:
        self._derivations, self._classes, self._source, self._policy = derivations, classes, source, policy
        self._by_operator: dict[str, list[DerivationRule]] = {}
        self._group_rules = tuple(rule for rule in derivations.rules if isinstance(rule, GroupRule))
        self._region_rules = tuple(rule for rule in derivations.rules if isinstance(rule, RegionRule))
        for rule in (rule for rule in derivations.rules if isinstance(rule, DerivationRule)):
            for op in rule.operators:
                self._by_operator.setdefault(op, []).append(rule)
        self._given = frozenset(source.values())
        self._judged: dict[tuple[str, str], Sequence[Judged]] = {}
        self._templates: dict[tuple[Node, ...], Template] = {}
        self._done: set[tuple[str, Key]] = set()
        throttle = Throttle(policy.derived_programs)
        self._rewrites = {
            rule.name: Rewrite(rule.name, classes, source, throttle if isinstance(rule, DerivationRule) else None)
            for rule in derivations.rules
        }
        self.rounds = 0
        self._is_late: Stop = lambda: False

    @property
    def has_work(self) -> bool:
        """Return whether the e-graph has an operator that a rule derives from, and rounds are left."""
        several: tuple[GroupRule | RegionRule, ...] = () if self.rounds else (*self._group_rules, *self._region_rules)
        looked_for = {*self._by_operator, *(op for rule in several for op in rule.operators)}
        return self.rounds < self._policy.derivation_rounds and any(op in looked_for for op, _, _ in self._classes.nodes)

    def apply(self, stop: Stop, is_late: Stop | None = None) -> int:
        """Derive from every operator that is new since the last round until ``stop`` returns true; return how many programs were joined.

        ``is_late`` is asked while programs of an operator are derived; a derivation that it cuts short is not used.
        """
        self._is_late = is_late or stop
        self.rounds += 1
        used = 0
        for rule, region in self._search():
            if stop():
                return used
            if region is not None:
                used += self._use(rule, region, stop)
        return used

    def _search(self) -> Iterator[tuple[AnyRule, Region | None]]:
        """Yield the regions for each rule, or None if one has been handled or is no operator any more."""
        classes, policy, is_first = self._classes, self._policy, self.rounds == 1
        fixed = {node for node, handle in self._source.items() if classes.find(handle) in classes.constants} if is_first else set()
        for group_rule in self._group_rules if is_first else ():
            for members in islice(groups(group_rule, self._source, fixed), policy.derived_groups):
                yield group_rule, self._group(members)
        yield from self._regions(is_quick=True) if is_first else ()
        for is_search in (False, True):
            for key in [key for key in classes.nodes if key[0] in self._by_operator]:
                for rule in (rule for rule in self._by_operator[key[0]] if (rule.rounds == 0) == is_search):
                    yield rule, self._operator(rule, key)  # rules that take seconds per operator come after those that are quick
        yield from self._regions(is_quick=False) if is_first else ()

    def _regions(self, *, is_quick: bool) -> Iterator[tuple[AnyRule, Region | None]]:
        """Yield the regions for the rules that are quick, or for the others."""
        classes, most = self._classes, self._policy.derived_regions
        for rule in (rule for rule in self._region_rules if rule.is_quick == is_quick):
            for region in list(regions(rule, classes, list(self._source.values()), most)):
                is_settled = all(classes.find(number) == number for number in (*region.roots, *region.operands))
                yield rule, region if is_settled else None  # an alternative for another region may have merged its classes

    def _operator(self, rule: DerivationRule, key: Key) -> Region | None:
        op, label, operands = key
        classes = self._classes
        entry = classes.nodes[key]
        is_due = self.rounds <= rule.rounds or (rule.rounds == 0 and self.rounds == 1 and entry.handle in self._given)
        if not is_due or (rule.name, key) in self._done:
            return None
        self._done.add((rule.name, key))
        root = classes.find(entry.handle)
        types = [classes.types[operand] for operand in operands]
        numbers = list(map(classes.find, operands))
        if root in classes.constants or root in numbers or not all(type.is_static for type in (classes.types[root], *types)):
            return None  # a constant, computed at compile time, or sizes are not known
        fixed = [number in classes.constants for number in numbers]
        leaves = [placeholder(k, type, constant=constant) for k, (type, constant) in enumerate(zip(types, fixed, strict=True))]
        node = make(op, leaves, classes.labels.attributes(label), classes.types[root])
        return Region((root,), (node,), operands, {root: key})

    def _group(self, members: Sequence[Node]) -> Region | None:
        classes = self._classes
        by_root = {classes.find(self._source[node]): node for node in reversed(members)}
        roots = tuple(reversed(by_root))
        below = {node: tuple(classes.find(self._source[operand]) for operand in node.inputs) for node in by_root.values()}
        leaves: dict[int, Node] = {}
        for root in roots:
            for number in below[by_root[root]]:
                leaves.setdefault(number, placeholder(len(leaves), classes.types[number], constant=number in classes.constants))
        if len(roots) < 2 or not leaves.keys().isdisjoint(roots):
            return None  # rules have merged them, or one is an operand of another
        nodes = [by_root[root] for root in roots]
        fragments = tuple(make(node.op, [leaves[number] for number in below[node]], node.attributes, node.type) for node in nodes)
        keys = {root: (node.op, classes.labels.of_node(node), below[node]) for root, node in zip(roots, nodes, strict=True)}
        return Region(roots, fragments, tuple(leaves), keys)

    def _use(self, rule: AnyRule, region: Region, stop: Stop) -> int:
        """Join the programs that a rule derives for a match, or record why not; return how many were new."""
        rewrite, text = self._rewrites[rule.name], signature(region.fragments)
        if (rule.name, text) not in self._judged:
            programs = self._derivations.programs(rule, region.fragments, self._is_late)
            if stop():
                return 0  # cut short: the result is not used
            self._judged[rule.name, text] = programs
            rewrite.built += 1
        match = Match(region.roots, region.operands, lambda: (region.matched(self._classes), ()), lambda: text)
        return rewrite.use(match, self._proposals(self._judged[rule.name, text], region))

    def _proposals(self, judged: Sequence[Judged], region: Region) -> Iterator[Proposal]:
        """Yield a proposal, or the refusals, for each alternative."""
        for start in range(0, len(judged), len(region.roots)):
            alternative = judged[start : start + len(region.roots)]
            reasons = dict.fromkeys(f"{each.name}: {each.reason}" for each in alternative if each.reason)
            for reason in reasons:
                yield alternative[0].name, Mismatch(reason)
            if not reasons:
                programs = tuple(each.program for each in alternative)
                if programs not in self._templates:
                    self._templates[programs] = compile_template(programs, len(region.operands), self._classes.labels)
                yield alternative[0].name, self._templates[programs]

    def statistics(self) -> tuple[RuleStatistics, ...]:
        return tuple(rewrite.statistics() for rewrite in self._rewrites.values())
