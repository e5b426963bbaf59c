"""Regions: connected operators cut from the e-graph, as fragments over placeholders for their operands.

Every class is represented by one operator: the input program's or, if the rule cannot read that, the cheapest one that rules made.
Operators are connected if one reads the other or both read the same tensor. They are also connected if they are of one kind and neither
depends on the other, because such operators may become one with more groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from egraph.derive.derivation import RegionRule
from egraph.derive.estimating import estimate
from egraph.engine.eclasses import EClasses, Key, Matched
from egraph.engine.explanations import needed
from egraph.tensor import Node, make, placeholder

MOST_GROWN = 2_000
"""Largest number of sets of operators that are examined while regions grow."""
LEAST_SHARE = 1 / 200
"""Least cost of a region's cheapest costly operator, as a part of the estimated cost of all operators."""


@dataclass(frozen=True, slots=True)
class Region:
    """Classes of results, their fragments over placeholders, the classes that these stand for, and the e-nodes inside."""

    roots: tuple[int, ...]
    fragments: tuple[Node, ...]
    operands: tuple[int, ...]
    keys: Mapping[int, Key]

    def matched(self, classes: EClasses) -> tuple[Matched, ...]:
        """Return the left sides of unions, one per result."""
        return tuple(self._matched(classes, root) for root in self.roots)

    def _matched(self, classes: EClasses, root: int) -> Matched:
        """Return the e-nodes of a result as the left side of a union, over the first e-nodes of its operands' classes.

        If its e-node is gone, or in a class that congruence has not joined to this one yet, the class's first e-node is used.
        """
        entry = classes.nodes.get(self.keys[root])
        if entry is None or classes.find(entry.handle) != classes.find(root):
            return Matched(classes.vertices[root])
        needs: list[tuple[int, int]] = []
        todo, seen = [root], set[int]()
        while todo:
            if (number := todo.pop()) in seen:
                continue
            seen.add(number)
            _, _, below = self.keys[number]
            made_over = classes.forest.operands[self._vertex(classes, number)]
            needs += zip((self._vertex(classes, operand) for operand in below), made_over, strict=True)
            todo += [each for each in map(classes.find, below) if each in self.keys]
        return Matched(self._vertex(classes, root), needed(needs))

    def _vertex(self, classes: EClasses, number: int) -> int:
        key = self.keys.get(number) or self.keys.get(classes.find(number))
        return classes.vertices[number] if key is None else classes.nodes[key].vertex


def regions(rule: RegionRule, classes: EClasses, given: Sequence[int], most: int) -> Iterator[Region]:
    """Yield the regions of ``given`` classes (operands before their users) for a rule.

    All regions with equal fragments are yielded, with at most ``most`` different fragments. Regions whose cheapest costly operator costs
    most come first and, among equals, those with the fewest tensors going in and out.
    """
    keys = _operators(rule, classes, given)
    costs = {number: estimate(_fragment(classes, (number,), keys, [number])[0][0]) for number in keys}
    costly = {number for number in keys if keys[number][0] in rule.costly}
    if not costly:
        return
    floor = LEAST_SHARE * sum(costs.values())
    dependencies = _Dependencies(classes, keys, given)
    grown = _grown(classes, keys, dependencies, [number for number in costly if costs[number] >= floor], rule.most_operators)
    readers = _readers(classes)

    def rank(members: frozenset[int]) -> tuple[int, int, int, list[int]]:
        into = {classes.find(each) for number in members for each in keys[number][2]} - members - classes.constants
        return -min(costs[each] for each in members & costly), len(into) + len(_results(members, readers)), len(members), sorted(members)

    seen: dict[tuple[Node, ...], None] = {}
    for members in sorted(grown, key=rank):
        ordered = [number for number in keys if number in members]
        outside = {classes.find(each) for number in ordered for each in keys[number][2]} - members
        if any(dependencies.has(each, members) for each in outside):
            continue  # it would read its own result
        results = _results(members, readers)
        roots = tuple(number for number in ordered if number in results)
        fragments, operands = _fragment(classes, roots, keys, ordered)
        if fragments not in seen and len(seen) >= most:
            continue
        seen[fragments] = None
        yield Region(roots, fragments, operands, {number: keys[number] for number in ordered})


def _operators(rule: RegionRule, classes: EClasses, given: Sequence[int]) -> dict[int, Key]:
    """Return the e-node that represents each given class: the input program's, if the rule can read it."""
    numbers = list(dict.fromkeys(map(classes.find, given)))
    searched = set(numbers) - classes.constants
    keys_of: dict[int, list[Key]] = {}
    for key, entry in classes.nodes.items():
        number = classes.find(entry.handle)
        operands = list(map(classes.find, key[2]))
        static = all(classes.types[each].is_static for each in (number, *operands))
        if key[0] in rule.operators and number in searched and static and number not in operands:
            keys_of.setdefault(number, []).append(key)
    chosen: dict[int, Key] = {}
    for number in numbers:
        keys = [key for key in keys_of.get(number, ()) if not classes.nodes[key].rule] or keys_of.get(number, [])
        if keys:
            chosen[number] = min(keys, key=lambda key: (estimate(_applied(classes, key, _leaves(classes, key))), classes.nodes[key].vertex))
    return chosen


