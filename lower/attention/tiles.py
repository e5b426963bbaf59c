"""Tiles of attention: from each product down to the softmax below it, and on to the product that gives the scores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from egraph.tensor import ENode, Node
from lower.attention.match import AFTER_SOFTMAX, CODES, MOST_STEPS, AttentionCall, keeps_matrices, match
from lower.candidates.tile import Tile, Tiling
from lower.candidates.view_tiles import tiles_above
from lower.views import VIEWS

MOST_PATHS = 3
"""Paths from a product down to the scores' product, at most; the shortest are taken."""
MOST_CLASSES = 60
"""Classes visited on the way, at most."""
MOST_TILES = 6
"""Tiles of one product, at most."""
READING_DEPTH = 8
"""Views and factors between an operand and where it is read, at most."""


@dataclass(frozen=True)
class _Link:
    """An e-node of a class, and the operand through which the path continues. ``guard``: the e-node that asks where that operand is NaN."""

    number: int
    node: ENode
    position: int
    guard: ENode | None = None


@dataclass(frozen=True)
class _Reading:
    """A chain of views and factors from a class down to another."""

    links: tuple[_Link, ...]
    leaf: int

    @property
    def slices(self) -> bool:
        return any(link.node.op == "Slice" for link in self.links)


def attention_tiles(tiling: Tiling) -> Iterator[tuple[int, Tile]]:
    """Yield each attention over its direct operands, over the deepest operands below views, and over parts of one wide product."""
    if not tiling.fused:
        return
    attentions: dict[int, list[Tile]] = {}
    for number, nodes in tiling.frozen.classes.items():
        if number in tiling.leaves:
            continue
        for node in nodes:
            if node.op == "MatMul" and tiling.frozen.types[number].is_static:
                tiles = list(_tiles(tiling, number, node))
                attentions.setdefault(number, []).extend(tiles)
                yield from ((number, tile) for tile in tiles)
    yield from tiles_above(tiling, attentions, _fits, MOST_TILES)


def _tiles(tiling: Tiling, number: int, node: ENode) -> Iterator[Tile]:
    implementation = tiling.implementation("attention.blocks")
    seen: set[Node] = set()
    for path, product_number, product in _paths(tiling, node.children[0]):
        ways = [_readings(tiling, child) for child in (*product.children, node.children[1])]
        for choice in _choices(ways):
            (q, q_covered), (k, k_covered), (v, v_covered) = (_built(tiling, way.links, tiling.leaf(way.leaf)) for way in choice)
            scores = tiling.build(product_number, product, [q, k])
            below, covered = _built(tiling, path, scores)
            fragment = tiling.build(number, node, [below, v])
            if fragment in seen or len(seen) >= MOST_TILES or not _fits(tiling.canonical(fragment)[0]):
                continue
            seen.add(fragment)
            all_covered = dict.fromkeys((node, *covered, product, *q_covered, *k_covered, *v_covered))
            yield Tile(fragment, tuple(all_covered), implementation)


@lru_cache(maxsize=1 << 12)
def _fits(fragment: Node) -> bool:
    return isinstance(match(fragment), AttentionCall)


def _built(tiling: Tiling, links: tuple[_Link, ...], fragment: Node) -> tuple[Node, list[ENode]]:
    """Return the fragment that a chain computes from its last operand, and the chain's e-nodes."""
    covered: list[ENode] = []
    for link in reversed(links):
        operands = [tiling.leaf(child) for child in link.node.children]
        operands[link.position] = fragment
        if link.guard is not None:
            operands[0] = tiling.build(link.node.children[0], link.guard, [fragment])
            covered.append(link.guard)
        fragment = tiling.build(link.number, link.node, operands)
        covered.append(link.node)
    return fragment, covered[::-1]


