"""Tiles: fragments over the classes of one e-graph, before their placeholders are renumbered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from egraph.policy import CandidatesPolicy
from egraph.tensor import ENode, FrozenEGraph, Implementation, Node, Target, make, placeholder, renumbered
from egraph.tensor.ops.dtypes import BYTES

COSTLY = ("Pow",)
"""Operators that are many times slower than their replacements by rules: a square is a product."""


@dataclass(frozen=True)
class Tile:
    """A fragment whose ``Placeholder(index)`` stands for class ``index``; ``covered`` e-nodes, root first."""

    fragment: Node
    covered: tuple[ENode, ...]
    implementation: Implementation
    is_spare: bool = False


Readings: TypeAlias = list[tuple[Node, tuple[ENode, ...]]]
"""A class and the classes of which it is a strided window, each with the e-nodes between."""


class Tiling:
    """A frozen e-graph with the queries of all families of tiles. Without ``fused``, every tile is a single e-node.

    ``stored``: classes that a tile may have only as its root.
    """

    def __init__(
        self,
        frozen: FrozenEGraph,
        target: Target,
        *,
        fused: bool = True,
        policy: CandidatesPolicy = CandidatesPolicy(),
        is_late: Callable[[], bool] = lambda: False,
        stored: frozenset[int] = frozenset(),
    ) -> None:
        self.frozen, self.target, self.policy = frozen, target, policy
        self._fused, self._is_late = fused, is_late
        self.leaves = frozen.leaves
        self.stops = self.leaves | stored
        self.size_bytes = {number: type.size_bytes if type.is_static else 0 for number, type in frozen.types.items()}
        self._leaf: dict[int, Node] = {}
        self._implementations: dict[str, Implementation] = {}
        self.readings: dict[tuple[int, tuple[str, ...]], Readings] = {}
        """Results of ``lower.calls.tiles.readings``, shared by all libraries."""
        self.consumers: dict[int, set[int]] = {number: set() for number in frozen.classes}
        for number, nodes in frozen.classes.items():
            for node in nodes:
                for child in node.children:
                    self.consumers[child].add(number)
        self._source_users = _source_users(frozen)

    @property
    def fused(self) -> bool:
        """Return whether tiles may hold several e-nodes; they may not once it is late."""
        self._fused = self._fused and not self._is_late()
        return self._fused

    def implementation(self, text: str) -> Implementation:
        """Return an implementation for the target; the same object for the same text."""
        if text not in self._implementations:
            self._implementations[text] = Implementation.parse(text, self.target)
        return self._implementations[text]

    def leaf(self, number: int) -> Node:
        """Return the placeholder that stands for a class."""
        if number not in self._leaf:
            self._leaf[number] = placeholder(number, self.frozen.types[number], constant=number in self.frozen.constants)
        return self._leaf[number]

    def build(self, number: int, node: ENode, operands: Sequence[Node]) -> Node:
        """Return an e-node of a class applied to fragments."""
        return make(node.op, operands, node.attributes, self.frozen.types[number])

    def over_leaves(self, number: int, node: ENode) -> Node:
        return self.build(number, node, [self.leaf(child) for child in node.children])

    def is_shared(self, number: int) -> bool:
        """Return whether several other values are computed from a class; counted in the input program if it has the value.

        Rules give a value that is read once many more readers, which are only other ways to compute the same thing.
        """
        users = self._source_users.get(number)
        return number in self.frozen.roots or (len(self.consumers[number]) if users is None else users) > 1

    def holds_bytes(self, number: int) -> bool:
        """Return whether a class is a tensor of bytes, and not a single number."""
        type = self.frozen.types[number]
        return type.dtype in BYTES and type.rank > 0 and number not in self.frozen.constants

    @staticmethod
    def canonical(fragment: Node) -> tuple[Node, tuple[int, ...]]:
        """Return the fragment with placeholders numbered by first use, and the classes that they stand for."""
        return renumbered(fragment)


def _source_users(frozen: FrozenEGraph) -> dict[int, int]:
    """Return how many values of the input program read each of its values; a class may hold it in another layout, or a part of it."""
    number_of = {node: number for number, node in frozen.source.items()}
    users: dict[int, set[int]] = {number: set() for number in frozen.source}
    for number, node in frozen.source.items():
        for operand in node.inputs:
            if operand in number_of:
                users[number_of[operand]].add(number)
    counts = {number: len(readers) for number, readers in users.items()}
    same: dict[int, list[int]] = {}
    for number, nodes in frozen.classes.items():
        for each in nodes:
            if each.op in ("Transpose", "Slice"):
                same.setdefault(each.children[0], []).append(number)
            if each.op == "Transpose":
                same.setdefault(number, []).append(each.children[0])
    reached = list(counts)
    for number in reached:
        for other in same.get(number, ()):
            if other not in counts:
                counts[other] = counts[number]
                reached.append(other)
    return counts


def tensors_of(fragment: Node) -> frozenset[int]:
    """Return the classes that a fragment reads, without constants."""
    return contents(fragment).tensors


class Contents(NamedTuple):
    """The contents of a fragment: how many operators, how many of them are costly, and the classes that it reads, without constants."""

    operators: int
    costly: int
    tensors: frozenset[int]


@lru_cache(maxsize=1 << 14)
def contents(fragment: Node) -> Contents:
    """Return the contents of a fragment."""
    seen = {fragment}
    stack = [fragment]
    operators = costly = 0
    tensors: set[int] = set()
    while stack:
        node = stack.pop()
        if node.op == "Placeholder":
            if not node.attribute("constant"):
                tensors.add(node.integer("index"))
            continue
        operators += 1
        costly += node.op in COSTLY
        for operand in node.inputs:
            if operand not in seen:
                seen.add(operand)
                stack.append(operand)
    return Contents(operators, costly, frozenset(tensors))