def _leaves(classes: EClasses, key: Key) -> list[Node]:
    numbers = list(dict.fromkeys(map(classes.find, key[2])))
    return [_leaf(classes, numbers.index(classes.find(each)), classes.find(each)) for each in key[2]]


def _leaf(classes: EClasses, index: int, number: int) -> Node:
    return placeholder(index, classes.types[number], constant=number in classes.constants)


def _applied(classes: EClasses, key: Key, operands: Iterable[Node]) -> Node:
    op, label, _ = key
    return make(op, operands, classes.labels.attributes(label), classes.types[classes.find(classes.nodes[key].handle)])


def _fragment(
    classes: EClasses, roots: Sequence[int], keys: Mapping[int, Key], ordered: Sequence[int]
) -> tuple[tuple[Node, ...], tuple[int, ...]]:
    """Return results over placeholders, which are numbered in order of first use, and the classes that these stand for."""
    built: dict[int, Node] = {}
    leaves: dict[int, Node] = {}
    for number in ordered:
        operands = [classes.find(each) for each in keys[number][2]]
        for each in operands:
            if each not in built:
                leaves.setdefault(each, _leaf(classes, len(leaves), each))
        built[number] = _applied(classes, keys[number], [built.get(each) or leaves[each] for each in operands])
    return tuple(built[root] for root in roots), tuple(leaves)


class _Dependencies:
    """The classes that each class depends on, by the input program's e-nodes and the representing ones; sets are bit masks."""

    def __init__(self, classes: EClasses, keys: Mapping[int, Key], given: Sequence[int]) -> None:
        self._bits: dict[int, int] = {}
        self._below: dict[int, int] = {}
        first: dict[int, Key] = {}
        for key, entry in classes.nodes.items():
            if not entry.rule:
                first.setdefault(classes.find(entry.handle), key)
        for number in dict.fromkeys(map(classes.find, given)):
            self._bits[number] = 1 << len(self._bits)
            operands = {classes.find(each) for key in (keys.get(number), first.get(number)) if key for each in key[2]}
            self._below[number] = 0
            for each in operands:
                self._below[number] |= self._below.get(each, 0) | self._bits.get(each, 0)

    def has(self, number: int, others: Iterable[int]) -> bool:
        """Return whether a class depends on any of the others."""
        return any(self._below.get(number, 0) & self._bits.get(other, 0) for other in others)


def _results(members: frozenset[int], readers: Mapping[int, set[int]]) -> set[int]:
    """Return the members that are read outside, or by nothing."""
    return {number for number in members if not readers.get(number) or not readers[number] <= members}


def _readers(classes: EClasses) -> dict[int, set[int]]:
    """Return the classes that read each class in the input program; a class that nothing reads is a result of the program."""
    readers: dict[int, set[int]] = {}
    for (_, _, operands), entry in classes.nodes.items():
        if not entry.rule:
            for each in operands:
                readers.setdefault(classes.find(each), set()).add(classes.find(entry.handle))
    return readers


def _grown(
    classes: EClasses, keys: Mapping[int, Key], dependencies: _Dependencies, seeds: Sequence[int], most: int
) -> list[frozenset[int]]:
    """Return connected sets of two up to ``most`` operators, small ones first."""
    beside = _beside(classes, keys, dependencies)
    result: dict[frozenset[int], None] = {}
    newest = [frozenset({seed}) for seed in seeds]
    for _ in range(most - 1):
        larger: dict[frozenset[int], None] = {}
        for members in newest:
            for each in sorted({other for member in members for other in beside[member]} - members):
                if len(result) + len(larger) >= MOST_GROWN:
                    break
                larger[members | {each}] = None
        newest = list(larger)
        result |= larger
    return list(result)


def _beside(classes: EClasses, keys: Mapping[int, Key], dependencies: _Dependencies) -> dict[int, set[int]]:
    """Return the operators that each operator is connected with."""
    beside: dict[int, set[int]] = {number: set() for number in keys}
    reading: dict[int, list[int]] = {}
    alike: dict[object, list[int]] = {}
    for number, key in keys.items():
        for each in dict.fromkeys(map(classes.find, key[2])):
            if each in keys:
                beside[number].add(each)
                beside[each].add(number)
            if each not in classes.constants:
                reading.setdefault(each, []).append(number)
        alike.setdefault((key[0], classes.types[number].rank), []).append(number)
    for together in (*reading.values(), *alike.values()):
        for position, first in enumerate(together):
            for second in together[position + 1 : position + 5]:
                if not dependencies.has(second, (first,)) and not dependencies.has(first, (second,)):
                    beside[first].add(second)
                    beside[second].add(first)
    return beside