def _paths(tiling: Tiling, start: int) -> list[tuple[tuple[_Link, ...], int, ENode]]:
    """Return the shortest paths from probabilities to a product, through one softmax and elementwise operators."""
    paths: list[tuple[tuple[_Link, ...], int, ENode]] = []
    met = {(start, False)}
    queue: list[tuple[int, tuple[_Link, ...], bool]] = [(start, (), False)]
    for number, path, is_below in queue:
        if number in tiling.leaves or len(path) > MOST_STEPS:
            continue
        for node in tiling.frozen.classes[number]:
            if is_below and node.op == "MatMul":
                paths.append((path, number, node))
                if len(paths) >= MOST_PATHS:
                    return paths
        for node in tiling.frozen.classes[number]:
            for link in _links(tiling, number, node, is_below=is_below):
                state = node.children[link.position], is_below or node.op == "Softmax"
                if state not in met and len(met) < MOST_CLASSES:
                    met.add(state)
                    queue.append((state[0], (*path, link), state[1]))
    return paths


def _links(tiling: Tiling, number: int, node: ENode, *, is_below: bool) -> Iterator[_Link]:
    """Yield the operands of an e-node that lead on towards the product."""
    types = tiling.frozen.types
    if node.op == "Reshape":
        if keeps_matrices(tiling.over_leaves(number, node)):
            yield _Link(number, node, 0)
    elif not is_below and node.op == "Softmax":
        yield _Link(number, node, 0)
    elif not is_below and (guard := _guard(tiling, node)) is not None:
        yield _Link(number, node, 2, guard)
    elif node.op in ((*CODES, "Where") if is_below else AFTER_SOFTMAX):
        for position in range(int(node.op == "Where"), len(node.children)):
            # A constant holds no product, and one kernel cannot hold two.
            if types[node.children[position]] == types[number] and node.children[position] not in tiling.leaves:
                yield _Link(number, node, position)


def _guard(tiling: Tiling, node: ENode) -> ENode | None:
    """Return the e-node that asks where probabilities are NaN, if ``node`` replaces those by one number."""
    if node.op != "Where" or tiling.frozen.types[node.children[1]].elements != 1:
        return None
    asked = (each for each in tiling.frozen.classes[node.children[0]] if each.op == "IsNaN" and each.children == (node.children[2],))
    return next(asked, None)


def _readings(tiling: Tiling, start: int) -> list[_Reading]:
    """Return the class itself, and the farthest classes of which it is a view or a multiple: one read whole, and one read in part."""
    whole: _Reading | None = None
    part: _Reading | None = None
    met = {start}
    queue = [_Reading((), start)]
    for reading in queue:
        number = reading.leaf
        nodes = () if number in tiling.leaves else tiling.frozen.classes[number]
        onward = [
            _Link(number, node, position)
            for node in nodes
            for position in (range(2) if node.op in ("Mul", "Div") else range(1) if node.op in VIEWS else ())
            if node.op in VIEWS or _is_factor(tiling, number, node, position)
        ]
        if (reading.links and len(onward) < len(nodes)) or number in tiling.leaves:
            whole, part = (whole, reading) if reading.slices else (reading, part)
        if len(reading.links) < READING_DEPTH and len(met) < MOST_CLASSES:
            for link in onward:
                child = link.node.children[link.position]
                if child not in met:
                    met.add(child)
                    queue.append(_Reading((*reading.links, link), child))
    return [queue[0], *(each for each in (whole, part) if each is not None)]


def _is_factor(tiling: Tiling, number: int, node: ENode, position: int) -> bool:
    """Return whether an operand is multiplied or divided by one number."""
    types, other = tiling.frozen.types, node.children[1 - position]
    if node.op == "Div" and position == 1:
        return False
    return types[other].is_static and types[other].elements == 1 and types[node.children[position]] == types[number]


def _choices(ways: list[list[_Reading]]) -> Iterator[tuple[_Reading, ...]]:
    """Yield a reading for every operand at a time: parts of wide values first, then whole values, then the operands themselves."""
    for kind in (2, 1, 0):
        yield tuple(way[min(kind, len(way) - 1)] for way in ways)
    yield tuple(next((each for each in way if each.links and not each.slices), way[0]) for way in ways)
