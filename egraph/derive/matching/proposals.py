"""Proposals: which operators of a graph can be merged into one, and the programs that do it.

Members of a proposal stand on one level (the longest way from the leaves), so that none depends on another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from egraph.derive.matching.merging import beside, merged_correlations, stacked
from egraph.ir import Node, walk


@dataclass(frozen=True, slots=True)
class Proposal:
    """``programs[k]`` computes what ``members[k]`` computes; all programs share one costly operator."""

    name: str
    members: tuple[Node, ...]
    programs: tuple[Node, ...]


Merge = Callable[[Sequence[Node]], tuple[Node, ...] | None]
MERGES: tuple[tuple[str, Merge, Callable[[Node], object]], ...] = (
    ("products of different inputs", stacked, lambda node: _types(node) if node.op == "MatMul" else None),
    ("convolutions of different inputs", stacked, lambda node: _windows(node) if node.op == "Conv" else None),
    ("grouped filters of one input", beside, lambda node: (node.inputs[0].digest, _windows(node)) if _is_grouped(node) else None),
    ("taps of one input", merged_correlations, lambda node: (node.inputs[0].digest, node.attribute("layout")) if _is_plain(node) else None),
)
"""What merges, and by what operators are grouped before it is tried (None: never)."""


def proposals(roots: Iterable[Node]) -> Iterator[Proposal]:
    """Yield the proposals of a graph, those of all members that go together; a group has at least two."""
    nodes = tuple(walk(roots))
    depth: dict[Node, int] = {}
    for node in nodes:
        depth[node] = 1 + max((depth[operand] for operand in node.inputs), default=0)
    for name, merge, key in MERGES:
        groups: dict[tuple[int, object], list[Node]] = {}
        for node in nodes:
            signature = key(node)
            if signature is not None:
                groups.setdefault((depth[node], signature), []).append(node)
        for members in groups.values():
            programs = merge(members) if len(members) > 1 else None
            if programs is not None:
                yield Proposal(name, tuple(members), programs)


def _types(node: Node) -> tuple[str, ...]:
    return tuple(str(operand.type) for operand in node.inputs)


def _windows(node: Node) -> tuple[object, ...]:
    return (*(operand.type.rank for operand in node.inputs), node.inputs[1].type.sizes[1:], node.attributes)


def _is_grouped(node: Node) -> bool:
    return node.op == "Conv" and node.attribute("group") != 1


def _is_plain(node: Node) -> bool:
    """Ungrouped, with a window: without one it is a product already."""
    return node.op == "Conv" and node.attribute("group") == 1 and set(node.inputs[1].type.sizes[2:]) != {1}
