"""Explain why e-nodes are equal: a proof forest, as in Nieuwenhuis and Oliveras, "Proof-producing congruence closure" (2005).

Every e-node is a vertex from the moment it is made. An edge states why two vertices are equal: a rule matched one and built the other,
their operands are equal, both are constants of one value, or they are operands of equal invertible operators. Such a step may *need* other,
older equalities, for example that the operands of a matched e-node are those in the pattern. Two vertices of one e-class are joined by
exactly one path, which later edges never change, so every explanation is finite.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

CONGRUENCE, FOLDING, INJECTIVITY = "congruence", "constant_folding", "injectivity"
"""Reasons that are no rules: equal operands, constants of one value, and equal results of an invertible operator."""


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason why two vertices are equal: ``name``, given that each pair of vertices in ``needs`` is equal."""

    name: str
    needs: tuple[tuple[int, int], ...] = ()


def needed(pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the pairs of different vertices, each once."""
    return tuple(dict.fromkeys(pair for pair in pairs if pair[0] != pair[1]))


class ProofForest:
    """The vertices with their original operands, and a tree of reasons for every e-class."""

    def __init__(self) -> None:
        self.operands: list[tuple[int, ...]] = []
        self._towards: list[int] = []
        """The neighbour of each vertex on the way to its tree's root; for the root, the root itself."""
        self._edge: list[int] = []
        """The edge to that neighbour."""
        self._group: list[int] = []
        self._size: list[int] = []
        self._reasons: list[Reason] = []

    def add(self, operands: Sequence[int]) -> int:
        """Return a new vertex, for an e-node over the e-nodes ``operands``."""
        vertex = len(self.operands)
        self.operands.append(tuple(operands))
        self._towards.append(vertex)
        self._edge.append(-1)
        self._group.append(vertex)
        self._size.append(1)
        return vertex

    def connect(self, left: int, right: int, reason: Reason) -> None:
        """Join two trees by an edge; vertices of one tree keep their older explanation."""
        small, large = self._root(left), self._root(right)
        if small == large:
            return
        if self._size[small] > self._size[large]:
            left, right, small, large = right, left, large, small
        self._group[small] = large
        self._size[large] += self._size[small]
        self._make_root(left)
        self._towards[left], self._edge[left] = right, len(self._reasons)
        self._reasons.append(reason)

    def _root(self, vertex: int) -> int:
        root = vertex
        while self._group[root] != root:
            root = self._group[root]
        while self._group[vertex] != root:
            self._group[vertex], vertex = root, self._group[vertex]
        return root

    def _make_root(self, vertex: int) -> None:
        """Reverse the edges between a vertex and its tree's root."""
        before, edge = vertex, -1
        while True:
            after, next_edge = self._towards[vertex], self._edge[vertex]
            self._towards[vertex], self._edge[vertex] = before, edge
            if after == vertex:
                return
            before, edge, vertex = vertex, next_edge, after

    def path(self, left: int, right: int) -> list[tuple[int, int]]:
        """Return the path from one vertex to another of the same class: the edges, each with the vertex after it."""
        above = {left: 0}
        upwards: list[tuple[int, int]] = []
        vertex = left
        while self._towards[vertex] != vertex:
            upwards.append((self._edge[vertex], self._towards[vertex]))
            vertex = self._towards[vertex]
            above[vertex] = len(upwards)
        downwards: list[tuple[int, int]] = []
        vertex = right
        while vertex not in above:
            if self._towards[vertex] == vertex:
                raise ValueError("the vertices are of different classes")
            downwards.append((self._edge[vertex], vertex))
            vertex = self._towards[vertex]
        return upwards[: above[vertex]] + downwards[::-1]

    def steps(self, left: int, right: int) -> tuple[str, ...]:
        """Return the names of the reasons on the path from one vertex to another, in order."""
        return tuple(self._reasons[edge].name for edge, _ in self.path(left, right))

    def rules_by_edge(self) -> tuple[list[int], list[str]]:
        """Return the set of rules that each edge rests on, as bits, and the rules' names by bit."""
        bits: dict[str, int] = {}
        sets: list[int] = []
        for reason in self._reasons:  # the equalities that an edge needs are older than the edge
            rests = 0
            if reason.name not in (CONGRUENCE, FOLDING, INJECTIVITY):
                rests = 1 << bits.setdefault(reason.name, len(bits))
            for left, right in reason.needs:
                rests |= self.rules_between(left, right, sets)
            sets.append(rests)
        return sets, list(bits)

    def rules_between(self, left: int, right: int, sets: Sequence[int]) -> int:
        """Return the rules that an equality rests on, as bits; ``sets`` come from ``rules_by_edge``."""
        rests = 0
        if left != right:
            for edge, _ in self.path(left, right):
                rests |= sets[edge]
        return rests
