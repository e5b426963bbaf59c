"""Derivations at work in an e-graph: programs of single operators, each proved, joined to the class of the operator.

Rules match patterns, which egglog finds; a derivation looks at one operator over its operands, so the book of classes is
enough. It runs in rounds after the rules have settled, and the rules go on with what a round made. Groups of operators that
one computes are looked for in the first round, and only in the input program: the operators of a level do not depend on
each other, and what came of a group is not grouped again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

from egraph.derive.derivation import AnyRule, DerivationRule, GroupRule, RegionRule, Step
from egraph.derive.matching.proposals import groups
from egraph.engine.applications import Rewrite, RuleStatistics
from egraph.engine.eclasses import EClasses, Key, Matched, Template, compile_template
from egraph.engine.explanations import needed
from egraph.engine.regions import Region, regions
from egraph.policy import SaturationPolicy
from egraph.tensor import Node, format_fragment, make, placeholder

Stop: TypeAlias = Callable[[], object]


@dataclass(frozen=True)
class Judged:
    """A derived program over placeholders, with the steps that lead to it; ``reason`` says why it may not be used, '' when it may."""

    name: str
    program: Node
    steps: tuple[Step, ...] = ()
    reason: str = ""
    error_bound: float = 0.0


@dataclass(frozen=True)
class Derivations:
    """Derivation rules, and how to find and judge what one derives for an operator over placeholders.

    ``programs`` depends on the rule and the operator alone, and is asked once a signature and run; where ``stop`` says so, it
    gives what it has by then.
    """

    rules: tuple[AnyRule, ...]
    programs: Callable[[DerivationRule, Node, Stop], Sequence[Judged]]
    grouped: Callable[[GroupRule, Sequence[Node], Stop], Sequence[Judged]] = lambda rule, members, stop: ()
    """What a rule gives for a group over shared placeholders: one program a member, or a reason why there are none."""
    of_region: Callable[[RegionRule, Sequence[Node], Stop], Sequence[Judged]] = lambda rule, roots, stop: ()
    """What a rule gives for the results of a region: alternatives one after the other, each of one program a result."""


def group_text(members: Sequence[Node]) -> str:
    """Return the signature of a group over shared placeholders."""
    return "; ".join(map(format_fragment, members))


class Deriving:
    """The derivation rules at work in one e-graph."""

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
        self._programs: dict[int, int] = {}
        self._rewrites = {rule.name: Rewrite(rule.name, classes, source) for rule in derivations.rules}
        self.rounds = 0
        self._is_late: Stop = lambda: False

    @property
    def has_work(self) -> bool:
        """Return whether any operator that a rule derives from is in the e-graph, and rounds are left."""
        several: tuple[GroupRule | RegionRule, ...] = () if self.rounds else (*self._group_rules, *self._region_rules)
        looked_for = {*self._by_operator, *(op for rule in several for op in rule.operators)}
        return self.rounds < self._policy.derivation_rounds and any(op in looked_for for op, _, _ in self._classes.nodes)

    def apply(self, stop: Stop, is_late: Stop | None = None) -> int:
        """Derive from every operator that is new since the last round, unless ``stop`` says so; return how many programs were joined.

        ``is_late`` is asked while an operator is derived from, as often as that takes; what is cut short by it is not used.
        """
        self._is_late = is_late or stop
        self.rounds += 1
        used = self._apply_groups(stop) if self.rounds == 1 else 0
        for key in [key for key in self._classes.nodes if key[0] in self._by_operator]:
            for rule in self._by_operator[key[0]]:
                if stop():
                    return used
                if self._is_due(rule, key) and (rule.name, key) not in self._done:
                    self._done.add((rule.name, key))
                    used += self._derive(rule, key, stop)
        return used + (self._apply_regions(stop) if self.rounds == 1 else 0)

    def _is_due(self, rule: DerivationRule, key: Key) -> bool:
        return self.rounds <= rule.rounds or (rule.rounds == 0 and self.rounds == 1 and self._classes.nodes[key].handle in self._given)

    def _derive(self, rule: DerivationRule, key: Key, stop: Stop) -> int:
        op, label, operands = key
        classes = self._classes
        root = classes.find(classes.nodes[key].handle)
        types = [classes.types[operand] for operand in operands]
        if root in classes.constants or root in operands or not all(type.is_static for type in (classes.types[root], *types)):
            return 0  # computed once, at compile time; or of sizes that are not known
        fixed = [classes.find(operand) in classes.constants for operand in operands]
        leaves = [placeholder(k, type, constant=constant) for k, (type, constant) in enumerate(zip(types, fixed, strict=True))]
        node = make(op, leaves, classes.labels.attributes(label), classes.types[root])
        signature = (rule.name, format_fragment(node))
        rewrite = self._rewrites[rule.name]
        if not self._judge(rewrite, signature, lambda: self._derivations.programs(rule, node, self._is_late), stop):
            return 0
        rewrite.matches += 1
        used = 0
        for judged in self._judged[signature]:
            most = self._policy.derived_programs
            full = f"its class has {most} programs already" if self._programs.get(root, 0) >= most else ""
            if reason := judged.reason or full:
                rewrite.refuse(f"{judged.name}: {reason}", (root,), lambda: signature[1])
            elif self._join(rewrite, judged.name, (judged.program,), operands, {root: self._matched(key, root)}):
                self._programs[root] = self._programs.get(root, 0) + 1
                used += 1
        return used

    def _judge(self, rewrite: Rewrite, signature: tuple[str, str], derive: Callable[[], Sequence[Judged]], stop: Stop) -> bool:
        """Derive for a signature, once a run; return False where that was cut short, and nothing is to be used."""
        if signature not in self._judged:
            programs = derive()
            if stop():
                return False
            self._judged[signature] = programs
            rewrite.built += 1
        return True

    def _apply_groups(self, stop: Stop) -> int:
        fixed = {node for node, handle in self._source.items() if self._classes.find(handle) in self._classes.constants}
        used = 0
        for rule in self._group_rules:
            for members in islice(groups(rule, self._source, fixed), self._policy.derived_groups):
                if stop():
                    return used
                used += self._derive_group(rule, members, stop)
        return used

    def _derive_group(self, rule: GroupRule, members: Sequence[Node], stop: Stop) -> int:
        classes = self._classes
        by_root = {classes.find(self._source[node]): node for node in reversed(members)}
        roots = tuple(reversed(by_root))
        leaves: dict[int, Node] = {}
        for root in roots:
            for operand in by_root[root].inputs:
                below = classes.find(self._source[operand])
                leaves.setdefault(below, placeholder(len(leaves), classes.types[below], constant=below in classes.constants))
        if len(roots) < 2 or not leaves.keys().isdisjoint(roots):
            return 0  # rules have made them one, or one an operand of another
        fragments = tuple(
            make(node.op, [leaves[classes.find(self._source[operand])] for operand in node.inputs], node.attributes, node.type)
            for node in map(by_root.__getitem__, roots)
        )
        signature = (rule.name, group_text(fragments))
        rewrite = self._rewrites[rule.name]
        if not self._judge(rewrite, signature, lambda: self._derivations.grouped(rule, fragments, self._is_late), stop):
            return 0
        judged = self._judged[signature]
        rewrite.matches += len(roots)
        for reason in dict.fromkeys(each.reason for each in judged if each.reason):
            rewrite.refuse(reason, roots, lambda: signature[1], matches=len(roots))
        if len(judged) != len(roots) or any(each.reason for each in judged):
            return 0
        lefts: dict[int, Matched] = {}
        for root in roots:
            node = by_root[root]
            key = (node.op, classes.labels.of_node(node), tuple(classes.find(self._source[operand]) for operand in node.inputs))
            lefts[root] = self._matched(key, root)
        return int(self._join(rewrite, rule.name, tuple(each.program for each in judged), tuple(leaves), lefts))

    def _apply_regions(self, stop: Stop) -> int:
        used = 0
        for rule in self._region_rules:
            for region in list(regions(rule, self._classes, list(self._source.values()), self._policy.derived_regions)):
                if stop():
                    return used
                used += self._derive_region(rule, region, stop)
        return used

    def _derive_region(self, rule: RegionRule, region: Region, stop: Stop) -> int:
        classes, roots = self._classes, region.roots
        if any(classes.find(number) != number for number in (*roots, *region.operands)):
            return 0  # an alternative for another region has made them one with something
        signature = (rule.name, group_text(region.fragments))
        rewrite = self._rewrites[rule.name]
        if not self._judge(rewrite, signature, lambda: self._derivations.of_region(rule, region.fragments, self._is_late), stop):
            return 0
        judged = self._judged[signature]
        rewrite.matches += 1
        used = 0
        for start in range(0, len(judged) - len(judged) % len(roots), len(roots)):
            together = judged[start : start + len(roots)]
            reasons = dict.fromkeys(f"{each.name}: {each.reason}" for each in together if each.reason)
            for reason in reasons:
                rewrite.refuse(reason, roots, lambda: signature[1])
            if not reasons:
                lefts = {root: region.matched(classes, root) for root in roots}
                used += self._join(rewrite, together[0].name, tuple(each.program for each in together), region.operands, lefts)
        return used

    def _join(
        self, rewrite: Rewrite, reason: str, programs: tuple[Node, ...], operands: Sequence[int], lefts: Mapping[int, Matched]
    ) -> bool:  # fmt: skip
        template = self._templates.get(programs)
        if template is None:
            template = self._templates[programs] = compile_template(programs, len(operands), self._classes.labels)
        return rewrite.join(template, operands, tuple(lefts), tuple(lefts.values()), reason=reason)

    def _matched(self, key: Key, root: int) -> Matched:
        """Return an e-node of a class as the left side of a derivation over the first e-nodes of its operands' classes.

        Where it is gone, or in a class that congruence has not joined to this one yet, the class's first e-node stands for it.
        """
        entry = self._classes.nodes.get(key)
        if entry is None or self._classes.find(entry.handle) != self._classes.find(root):
            return Matched(self._classes.vertices[root])
        vertex = entry.vertex
        made_over = self._classes.forest.operands[vertex]
        return Matched(vertex, needed(zip((self._classes.vertices[operand] for operand in key[2]), made_over, strict=True)))

    def statistics(self) -> tuple[RuleStatistics, ...]:
        return tuple(rewrite.statistics() for rewrite in self._rewrites.values())
