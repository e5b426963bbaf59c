"""Tiles for the vendor library: an anchor over views of its operands, grown upwards by epilogues that it can fuse."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from egraph.tensor import Attributes, ENode, Node, walk
from lower.calls.call import LibraryCall
from lower.calls.epilogue import BINARY, CONVERTING, ELTWISE
from lower.candidates.tile import Readings, Tile, Tiling, tensors_of
from lower.roofline import node_flops
from lower.views import Reason, Window, contiguous, read

Effort: TypeAlias = tuple[float, int]
"""The arithmetic of a tile, and its number of operators."""
READINGS = 3
"""The largest number of ways to read one operand through views."""
BEAM = 4
"""The number of tiles that are kept of one class and implementation."""
ROUNDS = 10
"""The largest number of epilogue operators over an anchor, views counted."""
VIEW_DEPTH = 4
READS_VIEWS = ("MatMul", "Conv", "ConvTranspose", "MaxPool", "AveragePool")
GATES = ("Sigmoid", "HardSigmoid")


@dataclass(frozen=True)
class Matcher:
    """The fragments that a library computes in one call: the names of its implementations by operator, and a test of fragments.

    ``match`` returns the reason if a fragment is no such call.
    """

    implementations: Callable[[str], tuple[str, ...]]
    match: Callable[[Node, str], LibraryCall | Reason | None]


def library_tiles(tiling: Tiling, matcher: Matcher) -> Iterator[tuple[int, Tile]]:
    """Yield every tile whose fragment the library computes in one call and that no other tile makes superfluous."""
    kept = _Kept(tiling, matcher)
    frontier = _anchors(tiling, kept)
    for _ in range(ROUNDS if tiling.fused else 0):
        frontier = _grow(tiling, frontier, kept)
        if not frontier:
            break
    for number, tile in kept.tiles():
        if tile.fragment.op == "Reshape":
            continue  # a view of the tile below computes the same for free
        yield number, tile
        for precision in tiling.target.precisions:
            rounding = tiling.implementation(tile.implementation.in_precision(precision).text)
            if kept.matches(tile.fragment, rounding.name):
                yield number, replace(tile, implementation=rounding)


class _Kept:
    """The tiles to keep, by class: among tiles that read the same tensors in the same way, the one with the least arithmetic.

    Such tiles differ only in constants (a scale folded into the weights, or not), which cost nothing at run time.
    """

    def __init__(self, tiling: Tiling, matcher: Matcher) -> None:
        self.tiling, self.matcher = tiling, matcher
        self._verdicts: dict[tuple[Node, str], bool] = {}
        self._best: dict[int, dict[tuple[object, ...], tuple[Effort, Tile]]] = {}
        self._counts: Counter[tuple[int, str]] = Counter()

    def offer(self, number: int, tile: Tile) -> bool:
        """Keep a tile unless it is superfluous or the class has enough; return whether it is kept."""
        best = self._best.setdefault(number, {})
        signature, effort = self._signature(tile)
        old = best.get(signature)
        kind = number, tile.implementation.text
        if old is None and self._counts[kind] >= BEAM:
            return False
        if old is not None and old[0] <= effort:
            return False
        if not self.matches(tile.fragment, tile.implementation.name):
            return False
        self._counts[kind] += old is None
        best[signature] = (effort, tile)
        return True

    def tiles(self) -> Iterator[tuple[int, Tile]]:
        for number, best in self._best.items():
            for _, tile in best.values():
                yield number, tile

    def _signature(self, tile: Tile) -> tuple[tuple[object, ...], Effort]:
        """Return what a tile reads and does at its anchor, and its arithmetic and number of operators."""
        work = _work(tile.fragment)
        anchor = next(node for node in work.operators if self.matcher.implementations(node.op))
        shapes = tuple(operand.type.shape for operand in anchor.inputs)
        signature = (tile.implementation, anchor.op, anchor.attributes, shapes, tensors_of(tile.fragment), work.moves)
        return signature, (work.flops, len(work.operators))

    def matches(self, fragment: Node, implementation: str) -> bool:
        """Return whether the library computes a fragment in one call of this implementation."""
        key = self.tiling.canonical(fragment)[0], implementation
        if key not in self._verdicts:
            self._verdicts[key] = not isinstance(self.matcher.match(*key), str)
        return self._verdicts[key]


class _Work(NamedTuple):
    """The operators of a fragment, operands first, how it moves axes, and its arithmetic."""

    operators: tuple[Node, ...]
    moves: tuple[Attributes, ...]
    flops: float


@lru_cache(maxsize=1 << 14)
def _work(fragment: Node) -> _Work:
    operators = tuple(node for node in walk((fragment,)) if node.op != "Placeholder")
    moves = tuple(node.attributes for node in operators if node.op == "Transpose")
    return _Work(operators, moves, math.fsum(map(node_flops, operators)))


def _anchors(tiling: Tiling, kept: _Kept) -> dict[int, list[Tile]]:
    anchors: dict[int, list[Tile]] = {}
    for number, nodes in tiling.frozen.classes.items():
        if number in tiling.leaves:
            continue
        for node in nodes:
            implementations = kept.matcher.implementations(node.op)
            fragments = [*_anchor_fragments(tiling, number, node)] if implementations else []
            for implementation in implementations:
                for fragment, covered in fragments:
                    tile = Tile(fragment, (node, *covered), tiling.implementation(implementation))
                    if kept.offer(number, tile):
                        anchors.setdefault(number, []).append(tile)
    return anchors


def _anchor_fragments(tiling: Tiling, number: int, node: ENode) -> Iterator[tuple[Node, tuple[ENode, ...]]]:
    """Yield the anchor over its operands, as they are and seen through views."""
    if node.op not in READS_VIEWS or not tiling.fused:
        yield tiling.over_leaves(number, node), ()
        return
    # Image kernels are slow on windows with gaps; only another order of the axes is free for them.
    views = ("Reshape", "Transpose", "Slice") if node.op == "MatMul" else ("Transpose",)
    for combination in itertools.product(*(readings(tiling, child, views) for child in node.children)):
        covered = tuple(e_node for _, below in combination for e_node in below)
        yield tiling.build(number, node, [operand for operand, _ in combination]), covered


def readings(tiling: Tiling, number: int, views: tuple[str, ...]) -> Readings:
    """Return a class and the classes of which it is a strided window, with the views between."""
    key = number, views
    if key not in tiling.readings:
        tiling.readings[key] = _readings(tiling, number, views)
    return tiling.readings[key]


def _readings(tiling: Tiling, number: int, views: tuple[str, ...]) -> Readings:
    leaf = tiling.leaf(number)
    windows: Readings = [(leaf, ())]
    if number in tiling.leaves or not leaf.type.is_static:
        return windows
    seen: set[tuple[int, Window]] = {(number, contiguous(leaf.type.sizes))}
    # Chains of classes from the top; a chain is built into a fragment from its bottom.
    chains: list[tuple[tuple[int, ENode], ...]] = [()]
    for _ in range(VIEW_DEPTH):
        longer = []
        for chain in chains:
            top = chain[-1][1].children[0] if chain else number
            if top in tiling.leaves and chain:
                continue
            longer += [(*chain, (top, node)) for node in tiling.frozen.classes[top] if node.op in views]
        for chain in longer[: 4 * READINGS]:
            fragment = tiling.leaf(chain[-1][1].children[0])
            if not fragment.type.is_static:
                continue
            for owner, node in reversed(chain):
                fragment = tiling.build(owner, node, [fragment])
            result = read(fragment, lambda placed: contiguous(placed.type.sizes))
            if isinstance(result, str):
                continue
            key = (chain[-1][1].children[0], result[1])
            # A reshape at the bottom is free as a view of its own, so reading through it adds nothing.
            if key in seen or chain[-1][1].op == "Reshape" or result[1].is_contiguous:
                continue
            seen.add(key)
            windows.append((fragment, tuple(node for _, node in chain)))
            if len(windows) >= READINGS:
                return windows
        chains = longer[: 4 * READINGS]
    return windows


def _grow(tiling: Tiling, frontier: dict[int, list[Tile]], kept: _Kept) -> dict[int, list[Tile]]:
    """Return new tiles: one more operator above the tiles of the last round."""
    grown: dict[int, list[Tile]] = {}
    for number in sorted({number for below in frontier for number in tiling.consumers[below]} - tiling.leaves):
        for node in tiling.frozen.classes[number]:
            for tile in _extended(tiling, number, node, frontier):
                if kept.offer(number, tile):
                    grown.setdefault(number, []).append(tile)
    return grown


def _extended(tiling: Tiling, number: int, node: ENode, frontier: dict[int, list[Tile]]) -> Iterator[Tile]:
    if node.op in ELTWISE or node.op in CONVERTING or node.op in ("Reshape", "Transpose"):
        leaves = [tiling.leaf(child) for child in node.children[1:]]
        for tile in frontier.get(node.children[0], ()):
            yield Tile(tiling.build(number, node, [tile.fragment, *leaves]), (node, *tile.covered), tile.implementation)
    elif node.op in BINARY:
        for side in (0, 1):
            other = node.children[1 - side]
            for tile in frontier.get(node.children[side], ()):
                operands = [tile.fragment, tiling.leaf(other)] if side == 0 else [tiling.leaf(other), tile.fragment]
                yield Tile(tiling.build(number, node, operands), (node, *tile.covered), tile.implementation)
                for gate in tiling.frozen.classes[other] if node.op == "Mul" else ():
                    if gate.op in GATES and gate.children == (node.children[side],):
                        gated = tiling.build(other, gate, [tile.fragment])
                        pair = [tile.fragment, gated] if side == 0 else [gated, tile.fragment]
                        yield Tile(tiling.build(number, node, pair), (node, gate, *tile.covered), tile.implementation)
